"""What an experiment trains on a given budget, and an honest list of what was reduced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from pbrl.algorithms import ALGORITHMS
from pbrl.errors import PbrlError
from pbrl.experiments.definitions import WALKER, Experiment, Variant
from pbrl.training.config import TrainConfig, make_config, to_json
from pbrl.training.purposes import names_of

BudgetName = Literal["paper", "small", "smoke"]


@dataclass(frozen=True)
class Budget:
    """How much of the paper's protocol is run.

    Attributes:
        name: for the command line.
        purpose: one line.
        seeds: None: the paper's number.
        datasets: None: the paper's.
        preset: None: the paper's.
        settings: of the run or, where an algorithm has them, of the algorithm.
    """

    name: str
    purpose: str
    seeds: int | None = None
    datasets: tuple[str, ...] | None = None
    preset: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()


BUDGETS: dict[str, Budget] = {
    "paper": Budget("paper", "the paper's protocol to the letter; for a cluster"),
    "small": Budget(
        "small",
        "small networks and short runs, three seeds, on the embedded data unless told otherwise",
        seeds=3,
        datasets=("demo",),
        preset="demo",
        settings=(
            ("steps", 4000),
            ("eval_every", 500),
            ("eval_episodes", 5),
            ("log_every", 250),
            ("checkpoint_every", 500),
            ("keep_every", 500),
            ("tensorboard", False),
        ),
    ),
    "smoke": Budget(
        "smoke",
        "a minute: proves that everything works, shows nothing",
        seeds=2,
        datasets=("demo",),
        preset="demo",
        settings=(
            ("steps", 20),
            ("eval_every", 10),
            ("eval_episodes", 1),
            ("log_every", 5),
            ("checkpoint_every", 10),
            ("keep_every", 10),
            ("tensorboard", False),
            ("batch_size", 32),
            ("hidden", (16,)),
            ("policy_hidden", (16,)),
        ),
    ),
}


@dataclass(frozen=True)
class Plan:
    """What to train for an experiment.

    Attributes:
        experiment: which.
        budget: on which budget.
        planned: label and settings of every run.
        datasets: in the order of the figure.
        seeds: of every variant.
        reductions: how this differs from the paper's protocol, in sentences.
        missing: systems of the paper that cannot be trained here.
    """

    experiment: Experiment
    budget: Budget
    planned: tuple[tuple[str, TrainConfig], ...]
    datasets: tuple[str, ...]
    seeds: int
    reductions: tuple[str, ...]
    missing: tuple[str, ...]


def make_plan(
    experiment: Experiment,
    budget: str = "small",
    datasets: Sequence[str] = (),
    seeds: int = 0,
) -> Plan:
    """The runs of ``experiment`` on ``budget``.

    Args:
        experiment: what to reproduce.
        budget: ``paper``, ``small`` or ``smoke``.
        datasets: other data than the budget's.
        seeds: another number of seeds than the budget's.
    """
    chosen = BUDGETS[budget]
    if seeds < 0:
        raise PbrlError(f"--seeds must not be negative, got {seeds}.")
    where = tuple(datasets) or chosen.datasets or experiment.datasets
    count = seeds or chosen.seeds or experiment.seeds
    known = [variant for variant in experiment.variants if variant.algorithm in ALGORITHMS]
    missing = [v.label for v in experiment.variants if v.algorithm not in ALGORITHMS]
    planned, differences = [], []
    for variant in known:
        for dataset in where:
            first = _config(experiment, chosen, variant, dataset)
            planned += [(variant.label, replace(first, seed=seed)) for seed in range(count)]
            found = _differences(experiment, variant, first)
            differences.append((variant.algorithm, found))
    return Plan(
        experiment,
        chosen,
        tuple(planned),
        where,
        count,
        tuple(_reductions(experiment, chosen, where, count, differences)),
        tuple(missing),
    )


def _config(experiment: Experiment, budget: Budget, variant: Variant, dataset: str) -> TrainConfig:
    cls = ALGORITHMS[variant.algorithm]
    preset = budget.preset or experiment.preset
    if preset not in cls.presets:
        preset = "paper"
    run_fields = {f.name for f in fields(TrainConfig)}
    own_fields = {f.name for f in fields(cls.Config)}
    settings = {k: v for k, v in budget.settings if k in run_fields | own_fields}
    ours = variant.algorithm in ("pbrl", "pbrl-ablations")
    if budget.name == "paper" and ours and dataset in WALKER:
        # Fig. 3 and appendix D look back at these; the same everywhere, so that runs are shared.
        settings["keep_every"] = 50_000
    return make_config(variant.algorithm, preset, dataset, **{**settings, **variant.settings})


def _differences(
    experiment: Experiment, variant: Variant, config: TrainConfig
) -> dict[str, tuple[Any, Any]]:
    """Settings of a run that the paper's protocol has otherwise: name -> (ours, the paper's)."""
    cls = ALGORITHMS[variant.algorithm]
    preset = experiment.preset if experiment.preset in cls.presets else "paper"
    theirs = make_config(variant.algorithm, preset, config.dataset, **variant.settings)
    ours_json, theirs_json = to_json(config), to_json(theirs)
    own, paper = ours_json.pop("settings"), theirs_json.pop("settings")
    names = [name for name in names_of(TrainConfig, "result", "score") if name in ours_json]
    pairs = [(name, ours_json[name], theirs_json[name]) for name in names]
    pairs += [(name, own[name], paper[name]) for name in own]
    return {name: (mine, its) for name, mine, its in pairs if mine != its}


def _reductions(
    experiment: Experiment,
    budget: Budget,
    datasets: Sequence[str],
    seeds: int,
    differences: Iterable[tuple[str, dict[str, tuple[Any, Any]]]],
) -> list[str]:
    out = []
    if tuple(datasets) != experiment.datasets:
        names = ", ".join(Path(name).name for name in datasets)
        out.append(f"data: {names} (paper: {_short(experiment.datasets)})")
    if seeds != experiment.seeds:
        out.append(f"{seeds} seeds (paper: {experiment.seeds})")
    merged: dict[tuple[str, str, str], set[str]] = {}
    algorithms = set()
    for algorithm, found in differences:
        algorithms.add(algorithm)
        for name, (ours, theirs) in found.items():
            merged.setdefault((name, _text(ours), _text(theirs)), set()).add(algorithm)
    for (name, ours, theirs), whose in merged.items():
        only = "" if whose == algorithms else f"{', '.join(sorted(whose))}: "
        out.append(f"{only}{name} {ours} (paper: {theirs})")
    if out:
        out.insert(0, f"budget '{budget.name}', not the paper's protocol")
    return out


def _short(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{len(names)} D4RL sets"


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "x".join(str(v) for v in value) if isinstance(value, list) else str(value)
