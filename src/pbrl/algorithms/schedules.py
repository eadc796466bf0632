"""The penalty weight beta_ood during a run (paper: appendix B, and the authors' code).

Every schedule is written in fractions of the run, so that a run of any length is well defined and
one of 1M steps has the paper's values: linear over the first 50K, then down to the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Constant:
    """beta_ood is the same at every step."""

    value: float

    def __call__(self, step: int) -> float:
        """beta_ood at ``step``."""
        return self.value

    def record(self, step: int, q_policy: Tensor) -> None:
        """Nothing to adapt."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to save."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to load."""


@dataclass(frozen=True)
class LinearThenExponential:
    """start -> middle linearly, then middle -> end exponentially at the last step (the paper)."""

    start: float
    middle: float
    end: float
    linear_steps: int
    total_steps: int

    def __call__(self, step: int) -> float:
        """beta_ood at ``step``."""
        if step < self.linear_steps:
            return self.start + (self.middle - self.start) * step / self.linear_steps
        rest = max(1, self.total_steps - self.linear_steps)
        progress = min(1.0, (step - self.linear_steps) / rest)
        return self.middle * float((self.end / self.middle) ** progress)

    def record(self, step: int, q_policy: Tensor) -> None:
        """Nothing to adapt."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to save."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to load."""


class Adaptive:
    """The authors' code: after the linear part, beta_ood falls only while Q of the policy falls.

    At the first step of every ``interval`` the records of Q of the policy's actions are looked at,
    then this step's is added. After the linear part, if the mean of the last 5 records is below the
    mean of the (up to 15) records before them and the weight above ``end``, it is divided by 1.01;
    the last division may take it a little below ``end``.
    """

    decay = 1.01
    recent = 5
    window = 20

    def __init__(
        self, start: float, middle: float, end: float, linear_steps: int, interval: int
    ) -> None:
        self.start, self.middle, self.end = start, middle, end
        self.linear_steps, self.interval = linear_steps, interval
        self.value = middle
        self.records: list[float] = []

    def __call__(self, step: int) -> float:
        """beta_ood at ``step``."""
        if step < self.linear_steps:
            return self.start + (self.middle - self.start) * step / self.linear_steps
        return self.value

    def record(self, step: int, q_policy: Tensor) -> None:
        """Adapt the weight of the steps after ``step``, and note Q of the policy's actions."""
        if step % self.interval:
            return
        before, last = self.records[: -self.recent], self.records[-self.recent :]
        falling = bool(before) and sum(last) / len(last) < sum(before) / len(before)
        if step >= self.linear_steps and self.value > self.end and falling:
            self.value /= self.decay
        self.records = [*self.records, float(q_policy)][-self.window :]

    def state(self) -> dict[str, Tensor]:
        """Current weight and records."""
        return {
            "beta_ood": torch.tensor(self.value, dtype=torch.float64),
            "q_records": torch.tensor(self.records, dtype=torch.float64),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of ``state``."""
        self.value = float(state["beta_ood"])
        self.records = [float(x) for x in state["q_records"]]


Schedule = Constant | LinearThenExponential | Adaptive


def beta_ood_schedule(config: Any, total_steps: int) -> Schedule:
    """The schedule that PBRL's settings name."""
    kind = config.beta_ood_schedule
    if kind == "auto":
        kind = "adaptive" if config.authors_code else "decay"
    if kind == "constant":
        return Constant(config.beta_ood)
    linear = round(config.beta_ood_linear * total_steps)
    falling = config.beta_ood_start, config.beta_ood_middle, config.beta_ood_end, linear
    if kind == "adaptive":
        return Adaptive(*falling, interval=max(1, total_steps // 1000))
    return LinearThenExponential(*falling, total_steps)


def fading(last: float, end: float) -> dict[str, Any]:
    """PBRL's settings for a weight that falls from ``last`` to ``end``, exponentially."""
    return {
        "beta_ood_schedule": "decay",
        "beta_ood_start": last,
        "beta_ood_middle": last,
        "beta_ood_end": end,
        "beta_ood_linear": 0.0,
    }
