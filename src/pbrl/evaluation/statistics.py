"""Statistics over tasks and seeds that a few lucky runs cannot bend (the paper's appendix F).

The aggregates, their stratified-bootstrap intervals and the performance profiles are those of
Agarwal et al. (2021). They are written out here in NumPy because the package they published,
rliable, draws from NumPy's global generator and so cannot be seeded; with the same draws both
give the same numbers to the last bit, and tests/evaluation/test_statistics.py holds us to it.

Scores are matrices ``[R, T]``: R runs (seeds) of each of T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbrl.errors import PbrlError

Scores = NDArray[np.float64]
# Scores of many resamples [..., R, T] -> one number each [...].
Aggregate = Callable[[Scores], NDArray[np.float64]]

# The paper's threshold of the optimality gap, in normalised score.
GAP_THRESHOLD = 50.0
CONFIDENCE = 0.95


def mean(scores: Scores) -> NDArray[np.float64]:
    """Mean of the tasks' means."""
    return np.asarray(np.mean(np.mean(scores, -2), -1))


def median(scores: Scores) -> NDArray[np.float64]:
    """Median of the tasks' means."""
    return np.asarray(np.median(np.mean(scores, -2), -1))


def interquartile_mean(scores: Scores) -> NDArray[np.float64]:
    """Mean of the middle half of all runs (a quarter, rounded down, is cut at each end)."""
    pooled = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    cut = int(0.25 * pooled.shape[-1])
    return np.asarray(np.mean(pooled[..., cut : pooled.shape[-1] - cut], -1))


def optimality_gap(scores: Scores, threshold: float = GAP_THRESHOLD) -> NDArray[np.float64]:
    """How far the runs fall short of ``threshold`` on average; less is better."""
    return np.asarray(threshold - np.mean(np.minimum(scores, threshold), (-2, -1)))


AGGREGATES: dict[str, Aggregate] = {
    "median": median,
    "IQM": interquartile_mean,
    "mean": mean,
    "optimality gap": optimality_gap,
}


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval.

    Attributes:
        value: of the scores themselves.
        low: 2.5th percentile over the resamples; equal to ``value`` where there is one run a task.
        high: 97.5th percentile.
    """

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """As a JSON object."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Profile:
    """How many runs (or tasks) score above each threshold.

    Attributes:
        thresholds: ``[P]``.
        share: ``[P]``, between 0 and 1.
        low: ``[P]``, pointwise 95 % band.
        high: ``[P]``.
    """

    thresholds: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def to_json(self) -> dict[str, list[float]]:
        """As a JSON object."""
        return {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}


def score_matrix(by_task: Mapping[str, Sequence[float]]) -> tuple[Scores, str | None]:
    """Scores of one system as ``[R, T]``, and a remark where runs had to be left out.

    The stratified bootstrap needs the same number of runs of every task: the first R of each, R
    being the smallest number there is.
    """
    if not by_task or min(len(runs) for runs in by_task.values()) == 0:
        raise PbrlError("Statistics need at least one score of every task.")
    counts = {len(runs) for runs in by_task.values()}
    fewest = min(counts)
    matrix = np.array([list(runs)[:fewest] for runs in by_task.values()], np.float64).T
    if not np.isfinite(matrix).all():
        raise PbrlError("Statistics need finite scores; leave diverged runs out first.")
    note = None
    if len(counts) > 1:
        note = f"tasks have {fewest} to {max(counts)} runs; the first {fewest} of each are used"
    return matrix, note


def resamples(scores: Scores, repetitions: int, seed: int) -> Scores:
    """Stratified bootstrap: runs drawn with replacement within each task, ``[repetitions, R, T]``.

    The legacy generator is used on purpose: it makes the very draws that rliable makes after
    ``numpy.random.seed(seed)``.
    """
    generator = np.random.RandomState(seed)
    runs, tasks = scores.shape
    index = generator.choice(runs, (repetitions, runs, tasks), replace=True)
    return scores[index, np.arange(tasks)]


def estimate(
    scores: ArrayLike, aggregate: Aggregate, repetitions: int = 2000, seed: int = 0
) -> Estimate:
    """An aggregate of ``[R, T]`` scores with its stratified-bootstrap 95 % interval."""
    matrix = _matrix(scores)
    drawn = aggregate(resamples(matrix, repetitions, seed))
    low, high = np.percentile(drawn, _percentiles())
    return Estimate(float(aggregate(matrix)), float(low), float(high))


def aggregates(scores: ArrayLike, repetitions: int = 2000, seed: int = 0) -> dict[str, Estimate]:
    """Median, IQM, mean and optimality gap of ``[R, T]`` scores, each with its interval."""
    return {
        name: estimate(scores, function, repetitions, seed) for name, function in AGGREGATES.items()
    }


def performance_profile(
    scores: ArrayLike,
    thresholds: ArrayLike,
    *,
    average_runs: bool = False,
    repetitions: int = 2000,
    seed: int = 0,
) -> Profile:
    """The share of runs above every threshold, with pointwise 95 % bands.

    Args:
        scores: ``[R, T]``.
        thresholds: ``[P]``.
        average_runs: count tasks by their mean over runs instead of single runs (the paper's
            right-hand picture).
        repetitions: bootstrap resamples.
        seed: of the resampling.

    Returns:
        The profile at the thresholds. "Above" is strict, as in rliable; the paper prints >=.
    """
    matrix, taus = _matrix(scores), np.asarray(thresholds, np.float64)

    def shares(samples: Scores) -> NDArray[Any]:
        if average_runs:
            samples = samples.mean(-2, keepdims=True)
        values = np.sort(samples.reshape(*samples.shape[:-2], -1), -1)
        flat = values.reshape(-1, values.shape[-1])
        above = [1 - np.searchsorted(row, taus, side="right") / len(row) for row in flat]
        return np.asarray(above).reshape(*values.shape[:-1], len(taus))

    drawn = shares(resamples(matrix, repetitions, seed))
    low, high = np.percentile(drawn, _percentiles(), axis=0)
    return Profile(taus, shares(matrix), low, high)


def _percentiles() -> list[float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    return [tail, 100 - tail]


def _matrix(scores: ArrayLike) -> Scores:
    matrix = np.asarray(scores, np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise PbrlError(f"Scores must be a matrix [runs, tasks], got shape {list(matrix.shape)}.")
    if not np.isfinite(matrix).all():
        raise PbrlError("Statistics need finite scores; leave diverged runs out first.")
    return matrix
