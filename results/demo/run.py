"""Makes demo.json and demo.png: python results/demo/run.py [--jobs N]

Trains the demo (``pbrl.train()``: embedded dataset, demo preset) at five seeds, and beside it the
same with n_ood = 0 and with beta_in = 0. Runs that are finished are not trained again.
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
SEEDS = range(5)
VARIANTS: dict[str, dict[str, Any]] = {
    "PBRL": {},
    "n_ood = 0": {"n_ood": 0},
    "beta_in = 0": {"beta_in": 0.0},
}
EPISODES = 20


def train(variant: str, seed: int, work: Path) -> None:
    """One run, with its final evaluation and the seconds it took."""
    name = variant.replace(" ", "").replace("=", "-")
    pbrl.train(
        seed=seed,
        run_dir=work / f"{name}-seed{seed}",
        threads=1,
        tensorboard=False,
        resume=True,
        quiet=True,
        **VARIANTS[variant],
    )


def measure(variant: str, seed: int, work: Path) -> dict[str, Any]:
    """Final return over 20 episodes, the learning curve, and U of three kinds of actions."""
    name = variant.replace(" ", "").replace("=", "-")
    run = pbrl.Run.open(work / f"{name}-seed{seed}")
    agent = run.agent()
    env_id = run.env_id
    assert env_id is not None
    evaluator = pbrl.Evaluator(env_id, run.reference_scores)
    result = evaluator.evaluate(agent.act, EPISODES, seed=1000 + seed)
    evaluator.close()
    curve = [
        (record["step"], round(record["return_mean"], 1))
        for record in run.metrics()
        if record["kind"] == "eval"
    ]
    last = [record for record in run.metrics() if record["kind"] == "train"][-1]
    return {
        "seed": seed,
        "return_mean": round(float(result.returns.mean()), 1),
        "return_std": round(float(result.returns.std()), 1),
        "score_mean": round(float(np.mean(result.scores)), 1)
        if result.scores is not None
        else None,
        "curve": curve,
        "u": {kind: round(last[f"u_{kind}"], 3) for kind in ("data", "policy", "random")},
    }


def table(work: Path) -> dict[str, Any]:
    """All runs, and whether each beats the data by 30 % of the gap to the expert."""
    dataset = pbrl.load_dataset()
    assert dataset.info.reference_scores is not None
    behaviour = float(dataset.episode_returns().mean())
    random, expert = dataset.info.reference_scores
    goal = behaviour + 0.3 * (expert - behaviour)
    runs = {name: [measure(name, seed, work) for seed in SEEDS] for name in VARIANTS}
    return {
        "command": "python results/demo/run.py",
        "data": {
            "name": dataset.info.name,
            "env_id": dataset.info.env_id,
            "transitions": len(dataset),
            "return_mean": round(behaviour, 1),
            "random_return": round(random, 1),
            "expert_return": round(expert, 1),
        },
        "episodes": EPISODES,
        "goal": round(goal, 1),
        "goal_reached_by": {
            name: sum(entry["return_mean"] >= goal for entry in entries)
            for name, entries in runs.items()
        },
        "runs": runs,
    }


def draw(results: dict[str, Any], path: Path) -> None:
    """Learning curves of all seeds, with the data's and the expert's returns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
    for axis, (name, entries) in zip(axes, results["runs"].items(), strict=True):
        for entry in entries:
            steps, returns = zip(*entry["curve"], strict=True)
            axis.plot(steps, returns, color="tab:blue", alpha=0.6, linewidth=1.5)
        axis.axhline(results["data"]["return_mean"], color="tab:red", linestyle="--", label="data")
        axis.axhline(results["goal"], color="tab:orange", linestyle=":", label="goal")
        axis.axhline(results["data"]["expert_return"], color="tab:green", label="expert")
        axis.set_title(name)
        axis.set_xlabel("gradient steps")
    axes[0].set_ylabel("return")
    axes[0].legend(loc="center left", fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Train what is missing, then write table and picture."""
    parser = argparse.ArgumentParser(description="The demo at five seeds, with two ablations.")
    parser.add_argument("--work", type=Path, default=Path("runs/demo-table"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--only", nargs=2, metavar=("VARIANT", "SEED"), help="train this run only")
    options = parser.parse_args()
    if options.only:
        train(options.only[0], int(options.only[1]), options.work)
        return
    waiting = [(name, seed) for name in VARIANTS for seed in SEEDS]
    while waiting:
        batch, waiting = waiting[: options.jobs], waiting[options.jobs :]
        command = [sys.executable, __file__, "--work", str(options.work), "--only"]
        processes = [subprocess.Popen([*command, name, str(seed)]) for name, seed in batch]
        if any(process.wait() for process in processes):
            raise SystemExit(f"A run of {batch} failed.")
    results = table(options.work)
    (HERE / "demo.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, HERE / "demo.png")
    for name, entries in results["runs"].items():
        returns = "  ".join(f"{entry['return_mean']:8.1f}" for entry in entries)
        print(f"{name:12} {returns}   goal reached: {results['goal_reached_by'][name]} of 5")


if __name__ == "__main__":
    main()
