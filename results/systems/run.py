"""The compared systems on regenerated data, one seed each, beside the paper's numbers.

    python results/systems/run.py --data DIR --work WORK [--only td3bc-hopper ...]

DIR holds hopper-medium-regen.hdf5 and halfcheetah-medium-regen.hdf5. Runs are kept in WORK:
started again, the script goes on where it was. Writes systems.json, systems.md and systems.png from
all runs that are finished.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import pbrl
from pbrl.experiments import paper

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class System:
    """One run: its algorithm, task and length, and where it departs from the authors' settings."""

    algorithm: str
    task: str
    steps: int
    paper_name: str | None
    settings: dict[str, Any] = field(default_factory=dict)
    smaller: str = ""

    @property
    def name(self) -> str:
        """Of its directory and on the command line."""
        return f"{self.algorithm}-{self.task}"


SYSTEMS = [
    System("bc", "hopper", 100_000, "BC"),
    System("bc", "halfcheetah", 100_000, "BC"),
    System("td3bc", "hopper", 100_000, "TD3-BC"),
    System("td3bc", "halfcheetah", 100_000, "TD3-BC"),
    System("mopo", "hopper", 5_000, "MOPO", {"rollout_batch": 10_000},
           "rollouts of 10,000, not 50,000"),
    System("uwac", "hopper", 5_000, "UWAC", {"mc_passes": 5}, "5 Monte Carlo passes, not 100"),
    System("bear", "hopper", 20_000, "BEAR"),
    System("sac-n", "hopper", 20_000, None, {"ensemble_size": 10}, "10 critics, not 500"),
    System("edac", "hopper", 20_000, None, {"ensemble_size": 10}, "10 critics, not 50"),
    System("cql", "hopper", 20_000, "CQL"),
]  # fmt: skip


def run(system: System, data: Path, work: Path) -> None:
    """Train, or go on."""
    pbrl.train(
        data / f"{system.task}-medium-regen.hdf5",
        algorithm=system.algorithm,
        run_dir=work / system.name,
        steps=system.steps,
        seed=0,
        threads=1,
        eval_every=max(1000, system.steps // 20),
        eval_episodes=10,
        checkpoint_every=1000,
        tensorboard=False,
        resume=True,
        quiet=True,
        **system.settings,
    )


def measure(system: System, work: Path) -> dict[str, Any] | None:
    """What a finished run reached; None for one that is not there or not finished."""
    place = work / system.name
    if not (place / "summary.json").exists():
        return None
    finished = pbrl.Run.open(place)
    evaluations = [r for r in finished.metrics() if r["kind"] == "eval"]
    assert finished.env_id is not None
    evaluator = pbrl.Evaluator(finished.env_id, finished.reference_scores)
    last = evaluator.evaluate(finished.agent().act, 20, seed=1000)
    evaluator.close()
    scores = last.scores
    assert scores is not None
    rates = [r["steps_per_second"] for r in finished.metrics() if r["kind"] == "train"]
    cell = (
        paper.cell_of("table1", f"{system.task}-medium-v2", system.paper_name)
        if system.paper_name
        else None
    )
    return {
        "system": system.algorithm,
        "data": f"{system.task}-medium-regen",
        "steps": system.steps,
        "seed": 0,
        "smaller_than_official": system.smaller,
        "settings": system.settings,
        "score_last_mean": round(float(np.mean(scores)), 1),
        "score_last_std": round(float(np.std(scores)), 1),
        "episodes": 20,
        "score_best_evaluation": round(max(r["score_mean"] for r in evaluations), 1),
        "curve": [(r["step"], round(r["score_mean"], 1)) for r in evaluations],
        "steps_per_second": round(float(np.median(rates)), 1),
        "paper_score": None if cell is None else cell.mean,
    }


def write(rows: list[dict[str, Any]]) -> None:
    """JSON, a table and learning curves."""
    (HERE / "systems.json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = [
        "Regenerated data (not D4RL's), one seed, 20 episodes at the end; the paper's column is",
        "its Table 1 on D4RL's medium-v2 sets after one million steps.",
        "",
        "| system | data | steps | last score | best evaluation | paper | smaller than official |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        printed = "not in it" if r["paper_score"] is None else r["paper_score"]
        lines.append(
            f"| {r['system']} | {r['data']} | {r['steps']:,} | {r['score_last_mean']} ± "
            f"{r['score_last_std']} | {r['score_best_evaluation']} | {printed} | "
            f"{r['smaller_than_official']} |"
        )
    (HERE / "systems.md").write_text("\n".join(lines) + "\n")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    tasks = (("hopper", 44.0), ("halfcheetah", 41.0))
    for axis, (task, score) in zip(figure.subplots(1, 2), tasks, strict=True):
        for r in rows:
            if r["data"].startswith(task):
                steps, scores = zip(*r["curve"], strict=True)
                axis.plot(
                    np.array(steps) / r["steps"], scores, label=f"{r['system']} {r['steps']:,}"
                )
        axis.axhline(score, color="0.5", linestyle="--", label="data")
        axis.set(title=f"{task}-medium-regen", xlabel="share of the run's steps")
        axis.legend(fontsize=7)
    figure.axes[0].set_ylabel("normalised score (10 episodes)")
    figure.savefig(HERE / "systems.png", dpi=100)


def main() -> None:
    """Train what is asked for, then write what is finished."""
    parser = argparse.ArgumentParser(description="The compared systems on regenerated data.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[s.name for s in SYSTEMS])
    arguments = parser.parse_args()
    for system in SYSTEMS:
        if system.name in arguments.only:
            run(system, arguments.data, arguments.work)
    write([row for system in SYSTEMS if (row := measure(system, arguments.work))])


if __name__ == "__main__":
    main()
