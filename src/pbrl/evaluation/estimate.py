"""An estimated value of a policy, the log's beside it, and what can be said of their difference.

Every estimator draws its bootstrap samples of *episodes* from the same seed and values the log on
the same samples, so that what policy and log share (which episodes were drawn) cancels in the
difference. Shapes: E episodes, B bootstrap samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Opinion:
    """What one method says of a policy and of the baseline it is compared with.

    Attributes:
        method: the estimator's name.
        value: of the policy.
        baseline: value of what it is compared with, over the same episodes.
        draws: the policy's values over bootstrap samples, ``[B]``.
        baseline_draws: the baseline's over the same samples, ``[B]``.
        refitted: whether every sample was fitted anew; then there are few.
        effective: how many episodes the estimate rests on; E where all count alike.
        influence: how far each episode moves the value, ``[E]``, of mean 0; empty where unknown.
        details: more numbers for the record.
        notes: sentences a reader of the number should see.
    """

    method: str
    value: float
    baseline: float
    draws: Doubles
    baseline_draws: Doubles
    refitted: bool
    effective: float
    influence: Doubles = field(default_factory=lambda: np.zeros(0))
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """The policy's value less the baseline's."""
        return self.value - self.baseline

    def bound(self, level: float, *, upper: bool = False) -> float:
        """A one-sided bound of the difference.

        The rule is conservative by intent: of the bootstrap's own quantile and of Student's bound
        with as many degrees of freedom as *effective* episodes (or refits) less one, the one
        further out.
        """
        return one_sided(
            self.difference,
            self.draws - self.baseline_draws,
            level,
            refitted=self.refitted,
            effective=self.effective,
            upper=upper,
        )

    def interval(self, level: float) -> tuple[float, float]:
        """A two-sided interval of the policy's value."""
        low, high = (
            one_sided(
                self.value,
                self.draws,
                (1 + level) / 2,
                refitted=self.refitted,
                effective=self.effective,
                upper=upper,
            )
            for upper in (False, True)
        )
        return low, high

    def to_json(self, level: float) -> dict[str, Any]:
        """Everything as a JSON object."""
        low, high = self.interval(level)
        values = {
            "method": self.method,
            "value": self.value,
            "low": low,
            "high": high,
            "baseline": self.baseline,
            "difference": self.difference,
            "difference_lower_bound": self.bound(level),
            "difference_upper_bound": self.bound(level, upper=True),
            "level": level,
            "effective_episodes": self.effective,
            **self.details,
            "notes": list(self.notes),
        }
        return {k: finite_or_none(v) for k, v in values.items()}


def finite_or_none(value: Any) -> Any:
    """``value``, or None where it is a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def one_sided(
    centre: float,
    draws: Doubles,
    level: float,
    *,
    refitted: bool,
    effective: float,
    upper: bool = False,
) -> float:
    """A one-sided bound around ``centre`` from bootstrap ``draws [B]``; see ``Opinion.bound``.

    With refits the centre is itself a mean of B of them, and wavers by 1/B of their variance.
    """
    sign = 1.0 if upper else -1.0
    if not np.isfinite(draws).all() or not math.isfinite(centre):
        return sign * math.inf
    degrees = (len(draws) if refitted else effective) - 1
    if degrees < 1:
        return sign * math.inf
    spread = float(draws.std(ddof=1)) * math.sqrt(1 + (1 / len(draws) if refitted else 0))
    student = centre + sign * t_quantile(level, degrees) * spread
    if refitted:  # too few for a quantile of their own
        return student
    own = float(np.quantile(draws, level if upper else 1 - level))
    return max(student, own) if upper else min(student, own)


def bootstrap_counts(episodes: int, samples: int, seed: int) -> Doubles:
    """How often each episode is in each bootstrap sample, ``[B, E]``."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(episodes, np.full(episodes, 1 / episodes), samples).astype(np.float64)


def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t by its expansion in 1/degrees; three digits from 4 degrees on.

    Below 4 degrees, where the expansion falls short, the exact quantiles of 1 and 2 bound it.
    """
    if degrees < 4:
        return _few_degrees(probability, degrees)
    z, n = NormalDist().inv_cdf(probability), degrees
    terms = (
        z,
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
    )
    return sum(terms)


def _few_degrees(probability: float, degrees: float) -> float:
    """Rounded down to 1 or 2 degrees, whose quantiles have closed forms: on the safe side."""
    if degrees < 2:
        return math.tan(math.pi * (probability - 0.5))
    return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
