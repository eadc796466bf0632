"""From finished runs to the numbers of a figure: curves over steps, last and best scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.formats import stem_of
from pbrl.training.run import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Mean and deviation over seeds.

    Attributes:
        steps: ``[P]``.
        mean: ``[P]``.
        std: ``[P]``, population deviation over seeds.
        seeds: how many runs it stands on.
    """

    steps: Floats
    mean: Floats
    std: Floats
    seeds: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, four digits."""
        return {
            "steps": [int(step) for step in self.steps],
            "mean": [float(f"{value:.5g}") for value in self.mean],
            "std": [float(f"{value:.4g}") for value in self.std],
            "seeds": self.seeds,
        }


@dataclass(frozen=True)
class RunResult:
    """One run of a figure.

    Attributes:
        label: of its variant.
        dataset: its name.
        seed: its seed.
        run: its directory.
        scores: (step, normalised score, or return where there is none).
        normalised: whether these are normalised scores.
        quantities: metric -> (step, value), of training or looked up afterwards.
    """

    label: str
    dataset: str
    seed: int
    run: Run
    scores: tuple[tuple[int, float], ...]
    normalised: bool
    quantities: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def last(self) -> float | None:
        """The score of the last policy: what the paper reports."""
        return self.scores[-1][1] if self.scores else None

    @property
    def best(self) -> float | None:
        """The highest score on the way, which needs the environment to be known."""
        return max(score for _, score in self.scores) if self.scores else None


def read_result(label: str, dataset: str, run: Run, quantities: Iterable[str] = ()) -> RunResult:
    """A run's scores and the named metrics."""
    records = run.metrics()
    evaluations = [r for r in records if r["kind"] == "eval"]
    normalised = bool(evaluations) and all("score_mean" in r for r in evaluations)
    name = "score_mean" if normalised else "return_mean"
    found = {
        quantity: [(int(r["step"]), float(r[quantity])) for r in records if quantity in r]
        for quantity in quantities
    }
    return RunResult(
        label,
        data_name(dataset),
        run.config.seed,
        run,
        tuple((int(r["step"]), float(r[name])) for r in evaluations),
        normalised,
        found,
    )


def data_name(dataset: str) -> str:
    """A dataset as figures call it: its name, or its file's without the suffix."""
    return stem_of(dataset)


def over_seeds(curves: Sequence[Sequence[tuple[int, float]]]) -> Curve | None:
    """Mean and deviation of several runs at the steps all of them have."""
    present = [dict(curve) for curve in curves if curve]
    if not present:
        return None
    steps = sorted(set.intersection(*(set(curve) for curve in present)))
    values = np.array([[curve[step] for step in steps] for curve in present], np.float64)
    return Curve(np.array(steps, np.float64), values.mean(0), values.std(0), len(present))


def group(results: Iterable[RunResult]) -> dict[tuple[str, str], list[RunResult]]:
    """(dataset, label) -> its runs, in order of appearance."""
    out: dict[tuple[str, str], list[RunResult]] = {}
    for result in results:
        out.setdefault((result.dataset, result.label), []).append(result)
    return out
