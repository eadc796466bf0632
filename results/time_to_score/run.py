"""Score against wall-clock: settings of PBRL on regenerated Hopper data, the same time for each.

    python results/time_to_score/run.py --data DIR --work WORK [--minutes 30] [--only fast ...]

Every setting trains on one thread for as many steps as fit into the time at the speed it has here
(measured first, then fixed, so that the beta_ood schedule spans the run). Runs are kept in WORK:
started again, the script goes on where it was. Writes settings.json, settings.md and settings.png
from all runs that are finished.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import pbrl

HERE = Path(__file__).resolve().parent
DATA = "hopper-medium-regen"

# One change at a time from ``fast`` as it was before this table: the paper's networks, N_ood = 2.
SETTINGS: dict[str, list[str]] = {
    "fast": [],
    "paper (N_ood=10)": ["--n-ood", "10"],
    "N_ood=1": ["--n-ood", "1"],
    "N_ood=5": ["--n-ood", "5"],
    "K=5": ["--ensemble-size", "5"],
    "two layers": ["--hidden", "256", "256", "--policy-hidden", "256", "256"],
    "LayerNorm": ["--layer-norm"],
    "normalised observations": ["--normalize-observations", "True"],
    "actor_lr=3e-4": ["--actor-lr", "3e-4"],
    "tau=0.02": ["--tau", "0.02"],
    "alpha starts at 0.1": ["--initial-log-alpha", "-2.3"],
    "also at s'": ["--ood-next-states"],
}


def place(work: Path, name: str) -> Path:
    """Directory of a setting's run."""
    return work / "".join(c if c.isalnum() or c in "-." else "_" for c in name)


def run(name: str, data: Path, work: Path, minutes: float) -> None:
    """Train one setting, or go on with it."""
    words = [
        "train", "--dataset", str(data / f"{DATA}.hdf5"), "--preset", "fast",
        "--hours", str(minutes / 60), "--threads", "1", "--seed", "0",
        "--eval-every", "1000", "--eval-episodes", "20", "--checkpoint-every", "1000",
        "--no-tensorboard", "--quiet", "--resume", "--run-dir", str(place(work, name)),
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "pbrl.cli.main", *words, *SETTINGS[name]], check=True)


def measure(name: str, work: Path) -> dict[str, Any] | None:
    """What a finished run reached; None for one that is not there or not finished."""
    if not (place(work, name) / "summary.json").exists():
        return None
    finished = pbrl.Run.open(place(work, name))
    records = finished.metrics()
    evaluations = [r for r in records if r["kind"] == "eval"]
    trained = [r for r in records if r["kind"] == "train"]
    scores = [r["score_mean"] for r in evaluations]
    late = scores[-max(2, len(scores) // 4) :]
    rate = float(np.median([r["steps_per_second"] for r in trained]))
    return {
        "setting": name,
        "flags": SETTINGS[name],
        "data": DATA,
        "steps": finished.config.steps,
        "steps_per_second": round(rate, 2),
        "minutes_of_updates": round(finished.config.steps / rate / 60, 1),
        "score_last_mean": round(evaluations[-1]["score_mean"], 1),
        "score_last_std": round(evaluations[-1]["score_std"], 1),
        "score_mean_of_last_quarter": round(float(np.mean(late)), 1),
        "score_best_evaluation": round(max(scores), 1),
        "largest_drop_in_last_quarter": round(max(0.0, max(-np.diff(late))), 1),
        "episodes": 20,
        "curve": [
            (round(r["step"] / rate / 60, 2), round(r["score_mean"], 1)) for r in evaluations
        ],
    }


def write(rows: list[dict[str, Any]]) -> None:
    """JSON, a table and curves against minutes of updates."""
    (HERE / "settings.json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = [
        "Regenerated Hopper data (not D4RL's; its own score is about 44), one seed, one core,",
        "equal time for each, 20 episodes an evaluation.",
        "",
        "| setting | steps | steps/s | last | mean of the last quarter | best evaluation | "
        "largest drop in the last quarter |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r['setting']} | {r['steps']:,} | {r['steps_per_second']} | "
            f"{r['score_last_mean']} ± {r['score_last_std']} | {r['score_mean_of_last_quarter']} | "
            f"{r['score_best_evaluation']} | {r['largest_drop_in_last_quarter']} |"
        )
    (HERE / "settings.md").write_text("\n".join(lines) + "\n")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for r in rows:
        minutes, scores = zip(*r["curve"], strict=True)
        axes.plot(minutes, scores, label=r["setting"])
    axes.axhline(44, color="0.5", linestyle="--", label="data")
    axes.set(xlabel="minutes of updates on one core", ylabel="normalised score (20 episodes)")
    axes.set_title(f"{DATA}, one seed")
    axes.legend(fontsize=7)
    figure.savefig(HERE / "settings.png", dpi=100)


def main() -> None:
    """Train what is asked for, then write what is finished."""
    parser = argparse.ArgumentParser(description="Settings of PBRL at equal wall-clock.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    arguments = parser.parse_args()
    for name in arguments.only:
        run(name, arguments.data, arguments.work, arguments.minutes)
    write([row for name in SETTINGS if (row := measure(name, arguments.work))])


if __name__ == "__main__":
    main()
