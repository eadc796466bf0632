"""``pbrl reproduce table1 --budget hour``: systems at an equal time on one core, on fifteen sets.

The time is counted in steps, by speeds that were measured once (``pbrl.experiments.speeds``), so
that a busy machine changes no result.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pbrl.collect.suite import sets_of
from pbrl.errors import PbrlError
from pbrl.evaluation.noise import Noise
from pbrl.evaluation.probe import probe
from pbrl.evaluation.rollout import Evaluator
from pbrl.experiments.budgets import Budget, Plan
from pbrl.experiments.collect_results import RunResult
from pbrl.experiments.definitions import GYM, Experiment, Variant
from pbrl.experiments.hour_table import EPISODES, NOISE, draw
from pbrl.experiments.observe import kept_steps
from pbrl.experiments.speeds import speed_of
from pbrl.sweep.jobs import Data
from pbrl.training.config import TrainConfig, make_config
from pbrl.training.files import write_json
from pbrl.training.guard_of_run import training_dataset
from pbrl.training.run import Run

MINUTES = 30.0
EVALUATIONS = 10
ROBUSTNESS = "robustness.json"

HOUR = Budget(
    "hour",
    "table1 on the sets of a suite (--suite): every system half an hour of one core, in steps",
    seeds=1,
    preset="fast",
)
SYSTEMS = (
    Variant("PBRL-Anchored", "pbrl-anchored"),
    Variant("TD3-BC", "td3bc"),
    Variant("ReBRAC", "rebrac"),
    Variant("IQL", "iql"),
    Variant("BC", "bc"),
)


HOUR_TABLE = Experiment(
    "table1",
    "Normalised scores on Gym sets at an equal time on one core",
    "Table 1",
    "PBRL averages 74.37 as printed, after a million steps on D4RL's own sets",
    draw,
    SYSTEMS,
    GYM,
    table="table1",
)


def suite_datasets(suite: Path | None, datasets: Sequence[str]) -> tuple[str, ...]:
    """The data of the command's words: a whole suite, or names."""
    if suite is None:
        return tuple(datasets)
    if datasets:
        raise PbrlError("--suite and --datasets both name the data; give one of them.")
    return tuple(map(str, sets_of(suite.expanduser())))


def make_hour_plan(
    datasets: Sequence[str], seeds: int = 0, minutes: float = MINUTES, download: bool = True
) -> Plan:
    """Every system on every set, for as many steps as it makes in ``minutes`` on a quiet core.

    Args:
        datasets: names or paths, in the order of the table.
        seeds: of every system; 1 when 0.
        minutes: of updates; evaluations come on top.
        download: fetch D4RL files that are not here yet.
    """
    if not 0 < minutes < float("inf"):
        raise PbrlError(f"--minutes must be a positive number, got {minutes:g}.")
    if seeds < 0:
        raise PbrlError(f"--seeds must not be negative, got {seeds}.")
    if not datasets:
        raise PbrlError(
            "The hour budget compares on the sets of a suite: make them with 'pbrl data suite "
            "d4rl-gym --out DIR' and give --suite DIR, or name other data with --datasets."
        )
    data, seeds, planned = Data(download), seeds or 1, []
    told: dict[str, dict[str, int]] = {}
    for variant in SYSTEMS:
        for dataset in datasets:
            first = make_config(variant.algorithm, "fast", dataset)
            _, s, a = data.describe(first)
            speed = speed_of(variant.algorithm, s, a)
            steps = steps_in(minutes, speed)
            told.setdefault(variant.label, {})[f"{s}x{a}"] = steps
            planned += [
                (variant.label, _config(variant, dataset, steps, seed)) for seed in range(seeds)
            ]
    numbers = "; ".join(
        f"{label} {', '.join(f'{steps:,} ({shape})' for shape, steps in by.items())}"
        for label, by in told.items()
    )
    return Plan(
        HOUR_TABLE,
        HOUR,
        tuple(planned),
        tuple(datasets),
        seeds,
        (
            f"budget 'hour', not the paper's protocol: preset fast, {minutes:g} minutes of updates "
            f"of one quiet core a run (paper: 1,000,000 steps), in steps: {numbers}",
            f"{seeds} seed{'s' * (seeds > 1)} (paper: 5), last policy, {EPISODES} episodes",
            "the paper's numbers are for D4RL's own sets",
        ),
        (),
    )


def steps_in(minutes: float, speed: float) -> int:
    """Steps of an equal time, in whole hundreds (tens, where there are few)."""
    unit = 100 if minutes * 60 * speed >= 1000 else 10
    return max(10, round(minutes * 60 * speed / unit) * unit)


def _config(variant: Variant, dataset: str, steps: int, seed: int) -> TrainConfig:
    every = max(1, steps // EVALUATIONS)
    return make_config(
        variant.algorithm,
        "fast",
        dataset,
        **{
            "steps": steps,
            "seed": seed,
            "eval_every": every,
            "eval_episodes": EPISODES,
            "checkpoint_every": every,
            "log_every": max(1, steps // 100),
            "tensorboard": False,
            **variant.settings,
        },
    )


# ---------------------------------------------------------------------------- looking at runs


def observed(result: RunResult) -> RunResult:
    """A result with the score under noise and U of its last policy, kept beside the run."""
    run, file = result.run, result.run.path / ROBUSTNESS
    step = kept_steps(run)[-1]
    wanted = {"step": step, "noise": NOISE, "episodes": EPISODES}
    stored = json.loads(file.read_text()) if file.exists() else {}
    if {key: stored.get(key) for key in wanted} != wanted:
        stored = wanted | _look(run, step)
        write_json(file, stored)
    found = {name: [(step, float(value))] for name, value in stored["values"].items()}
    return dataclasses.replace(result, quantities={**result.quantities, **found})


def _look(run: Run, step: int) -> dict[str, Any]:
    agent, data = run.agent(step), training_dataset(run.info)
    values: dict[str, float] = {}
    if run.env_id is not None:
        evaluator = Evaluator(run.env_id, run.reference_scores)
        noisy = evaluator.evaluate(agent.act, EPISODES, step, Noise.of(data, NOISE, NOISE))
        evaluator.close()
        summary = noisy.summary()
        values["noisy"] = summary.get("score_mean", summary["return_mean"])
    if agent.algorithm.has_critics:
        kinds = probe(agent, data, rows=1024, seed=0)["kinds"]
        values |= {f"u/{kind}": kinds[kind]["u_mean"] for kind in ("offline", "noise1", "noise2")}
    return {"values": values}
