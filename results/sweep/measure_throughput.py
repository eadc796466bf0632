"""Throughput of a sweep on two one-thread workers against one.

    python results/sweep/measure_throughput.py --work DIR    # writes throughput.json

Four PBRL runs of the paper's networks (N_ood = 2) on the embedded data; the clock runs from the
first run's first file to the last run's last, so that starting Ray does not count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS, RUNS = 150, 4
SPEC = f"""\
datasets: demo
preset: paper
seeds: {RUNS}
settings: {{n_ood: 2, steps: {STEPS}, eval: false, tensorboard: false}}
"""


def steps_per_second(workers: int, work: Path) -> float:
    """Gradient steps a second of the whole sweep."""
    out = work / f"workers-{workers}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "sweep.yaml").write_text(SPEC)
    words = [
        "sweep",
        str(out / "sweep.yaml"),
        "--workers",
        str(workers),
        "--out",
        str(out / "runs"),
    ]
    subprocess.run([sys.executable, "-m", "pbrl.cli.main", *words], check=True)
    started = min(path.stat().st_mtime for path in out.glob("runs/**/config.json"))
    ended = max(path.stat().st_mtime for path in out.glob("runs/**/summary.json"))
    return RUNS * STEPS / (ended - started)


def main() -> None:
    """One worker, two, one again: the machine may change its speed meanwhile."""
    parser = argparse.ArgumentParser(description="Two workers against one.")
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    rates = [(workers, steps_per_second(workers, work)) for workers in (1, 2, 1)]
    one = (rates[0][1] + rates[2][1]) / 2
    result = {
        "runs": RUNS,
        "steps": STEPS,
        "steps_per_second": [{"workers": n, "rate": round(rate, 2)} for n, rate in rates],
        "two_against_one": round(rates[1][1] / one, 3),
    }
    (HERE / "throughput.json").write_text(json.dumps(result, indent=1) + "\n")
    print(result)


if __name__ == "__main__":
    main()
