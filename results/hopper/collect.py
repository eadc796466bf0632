"""Learning curve and the five kinds of actions of a PBRL run on regenerated Hopper data.

    pbrl train --dataset hopper-medium-regen.hdf5 --preset fast --steps 60000 --threads 1 \
        --keep-every 10000 --run-dir RUN
    python results/hopper/collect.py RUN [--dataset hopper-medium-regen.hdf5]

Writes NAME.json and NAME.png beside this file, NAME being the run's directory.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import pbrl
from pbrl.evaluation.probe import probe

HERE = Path(__file__).resolve().parent


def collect(run: pbrl.Run, dataset: pbrl.TransitionDataset) -> dict[str, Any]:
    """Curve, last and best score, stability, and U and Q of five kinds of actions at the end."""
    records = run.metrics()
    evaluations = [r for r in records if r["kind"] == "eval"]
    trained = [r for r in records if r["kind"] == "train"]
    scores = [r["score_mean"] for r in evaluations]
    late = scores[-max(2, len(scores) // 4) :]
    low, high = run.reference_scores or (0.0, 100.0)
    kinds = probe(run.agent(), dataset)["kinds"]
    return {
        "data": dataset.info.name,
        "data_score": round(
            float(100 * (dataset.episode_returns().mean() - low) / (high - low)), 1
        ),
        "algorithm": run.config.algorithm,
        "preset": run.config.preset,
        "steps": run.config.steps,
        "seed": run.config.seed,
        "steps_per_second": round(float(np.median([r["steps_per_second"] for r in trained])), 2),
        "score_last_mean": round(evaluations[-1]["score_mean"], 1),
        "score_last_std": round(evaluations[-1]["score_std"], 1),
        "score_last_episodes": int(evaluations[-1]["episodes"]),
        "score_mean_of_last_quarter": round(float(np.mean(late)), 1),
        "score_best_evaluation": round(max(scores), 1),
        "largest_drop_in_last_quarter": round(float(max(0.0, max(-np.diff(late)))), 1),
        "kinds": {
            kind: {"u_mean": round(v["u_mean"], 4), "q_mean": round(v["q_mean"], 2)}
            for kind, v in kinds.items()
        },
        "curve": [
            (r["step"], round(r["score_mean"], 1), round(r["score_std"], 1)) for r in evaluations
        ],
        "uncertainty": [
            (r["step"], *(round(r[f"u_{k}"], 3) for k in ("data", "policy", "random")))
            for r in trained
        ],
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """Score, U on the way, and U and Q of five kinds at the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    steps, mean, std = (np.array(x) for x in zip(*result["curve"], strict=True))
    thousands = steps / 1000
    left.plot(thousands, mean)
    left.fill_between(thousands, mean - std, mean + std, alpha=0.2)
    left.axhline(result["data_score"], color="0.5", linestyle="--", label="data")
    left.set(xlabel="thousand gradient steps", ylabel="normalised score", title=result["data"])
    left.legend()
    uncertainty = np.array(result["uncertainty"])  # [records, 4]
    for column, label in enumerate(("data", "policy", "random"), 1):
        middle.plot(uncertainty[:, 0] / 1000, uncertainty[:, column], label=label)
    middle.set(xlabel="thousand gradient steps", title="U of three kinds of actions")
    middle.legend()
    kinds = list(result["kinds"])
    positions = np.arange(len(kinds))
    right.barh(positions - 0.2, [result["kinds"][k]["u_mean"] for k in kinds], 0.4, color="C0")
    twin = right.twiny()
    twin.barh(positions + 0.2, [result["kinds"][k]["q_mean"] for k in kinds], 0.4, color="C1")
    right.set(yticks=positions, yticklabels=kinds)
    right.set_xlabel("U at the end", color="C0")
    twin.set_xlabel("mean Q at the end", color="C1")
    right.invert_yaxis()
    figure.savefig(path, dpi=100)


def main() -> None:
    """Read the run, write its figures."""
    parser = argparse.ArgumentParser(description="Figures of a Hopper run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--dataset", default=None, help="where the run's data are now")
    arguments = parser.parse_args()
    run = pbrl.Run.open(arguments.run)
    result = collect(run, run.config.load_dataset(arguments.dataset))
    name = arguments.run.resolve().name
    (HERE / f"{name}.json").write_text(json.dumps(result) + "\n")
    draw(result, HERE / f"{name}.png")
    print({k: v for k, v in result.items() if k not in ("curve", "uncertainty")})


if __name__ == "__main__":
    main()
