"""Importance sampling: what the log's own episodes would weigh had the policy acted in them.

The weight of an episode up to step t is the product of pi(a|s) / mu(a|s), the chance of its actions
under the policy over that under the behaviour. Three estimators, all self-normalised (weighted):

- ``wis``: whole returns, weighted by the whole episode's product;
- ``pdis``: each reward by the product up to its own step;
- ``dr``: doubly robust (Thomas and Brunskill, 2016): fitted values, corrected by the weighted
  errors they make in the log; right if either the weights or the values are.

Two things are easily got wrong. Weights are normalised at every step over *all* episodes: one that
has ended keeps its last weight and earns nothing, because leaving it out would value survivors
alone. And an episode that was cut is no episode that ended: its value there counts as one more
reward.

Shapes: N rows of the log and of the ends of cut episodes, E episodes, B bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import TransitionDataset
from pbrl.evaluation.estimate import Doubles

Integers = NDArray[np.int64]
SMALLEST_LOG_WEIGHT = -700.0  # beside the largest of a step; float64 ends at -745


@dataclass(frozen=True)
class WeightedEpisodes:
    """What importance sampling needs to know of a log.

    The end of an episode that was cut is a row of its own, whose reward is the value there.

    Attributes:
        owner: the episode of each row, ``[N]``.
        step: of each row within its episode, ``[N]``.
        rewards: ``[N]``.
        log_ratio: log of pi(a|s) / mu(a|s), ``[N]``; 0 at the ends of cut episodes.
        q: fitted Q of the logged action under the policy, ``[N]``.
        v: fitted value of the policy, ``[N]``.
        gamma: the discount.
        episodes: E.
    """

    owner: Integers
    step: Integers
    rewards: Doubles
    log_ratio: Doubles
    q: Doubles
    v: Doubles
    gamma: float
    episodes: int

    @staticmethod
    def of(
        dataset: TransitionDataset,
        gamma: float,
        log_ratio: Doubles,
        after_cut: Doubles,
        q: Doubles | None = None,
        v: Doubles | None = None,
    ) -> WeightedEpisodes:
        """From a log and what was computed for its rows.

        Args:
            dataset: the log, n rows.
            gamma: the discount.
            log_ratio: ``[n]``.
            after_cut: value of the policy after each episode's last row, ``[E]``; not read where
                the episode terminated.
            q: ``[n]``; zeros when omitted.
            v: ``[n]``; zeros when omitted.
        """
        lengths = np.array([rows.stop - rows.start for rows in dataset.episodes()], np.int64)
        ends = np.cumsum(lengths)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        step = np.arange(len(dataset)) - np.repeat(ends - lengths, lengths)
        cut = np.flatnonzero(~np.asarray(dataset.terminals)[ends - 1])
        after, zeros = np.asarray(after_cut, np.float64)[cut], np.zeros(len(dataset))

        def joined(rows: NDArray[np.generic], more: NDArray[np.generic]) -> Doubles:
            return np.concatenate([np.asarray(rows, np.float64), more])

        return WeightedEpisodes(
            np.concatenate([owner, cut]),
            np.concatenate([step, lengths[cut]]),
            joined(dataset.rewards, after),
            joined(log_ratio, np.zeros(len(cut))),
            joined(zeros if q is None else q, after),
            joined(zeros if v is None else v, after),
            gamma,
            len(lengths),
        )

    def by_step(self) -> Iterator[Integers]:
        """The rows of step 0, of step 1, and so on."""
        order = np.argsort(self.step, kind="stable")
        yield from np.split(order, np.cumsum(np.bincount(self.step))[:-1])

    def weights(self) -> Iterator[tuple[Integers, Doubles]]:
        """Rows of each step, and the episodes' weights ``[E]`` with that step's action.

        Weights are only known up to a factor of the step's; the largest is 1.
        """
        log_weight = np.zeros(self.episodes)
        for rows in self.by_step():
            log_weight[self.owner[rows]] += self.log_ratio[rows]
            yield rows, np.exp((log_weight - log_weight.max()).clip(min=SMALLEST_LOG_WEIGHT))


@dataclass(frozen=True)
class Weighted:
    """A self-normalised estimate.

    Attributes:
        value: over the episodes as they are.
        draws: over bootstrap samples, ``[B]``.
        influence: how far each episode moves the value, ``[E]``, of mean 0.
        effective: effective episodes at every step, (sum w)^2 / sum w^2, ``[T]``.
        steps: the steps in which weights were used.
    """

    value: float
    draws: Doubles
    influence: Doubles
    effective: Doubles
    steps: int


class _Sum:
    """A sum of self-normalised means, over the episodes as they are and over bootstrap samples."""

    def __init__(self, episodes: int, counts: Doubles) -> None:
        self.counts = np.concatenate([np.ones((1, episodes)), counts])  # [1 + B, E]
        self.total = np.zeros(len(self.counts))
        self.influence = np.zeros(episodes)

    def add(self, factor: float, weights: Doubles, values: Doubles) -> None:
        """Add ``factor`` times the mean of ``values [E]`` under ``weights [E]``."""
        means = (self.counts @ (weights * values)) / (self.counts @ weights)
        self.total += factor * means
        self.influence += factor * weights * (values - means[0]) / weights.mean()

    def result(self, effective: list[float], steps: int) -> Weighted:
        return Weighted(
            float(self.total[0]), self.total[1:], self.influence, np.array(effective), steps
        )


def effective_size(weights: Doubles) -> float:
    """How many equal weights waver as little as these, (sum w)^2 / sum w^2."""
    return float(weights.sum() ** 2 / np.square(weights).sum())


def weighted_importance_sampling(log: WeightedEpisodes, counts: Doubles) -> Weighted:
    """Returns weighted by the product of the whole episode's ratios; ``counts [B, E]``."""
    returns, effective = np.zeros(log.episodes), []
    weights = np.ones(log.episodes)
    for step, (rows, weights) in enumerate(log.weights()):
        returns[log.owner[rows]] += log.gamma**step * log.rewards[rows]
        effective.append(effective_size(weights))
    total = _Sum(log.episodes, counts)
    total.add(1.0, weights, returns)
    return total.result(effective, len(effective))


def per_decision(log: WeightedEpisodes, counts: Doubles) -> Weighted:
    """Each reward weighted by the ratios up to its own step; ``counts [B, E]``."""
    total, effective = _Sum(log.episodes, counts), []
    for step, (rows, weights) in enumerate(log.weights()):
        total.add(log.gamma**step, weights, _scatter(log, rows, log.rewards))
        effective.append(effective_size(weights))
    return total.result(effective, len(effective))


def doubly_robust(log: WeightedEpisodes, counts: Doubles, least: float = 0.0) -> Weighted:
    """Fitted values and the weighted errors they make in the log; ``counts [B, E]``.

    Each step adds gamma^t (w_t (r - q) + w_{t-1} v), with weights normalised step by step.

    Args:
        log: with q and v.
        counts: bootstrap samples.
        least: correct only as long as this many effective episodes are left; beyond, the fitted
            values speak alone, because a mean over one episode is no correction.
    """
    total, effective = _Sum(log.episodes, counts), []
    before, steps = np.ones(log.episodes), 0
    for step, (rows, weights) in enumerate(log.weights()):
        total.add(log.gamma**step, before, _scatter(log, rows, log.v))
        effective.append(effective_size(weights))
        if effective[-1] < least:
            break
        total.add(log.gamma**step, weights, _scatter(log, rows, log.rewards - log.q))
        before, steps = weights, step + 1
    return total.result(effective, steps)


def _scatter(log: WeightedEpisodes, rows: Integers, values: Doubles) -> Doubles:
    """``values [N]`` of these rows by episode, ``[E]``; 0 where an episode has none."""
    out = np.zeros(log.episodes)
    out[log.owner[rows]] = values[rows]
    return out
