"""Ranking policies by their estimated values, and how far to trust the ranking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbrl.errors import PbrlError
from pbrl.evaluation.ope import ValueEstimate


@dataclass(frozen=True)
class Ranking:
    """Policies from best to worst by estimated value.

    Attributes:
        names: best first.
        values: their estimates, ``[P]``.
        best: share of bootstrap samples in which each is the best, ``[P]``.
        above_next: share of samples in which each is better than the one below it, ``[P - 1]``.
        agreement: mean rank correlation of a bootstrap sample's ranking with this one. Near 1 the
            data decide; near 0 the order is chance.
        settled: whether every estimate had converged.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    best: NDArray[np.float64]
    above_next: NDArray[np.float64]
    agreement: float
    settled: bool = True

    @property
    def verdict(self) -> str:
        """How far to trust the order, in one sentence."""
        share = self.best[0]
        if not self.settled:
            trust = "Not every estimate has settled: take more steps before reading the order"
        elif share >= 0.9 and self.agreement >= 0.8:
            trust = "The order is firm"
        elif share >= 0.6:
            trust = "The first place is likely, the order below it less so"
        else:
            trust = "The order is mostly chance: treat the candidates as equals"
        return (
            f"{trust} ({self.names[0]} is best in {share:.0%} of bootstrap samples, rank agreement "
            f"{self.agreement:.2f}). This speaks of the logged episodes' luck, not of actions the "
            "log has nothing like."
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return {
            "names": list(self.names),
            "values": self.values.tolist(),
            "best": self.best.tolist(),
            "above_next": self.above_next.tolist(),
            "agreement": self.agreement,
            "settled": self.settled,
            "verdict": self.verdict,
        }


def rank_policies(estimates: Mapping[str, ValueEstimate]) -> Ranking:
    """Rank policies that were evaluated on the same data with the same seed.

    Equal seeds mean equal bootstrap samples, so member k of one estimate is compared with member k
    of another: what all policies share (which episodes were drawn) cancels.
    """
    if len(estimates) < 2:
        raise PbrlError("A ranking needs at least two estimates.")
    samples = [estimate.samples for estimate in estimates.values()]
    if len({len(each) for each in samples}) != 1:
        raise PbrlError("These estimates have different ensemble sizes; evaluate them alike.")
    values = np.array([estimate.value for estimate in estimates.values()])
    order = np.argsort(-values, kind="stable")
    ordered = np.array(samples)[order]  # [P, K]
    winners = ordered.argmax(0)
    best = np.bincount(winners, minlength=len(order)) / ordered.shape[1]
    above = (ordered[:-1] > ordered[1:]).mean(1)
    agreement = float(np.mean([spearman(values[order], member) for member in ordered.T]))
    names = list(estimates)
    settled = all(estimate.converged for estimate in estimates.values())
    return Ranking(tuple(names[i] for i in order), values[order], best, above, agreement, settled)


@dataclass(frozen=True)
class Accuracy:
    """How well estimates of several policies agree with their true values; DOPE's measures.

    Attributes:
        regret: how much worse the policy estimated best is than the best one (regret@1).
        error: mean absolute error of the estimates.
        rank_correlation: Spearman's.

    The first two are in units of the range from the worst to the best true value.
    """

    regret: float
    error: float
    rank_correlation: float


def accuracy(estimates: ArrayLike, truth: ArrayLike) -> Accuracy:
    """Measures of Fu et al., 2021 (https://arxiv.org/abs/2103.16596) over policies ``[P]``."""
    found, true = np.asarray(estimates, np.float64), np.asarray(truth, np.float64)
    span = float(true.max() - true.min()) if len(true) > 1 else 0.0
    if span <= 0:
        raise PbrlError("Estimates are compared over policies of different true values.")
    regret = float(true.max() - true[found.argmax()]) / span
    return Accuracy(regret, float(np.abs(found - true).mean()) / span, spearman(found, true))


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's rank correlation; ties share their mean rank. Zero when one side is constant."""
    a, b = _ranks(np.asarray(one, np.float64)), _ranks(np.asarray(other, np.float64))
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean_rank = ends - (counts - 1) / 2
    ranks: NDArray[np.float64] = mean_rank[inverse]
    return ranks
