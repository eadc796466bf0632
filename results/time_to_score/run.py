"""Score against wall-clock: what PBRL's ``fast`` preset is made of, and what it reaches.

    python results/time_to_score/run.py settings --data DIR --work WORK [--only "K=10" ...]
    python results/time_to_score/run.py preset --data DIR --work WORK [--only "fast hopper 0" ...]
    python results/time_to_score/run.py earlier --data DIR --work WORK

DIR holds hopper-medium-regen.hdf5 and halfcheetah-medium-regen.hdf5. ``settings`` changes one thing
at a time from the preset, on one core with 40 minutes asked for (36 are left for updates) and with
30; ``preset`` repeats it with other seeds, data and times, beside TD3+BC and CQL. A run measures
its speed first and fixes its steps, so that schedules span the run. Runs are kept in WORK: started
again, the script goes on where it was. Writes PART.{json,md,png} (``preset`` and ``settings`` also
their pictures in docs/images) from all runs that are finished, and from what the JSON has of
others: what the preset was before (``earlier``) is drawn again and not trained again. Its flags are
in the JSON; revision 0c48a57 was the last to have them all.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pbrl
from pbrl.evaluation.probe import probe

HERE = Path(__file__).resolve().parent
DATA_SCORE = {"hopper": 44, "halfcheetah": 41}  # of the regenerated sets themselves
PAPER = {"hopper": 75.3, "halfcheetah": 57.9}  # PBRL after 1M steps on D4RL's medium-v2


@dataclass(frozen=True)
class Trial:
    """One run of ``pbrl train``."""

    name: str
    flags: str = ""
    task: str = "hopper"
    seed: int = 0
    algorithm: str = "pbrl"
    preset: str = "fast"
    eval_every: int = 2000
    minutes: int = 30

    def place(self, work: Path) -> Path:
        """Its directory."""
        return (
            work
            / f"{self.minutes}min"
            / "".join(c if c.isalnum() or c in "-." else "_" for c in self.name)
        )


SETTINGS = [
    Trial(name + shown, flags, preset=preset, minutes=minutes)
    for minutes, shown in ((40, ""), (30, ", half an hour"))
    for name, flags, preset in (
        ("fast", "", "fast"),
        ("paper with N_ood=2", "--n-ood 2", "paper"),
        ("no cloning", "--cloning 0 --cloning-end 0", "fast"),
        ("cloning falls to 40", "--cloning-end 40", "fast"),
        ("no OOD draws", "--n-ood 0", "fast"),
        ("K=10", "--ensemble-size 10", "fast"),
    )
]
PRESET = [
    *(
        Trial(f"{name} {task} {seed}, two hours", "", task, seed, algorithm, preset, every, 120)
        for name, algorithm, preset, every, runs in (
            ("fast", "pbrl", "fast", 5000, (("hopper", (0, 1, 2)), ("halfcheetah", (0,)))),
            ("TD3+BC", "td3bc", "paper", 20_000, (("hopper", (0,)), ("halfcheetah", (0,)))),
            ("CQL", "cql", "paper", 1000, (("hopper", (0,)), ("halfcheetah", (0,)))),
        )
        for task, seeds in runs
        for seed in seeds
    ),
    *(Trial(f"fast hopper {seed}", seed=seed) for seed in range(3)),
    Trial("fast halfcheetah 0", task="halfcheetah"),
    # ../hopper has the first of Hopper.
    Trial("paper with N_ood=2, halfcheetah 0", "--n-ood 2", "halfcheetah", preset="paper"),
    Trial("CQL halfcheetah 0", "", "halfcheetah", algorithm="cql", preset="paper", eval_every=500),
]
IN_DOCS = {"preset": "hour.png", "settings": "hour-settings.png"}
PARTS = {"settings": SETTINGS, "preset": PRESET, "earlier": list[Trial]()}


def run(trial: Trial, data: Path, work: Path) -> None:
    """Train, or go on."""
    words = [
        "train", "--dataset", str(data / f"{trial.task}-medium-regen.hdf5"),
        "--algorithm", trial.algorithm, "--preset", trial.preset, "--seed", str(trial.seed),
        "--hours", str(trial.minutes / 60), "--threads", "1", "--eval-every", str(trial.eval_every),
        "--eval-episodes", "20", "--checkpoint-every", str(trial.eval_every // 2),
        "--no-tensorboard", "--quiet", "--resume", "--run-dir", str(trial.place(work)),
    ]  # fmt: skip
    flags = trial.flags.split()
    subprocess.run([sys.executable, "-m", "pbrl.cli.main", *words, *flags], check=True)


def measure(trial: Trial, work: Path) -> dict[str, Any] | None:
    """What a finished run reached; None for one that is not there or not finished."""
    if not (trial.place(work) / "summary.json").exists():
        return None
    finished = pbrl.Run.open(trial.place(work))
    records = finished.metrics()
    evaluations = [r for r in records if r["kind"] == "eval"]
    rate = float(np.median([r["steps_per_second"] for r in records if r["kind"] == "train"]))
    scores = [r["score_mean"] for r in evaluations]
    steps = finished.config.steps
    late = [r["score_mean"] for r in evaluations if r["step"] >= 0.75 * steps]
    row = {
        "run": trial.name,
        "flags": trial.flags,
        "task": trial.task,
        "algorithm": trial.algorithm,
        "preset": trial.preset,
        "seed": trial.seed,
        "steps": steps,
        "steps_per_second": round(rate, 2),
        "minutes_of_updates": round(steps / rate / 60, 1),
        "episodes": int(evaluations[-1]["episodes"]),
        "last": round(scores[-1], 1),
        "last_std": round(evaluations[-1]["score_std"], 1),
        "mean_of_last_quarter": round(float(np.mean(late)), 1),
        "best_evaluation": round(max(scores), 1),
        "largest_drop_in_last_quarter": round(float(max([0.0, *-np.diff(late)])), 1),
        "curve": [
            (round(r["step"] / rate / 60, 2), round(r["score_mean"], 1)) for r in evaluations
        ],
    }
    if finished.config.algorithm == "pbrl":
        kinds = probe(finished.agent(), finished.config.load_dataset(None))["kinds"]
        row["u"] = {kind: round(values["u_mean"], 3) for kind, values in kinds.items()}
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    lines = [
        "| run | steps | steps/s | minutes of updates | last (± over episodes) | "
        "mean of the last quarter | best evaluation | largest drop in the last quarter | "
        "U: data, noise 0.1, noise 0.5 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        u = r.get("u", {})
        shown = ", ".join(f"{u[k]:.3f}" for k in ("offline", "noise1", "noise2")) if u else ""
        lines.append(
            f"| {r['run']} | {r['steps']:,} | {r['steps_per_second']} | "
            f"{r['minutes_of_updates']} | {r['last']} ± "
            f"{r['last_std']} | {r['mean_of_last_quarter']} | {r['best_evaluation']} | "
            f"{r['largest_drop_in_last_quarter']} | {shown} |"
        )
    return lines


def over_seeds(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown: what rows that differ in their seed alone have in common."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault(re.sub(f" {r['seed']}(?=,|$)", "", r["run"], count=1), []).append(r)
    lines = [
        f"| {name} | {', '.join(str(r['seed']) for r in group)} | "
        + " | ".join(
            f"{np.mean(values):.1f} ({min(values)} to {max(values)})"
            for key in ("last", "mean_of_last_quarter")
            for values in [[r[key] for r in group]]
        )
        + f" | {max(r['largest_drop_in_last_quarter'] for r in group)} |"
        for name, group in groups.items()
        if len(group) > 1
    ]
    head = [
        "",
        "| over seeds | seeds | last: mean (range) | mean of the last quarter: mean (range) | "
        "largest drop in the last quarter |",
        "|---|---|---|---|---|",
    ]
    return [*head, *lines] if lines else []


def write(part: str, rows: list[dict[str, Any]]) -> None:
    """JSON, a table and curves against minutes of updates."""
    (HERE / f"{part}.json").write_text(json.dumps(rows, indent=1) + "\n")
    head = [
        "Regenerated data (not D4RL's), one core, 20 episodes an evaluation. A run fixes its steps",
        "by the speed measured at its start, on a shared machine: the minutes its updates took",
        "differ from those asked for.",
        "The data's own scores: Hopper 44, HalfCheetah 41; PBRL in the paper, after 1M steps on",
        "D4RL's medium-v2: 75.3 and 57.9.",
        "",
    ]
    (HERE / f"{part}.md").write_text("\n".join([*head, *table(rows), *over_seeds(rows)]) + "\n")
    from matplotlib.figure import Figure

    tasks = [task for task in DATA_SCORE if any(r["task"] == task for r in rows)]
    figure = Figure(figsize=(max(8, 6 * len(tasks)), 5 + len(rows) // 8), layout="constrained")
    colours: dict[str, str] = {}  # seeds share theirs, and tasks; half an hour is dashed
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        labelled: set[str] = set()
        for r in rows:
            if r["task"] == task:
                minutes, scores = zip(*r["curve"], strict=True)
                name = re.sub(f",? {task} [0-9]+", "", r["run"])
                if part == "preset" and not name.endswith("two hours"):
                    name += ", half an hour"
                setting = name.removesuffix(", half an hour")
                colour = colours.setdefault(setting, f"C{len(colours) % 10}")
                solid = name == setting and list(colours).index(setting) < 10
                style = "-" if solid else "--"
                label = None if name in labelled else textwrap.fill(name, 48)
                axes.plot(minutes, scores, style, color=colour, label=label)
                labelled.add(name)
        if part == "preset" and task == "hopper":  # a run of another length, from ../hopper
            longer = json.loads((HERE.parent / "hopper/hopper60k.json").read_text())
            minutes = [step / longer["steps_per_second"] / 60 for step, *_ in longer["curve"]]
            scores = [score for _, score, *_ in longer["curve"]]
            label = "paper's settings, N_ood=2, of 130 minutes"
            axes.plot(minutes, scores, "-.", linewidth=1, color="C7", label=label)
        axes.set_xlim(0)
        axes.axhline(DATA_SCORE[task], color="0.5", linestyle="--", label="data")
        axes.axhline(PAPER[task], color="0.5", linestyle=":", label="paper, D4RL, 1M steps")
        axes.set(xlabel="minutes of updates on one core", title=f"{task}-medium-regen")
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    figure.axes[0].set_ylabel("normalised score")
    figure.savefig(HERE / f"{part}.png", dpi=100)
    if part in IN_DOCS:
        figure.savefig(HERE.parents[1] / "docs/images" / IN_DOCS[part], dpi=100)


def main() -> None:
    """Train what is asked for, then write what is finished."""
    parser = argparse.ArgumentParser(description="Score against wall-clock.")
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of runs; none: only write the tables")
    arguments = parser.parse_args()
    trials = PARTS[arguments.part]
    unknown = set(arguments.only or ()) - {trial.name for trial in trials}
    if unknown:
        parser.error(f"no such run: {sorted(unknown)}; there are {[t.name for t in trials]}")
    for trial in trials:
        if arguments.only is None or trial.name in arguments.only:
            run(trial, arguments.data, arguments.work)
    kept = {row["run"]: row for row in json.loads((HERE / f"{arguments.part}.json").read_text())}
    rows = {trial.name: measure(trial, arguments.work) or kept.get(trial.name) for trial in trials}
    rows |= {name: row for name, row in kept.items() if name not in rows}
    write(arguments.part, [row for row in rows.values() if row])


if __name__ == "__main__":
    main()
