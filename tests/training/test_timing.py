"""Steps are timed by the clock that is given; what comes before does not count."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from pbrl.algorithms.bc import BC
from pbrl.training.timing import seconds_per_step, update_times


class Clock:
    """Time that passes by steps alone: 10 s for each of the first ``slow``, then 0.5 s."""

    def __init__(self, slow: int) -> None:
        self.now, self.steps, self.slow = 0.0, 0, slow

    def step(self) -> None:
        self.steps += 1
        self.now += 10.0 if self.steps <= self.slow else 0.5

    def read(self) -> float:
        return self.now


def test_warm_up_does_not_count() -> None:
    clock = Clock(slow=3)
    assert seconds_per_step(clock.step, clock.read, 4.0, warm_up=3) == 0.5
    assert clock.steps == 3 + 8


def test_a_slow_step_counts_among_the_least() -> None:
    clock = Clock(slow=1)
    assert seconds_per_step(clock.step, clock.read, 1.0, least=5) == pytest.approx(12 / 5)
    assert clock.steps == 5


def test_updates_are_timed_after_the_first() -> None:
    algorithm = BC(BC.Config(hidden=(4,), batch_size=8), 3, 2)
    times = list(islice(update_times(algorithm, 3, 2), 4))
    assert len(times) == 4
    assert min(times) >= 0
    assert algorithm.step == 5
    assert all(torch.isfinite(p).all() for p in algorithm.policy.parameters())
