"""Training from 50 million rows on disk beside 200,000 in memory: python results/store/measure.py

Makes a Hopper-shaped store in a scratch directory (about 5.6 GB, removed at the end), then trains
PBRL with the demo's small networks, where a batch costs most beside the update, on both sets in
turns, in one process each. Writes measure.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
S, A = 11, 3
BATCH = 256


def make_store(path: Path, rows: int) -> None:
    """Made-up rows, episodes of 1000 steps, written in streaming fashion."""
    from pbrl.data import Recorder
    from pbrl.data.rows import Rows

    rng = np.random.default_rng(0)
    piece = min(rows, 500_000)  # made once and written again and again: speed is what counts
    block = Rows(
        observations=rng.standard_normal((piece, S), np.float32),
        actions=rng.uniform(-1, 1, (piece, A)).astype(np.float32),
        rewards=rng.uniform(0, 1, piece).astype(np.float32),
        terminals=np.zeros(piece, np.bool_),
        timeouts=np.arange(piece) % 1000 == 999,
        next_observations=rng.standard_normal((piece, S), np.float32),
    )
    with Recorder(path, S, A) as recorder:
        for _ in range(rows // piece):
            recorder.append(block)


def anonymous_memory() -> float:
    """RssAnon of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not report RssAnon")


def train(path: Path, steps: int) -> None:
    """Train through the ordinary entry and print speed and memory as JSON."""
    from pbrl.training.config import make_config
    from pbrl.training.loop import run_training

    with tempfile.TemporaryDirectory() as directory:
        config = make_config(
            "pbrl",
            "demo",
            str(path),
            steps=steps,
            batch_size=BATCH,
            run_dir=Path(directory) / "run",
            eval=False,
        )
        start = time.perf_counter()
        run = run_training(config, quiet=True)
        total = time.perf_counter() - start
        rates = [r["steps_per_second"] for r in run.metrics() if r["kind"] == "train"]
    print(
        json.dumps(
            {
                "steps_per_second": float(np.median(rates)),
                "rss_anon_mb": anonymous_memory(),
                "seconds": total,
            }
        )
    )


def main() -> None:
    """Make both sets, train on them in turns, write the figures."""
    parser = argparse.ArgumentParser(description="A store larger than memory against memory.")
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", type=Path)
    options = parser.parse_args()
    if options.only:
        train(options.only, options.steps)
        return
    found: dict[str, list[dict[str, float]]] = {"store": [], "memory": []}
    with tempfile.TemporaryDirectory() as scratch:
        store, memory = Path(scratch) / "large.store", Path(scratch) / "small.hdf5"
        start = time.perf_counter()
        make_store(store, options.rows)
        writing = time.perf_counter() - start
        make_store(memory, 200_000)
        for _ in range(options.rounds):
            for name, path in (("store", store), ("memory", memory)):
                command = [sys.executable, __file__, "--only", str(path)]
                done = subprocess.run(
                    [*command, "--steps", str(options.steps)],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
                print(name, found[name][-1], flush=True)
        size = sum(f.stat().st_size for f in store.rglob("*") if f.is_file())
    rate = {
        name: float(np.median([r["steps_per_second"] for r in rs])) for name, rs in found.items()
    }
    pages = size / 4096
    drawn = options.steps * BATCH
    results = {
        "command": "python results/store/measure.py",
        "rows": options.rows,
        "store_gb": size / 1e9,
        "seconds_to_write": writing,
        "steps": options.steps,
        "share_of_pages_touched_by_one_run": 1 - float(np.exp(-drawn / pages)),
        "steps_per_second": rate,
        "store_over_memory": rate["store"] / rate["memory"],
        "rss_anon_mb": max(r["rss_anon_mb"] for r in found["store"]),
        "rounds": found,
    }
    (HERE / "measure.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
