"""Runs as a report sees them: systems by what differs in their settings, curves, costs, origins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.errors import PbrlError
from pbrl.experiments.collect_results import RunResult, read_result
from pbrl.experiments.observe import PROBE_CURVES
from pbrl.training.config import TrainConfig, to_json
from pbrl.training.purposes import names_of
from pbrl.training.run import CONFIG, Run

# Metrics of training that show Q and U of data, policy and random actions.
KINDS = ("data", "policy", "random")
PROBED = ("offline", "policy", "random", "noise1", "noise2")
# A longer name of a system gives way to a number, and stands once in a list.
LONGEST_NAME = 32


@dataclass(frozen=True)
class ReportRun:
    """One run of a report.

    Attributes:
        result: its scores and metrics, under its system's name.
        described: that name in full: the algorithm and the settings in which it differs.
        finished: whether it reached its last step.
        steps: gradient steps of the whole run.
        steps_per_second: median over its records.
        evaluation_seconds: in all.
        probes: U and Q of five kinds of actions, where they were looked up: quantity -> curve.
    """

    result: RunResult
    described: str
    finished: bool
    steps: int
    steps_per_second: float | None
    evaluation_seconds: float
    probes: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def info(self) -> dict[str, Any]:
        """The run's config.json."""
        return self.result.run.info


def find_run_directories(places: Sequence[Path]) -> list[Path]:
    """Run directories among ``places`` and below them, each once."""
    found: dict[Path, None] = {}
    for place in places:
        if not place.exists():
            raise PbrlError(f"No file or directory '{place}'.")
        below = sorted(file.parent for file in place.glob(f"**/{CONFIG}"))
        if not below:
            raise PbrlError(f"'{place}' is no pbrl run and has none below it (no {CONFIG}).")
        for path in below:
            found[path.resolve()] = None
    return list(found)


def read_runs(directories: Iterable[Path]) -> list[ReportRun]:
    """Read runs and name their systems."""
    runs = [Run.open(path) for path in directories]
    labels = system_labels(runs)
    names = short_names(labels)
    return [_read(run, names[label], label) for run, label in zip(runs, labels, strict=True)]


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """A name that fits a table and a legend for every label: itself, or the algorithm, numbered."""
    names: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for label in dict.fromkeys(labels):
        algorithm = label.split(" ")[0]
        if len(label) > LONGEST_NAME:
            numbers[algorithm] += 1
            names[label] = f"{algorithm} #{numbers[algorithm]}"
        else:
            names[label] = label
    return names


def system_labels(runs: Sequence[Run]) -> list[str]:
    """The algorithm, with the settings in which a run departs from most runs of that algorithm."""
    flat = [_flat(run) for run in runs]
    labels = []
    for mine in flat:
        peers = [other for other in flat if other["algorithm"] == mine["algorithm"]]
        changed = [
            f"{name}={_text(mine[name])}"
            for name in mine
            if json.dumps(mine[name]) != _usual([peer.get(name) for peer in peers])
        ]
        labels.append(mine["algorithm"] + (f" ({', '.join(changed)})" if changed else ""))
    return labels


def _usual(values: Sequence[Any]) -> str | None:
    """The value most runs have, as JSON; None where two are equally common."""
    (first, count), *others = Counter(json.dumps(value) for value in values).most_common(2)
    return None if others and others[0][1] == count else first


def _flat(run: Run) -> dict[str, Any]:
    """What decides a run's result; a seed repeats a system, it does not make another."""
    values = to_json(run.config)
    own: Mapping[str, Any] = values["settings"]
    names = (name for name in names_of(TrainConfig, "result") if name not in ("seed", "settings"))
    return {**{name: values[name] for name in names}, **own}


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _read(run: Run, name: str, described: str) -> ReportRun:
    names = [f"{what}_{kind}" for kind in KINDS for what in ("q", "u")]
    result = read_result(name, run.info["data"]["name"], run, names)
    records = run.metrics()
    rates = [r["steps_per_second"] for r in records if "steps_per_second" in r]
    probes: dict[str, list[tuple[int, float]]] = {}
    file = run.path / PROBE_CURVES
    if file.exists():
        for record in json.loads(file.read_text()):
            for kind in PROBED:
                for what in ("u", "q"):
                    curve = probes.setdefault(f"{what}_{kind}", [])
                    curve.append(
                        (int(record["step"]), float(record["kinds"][kind][f"{what}_mean"]))
                    )
    return ReportRun(
        result,
        described,
        run.summary is not None,
        run.config.steps,
        float(np.median(rates)) if rates else None,
        float(sum(r.get("evaluation_seconds", 0.0) for r in records)),
        probes,
    )
