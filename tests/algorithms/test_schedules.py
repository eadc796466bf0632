"""beta_ood over a run: the paper's values, the authors' rule, any length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pbrl.algorithms.pbrl import PBRL, PBRLConfig
from pbrl.algorithms.schedules import Adaptive, LinearThenExponential


def make(total: int, **settings: object) -> PBRL:
    config = PBRLConfig(hidden=(4,), policy_hidden=(4,), **settings)  # type: ignore[arg-type]
    return PBRL(config, 1, 1, total_steps=total)


def test_the_papers_schedule_at_the_papers_length() -> None:
    schedule = make(1_000_000).schedule
    assert schedule(0) == 5.0
    assert schedule(25_000) == pytest.approx(3.0)
    assert schedule(50_000) == pytest.approx(1.0)
    assert schedule(525_000) == pytest.approx(0.2**0.5)
    assert schedule(1_000_000) == pytest.approx(0.2)


@pytest.mark.parametrize("total", [1, 7, 100, 60_000])
def test_a_run_of_any_length_is_a_whole_run_in_small(total: int) -> None:
    schedule = make(total).schedule
    values = [schedule(step) for step in range(total + 1)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(0.2)
    assert schedule(10 * total) == pytest.approx(0.2), "an extended run stays at the end"
    if total >= 100:
        assert values[0] == 5.0


def test_constant_is_constant() -> None:
    schedule = make(100, beta_ood_schedule="constant", beta_ood=0.01).schedule
    assert {schedule(step) for step in range(200)} == {0.01}


def authors_rule(qs: list[float], linear: int, interval: int) -> list[float]:
    """The weight in effect at each step, as the authors' trainer has it, counting steps from one.

    The first step of an epoch looks at the 5 last and the (up to 15) earlier records, and only then
    records its own Q; a mean of no records is NaN, which is below nothing.
    """
    weight, records, used = 1.0, list[float](), list[float]()
    for step, q in enumerate(qs, start=1):
        used.append(weight)
        if step % interval == 1 % interval:
            last, before = np.array(records[-5:]), np.array(records[-20:-5])
            with np.errstate(invalid="ignore"):
                falling = len(before) > 0 and last.mean() < before.mean()
            if step > linear and weight > 0.2 and falling:
                weight = weight / 1.01
            records.append(q)
    return used


@pytest.mark.parametrize("interval", [1, 7])
def test_adaptive_is_the_authors_rule(interval: int) -> None:
    rng, linear = np.random.default_rng(0), 30
    falls = np.repeat([-0.2, 0.3, -0.5], 500).cumsum() + rng.normal(size=1500)
    schedule = Adaptive(5.0, 1.0, 0.2, linear_steps=linear, interval=interval)
    found = []
    for step, q in enumerate(falls):
        found.append(schedule(step))
        schedule.record(step, torch.tensor(q))
    expected = authors_rule(list(falls), linear, interval)
    assert found[linear:] == pytest.approx(expected[linear:])
    assert min(found) < (0.9 if interval > 1 else 0.2), "it fell"


def test_adaptive_may_end_a_little_below_its_end() -> None:
    """Theirs asks before it divides, and does not clamp after it."""
    schedule = Adaptive(5.0, 1.0, 0.2, linear_steps=0, interval=1)
    for step in range(500):
        schedule.record(step, torch.tensor(-float(step)))
    assert 0.2 / 1.01 < schedule(500) < 0.2


def test_adaptive_looks_at_the_first_step_of_an_interval() -> None:
    schedule = Adaptive(5.0, 1.0, 0.2, linear_steps=0, interval=1000)
    schedule.record(0, torch.tensor(1.0))
    for step in range(1, 1000):
        schedule.record(step, torch.tensor(2.0))
    assert schedule.records == [1.0]
    schedule.record(1000, torch.tensor(3.0))
    assert schedule.records == [1.0, 3.0]


def test_adaptive_state_survives() -> None:
    one = Adaptive(5.0, 1.0, 0.2, linear_steps=0, interval=2)
    for step in range(80):
        one.record(step, torch.tensor(-float(step)))
    other = Adaptive(5.0, 1.0, 0.2, linear_steps=0, interval=2)
    other.load(one.state())
    for schedule in (one, other):
        schedule.record(80, torch.tensor(-81.0))
    assert other(82) == one(82) < 1
    assert len(one.records) == 20


def test_auto_is_the_papers_or_the_authors() -> None:
    assert isinstance(make(100).schedule, LinearThenExponential)
    assert isinstance(make(100, authors_code=True).schedule, Adaptive)
    chosen = make(100, authors_code=True, beta_ood_schedule="decay").schedule
    assert isinstance(chosen, LinearThenExponential)


def test_linear_part_may_be_empty_or_everything() -> None:
    assert LinearThenExponential(5, 1, 0.2, 0, 10)(0) == 1
    assert LinearThenExponential(5, 1, 0.2, 10, 10)(10) == pytest.approx(1.0)
