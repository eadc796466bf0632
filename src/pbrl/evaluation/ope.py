"""What policies, and the log itself, are worth at the log's initial states.

Policy and log are valued alike: the same discount, the same initial states, and a time limit is an
end for neither. What a cut episode would still have earned is estimated by the value of the log's
own policy, learned from the log (``pbrl.evaluation.fqe``).

Shapes: E episodes, K members of a fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import TransitionDataset
from pbrl.errors import PbrlError
from pbrl.evaluation.estimate import Doubles, bootstrap_counts, t_quantile
from pbrl.evaluation.fqe import FittedQ, FQEConfig, Policy, fit_q

__all__ = [
    "FQEConfig",
    "LogValue",
    "Policy",
    "ValueEstimate",
    "behaviour_value",
    "fitted_q_evaluation",
    "log_value",
]

# Below this share of the discounted weight, what follows a cut is not worth a fit.
NEGLIGIBLE = 1e-3
FEW_EPISODES = 20


@dataclass(frozen=True)
class ValueEstimate:
    """An estimated discounted value at the initial states, with its interval.

    Attributes:
        value: the estimate, in raw reward units.
        low: lower end of the interval.
        high: upper end of the interval.
        level: of the interval.
        gamma: the discount.
        samples: bootstrap values, ``[K]``; their spread made the interval.
        curve_steps: gradient steps of the curve's points, ``[T]``.
        curve: value of every member as learning went on, ``[T, K]``.
        notes: sentences a reader of the number should see.
    """

    value: float
    low: float
    high: float
    level: float
    gamma: float
    samples: Doubles
    curve_steps: NDArray[np.int64]
    curve: Doubles
    notes: tuple[str, ...] = ()

    @property
    def drift(self) -> float:
        """Change of the mean value over the last fifth of learning."""
        if len(self.curve) < 10:
            return 0.0
        tenth = len(self.curve) // 10
        late, before = self.curve[-tenth:], self.curve[-3 * tenth : -2 * tenth]
        return float(late.mean() - before.mean())

    @property
    def converged(self) -> bool:
        """Whether that change is small beside the interval, or beside the value itself."""
        half_width = (self.high - self.low) / 2
        return abs(self.drift) <= max(0.1 * half_width, 0.01 * abs(self.value))

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "level": self.level,
            "gamma": self.gamma,
            "samples": self.samples.tolist(),
            "drift": self.drift,
            "converged": self.converged,
            "curve": {
                "steps": self.curve_steps.tolist(),
                "mean": self.curve.mean(1).tolist() if len(self.curve) else [],
                "std": self.curve.std(1).tolist() if len(self.curve) else [],
            },
            "notes": list(self.notes),
        }


def fitted_q_evaluation(
    policy: Policy,
    dataset: TransitionDataset,
    config: FQEConfig | None = None,
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
) -> ValueEstimate:
    """Estimate the discounted value of ``policy`` at the initial states of ``dataset``.

    Args:
        policy: raw observations ``[B, S]`` to raw actions ``[B, A]``: ``agent.act``, any function.
        dataset: logged transitions of any behaviour.
        config: settings.
        device: where the networks live.
        on_step: called with the number of steps done, for a progress display.

    Returns:
        Estimate, interval and learning curve, in raw reward units.
    """
    return summarise(fit_q(policy, dataset, config, device=device, on_step=on_step))


def summarise(fitted: FittedQ) -> ValueEstimate:
    """The value a fit of Q arrives at, with its interval and what is to be said of it."""
    config, samples = fitted.config, fitted.samples
    value, low, high = _interval(samples, config.level)
    steps, curve = fitted.curve_steps, fitted.curve
    estimate = ValueEstimate(value, low, high, config.level, config.gamma, samples, steps, curve)
    notes, episodes = [], fitted.counts.shape[1]
    if episodes < FEW_EPISODES:
        notes.append(
            f"Only {episodes} episodes: a bootstrap over so few says little, and the interval "
            "is likely too narrow."
        )
    if not estimate.converged:
        notes.append(
            f"The estimate still moved by {estimate.drift:+.3g} over the last fifth of its "
            "steps: take more steps before trusting it."
        )
    elif config.steps * config.tau < 5:
        notes.append(
            f"{config.steps} steps at tau = {config.tau:g} hardly moved the target networks: take "
            "more steps before trusting the estimate."
        )
    return replace(estimate, notes=tuple(notes))


@dataclass(frozen=True)
class LogValue:
    """Discounted returns of the logged episodes, and what they leave out.

    Attributes:
        returns: discounted sum of the logged rewards of every episode, ``[E]``.
        missing: discounted weight of what follows the episode's last row, ``[E]``: gamma to the
            length where it was cut, 0 where it terminated.
        after: value of the log's own policy where the episode was cut, by every member of the
            fit, ``[K, E]``; zeros where nothing had to be fitted.
        fit: the fit behind ``after``, if there was one.
    """

    returns: Doubles
    missing: Doubles
    after: Doubles
    fit: FittedQ | None

    @property
    def by_member(self) -> Doubles:
        """Every episode's value with what follows its cut, by member, ``[K, E]``."""
        return self.returns + self.missing * self.after

    @property
    def by_episode(self) -> Doubles:
        """Every episode's value with what follows its cut, ``[E]``."""
        return np.asarray(self.by_member.mean(0), np.float64)


def log_value(dataset: TransitionDataset, config: FQEConfig | None = None) -> LogValue:
    """The log's own value, episode by episode; ``config`` is of the fit behind the cuts."""
    config = config or FQEConfig()
    returns, lengths, cut = [], [], []
    for rows in dataset.episodes():
        weights = config.gamma ** np.arange(rows.stop - rows.start)
        returns.append(float(weights @ dataset.rewards[rows].astype(np.float64)))
        lengths.append(rows.stop - rows.start)
        cut.append(not dataset.terminals[rows.stop - 1])
    if not returns:
        raise PbrlError("The dataset has no episodes, so there is no behaviour value.")
    missing = np.where(cut, config.gamma ** np.array(lengths, np.float64), 0.0)
    after, fit = np.zeros((config.ensemble_size, len(returns))), None
    if missing.mean() > NEGLIGIBLE:
        fit = fit_q(None, dataset, config)
        last = np.cumsum(lengths) - 1
        after = fit.values(dataset.next_observations[last])
    return LogValue(np.array(returns), missing, after, fit)


def behaviour_value(
    dataset: TransitionDataset,
    gamma: float = 0.99,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    config: FQEConfig | None = None,
    value: LogValue | None = None,
) -> ValueEstimate:
    """Discounted value of the policy that wrote the log.

    It is the mean over episodes of the discounted rewards, continued beyond a cut by the value of
    the log's own policy there. The interval is a bootstrap over episodes, in which the members of
    that fit take turns. The notes say how much of the value is such a continuation.

    Args:
        dataset: the log.
        gamma: the discount.
        level: of the interval.
        resamples: bootstrap samples.
        seed: of the bootstrap.
        config: of the fit behind the cuts; its defaults at this discount and seed when omitted.
        value: the log's, where it is known already.
    """
    config = config or FQEConfig(gamma=gamma, level=level, seed=seed)
    value = value or log_value(dataset, replace(config, gamma=gamma))
    episodes, members = len(value.returns), len(value.after)
    counts = bootstrap_counts(episodes, resamples, seed) / episodes
    turns = np.arange(resamples) % members
    samples = np.einsum("be,be->b", counts, value.by_member[turns])
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    notes = []
    if value.fit is not None:
        share = float(value.missing.mean())
        notes.append(
            f"Episodes of the log were cut off while {share:.0%} of the discounted weight (on "
            "average) was still to come: that part of the behaviour's value is estimated."
        )
    empty: Doubles = np.zeros((0, resamples))
    steps = np.zeros(0, np.int64)
    centre = float(value.by_episode.mean())
    return ValueEstimate(
        centre, float(low), float(high), level, gamma, samples, steps, empty, tuple(notes)
    )


def _interval(samples: Doubles, level: float) -> tuple[float, float, float]:
    """Mean and a t-interval from the spread of a few bootstrap values."""
    count = len(samples)
    mean, spread = float(samples.mean()), float(samples.std(ddof=1))
    half = t_quantile((1 + level) / 2, count - 1) * spread * math.sqrt(1 + 1 / count)
    return mean, mean - half, mean + half
