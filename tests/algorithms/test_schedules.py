"""beta_ood over a run: the paper's values, the authors' rule, any length."""

from __future__ import annotations

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


def test_adaptive_falls_only_while_q_falls() -> None:
    schedule = Adaptive(5.0, 1.0, 0.2, linear_steps=50, interval=1)
    for step in range(50):
        schedule.record(step, torch.tensor(float(step)))  # rising
    for step in range(50, 60):
        schedule.record(step, torch.tensor(100.0 + step))
    assert schedule(60) == 1.0, "Q of the policy rises: no change"
    for step in range(60, 90):
        schedule.record(step, torch.tensor(100.0 - step))
    # Falling: mean of the last 5 of 20 records against the 15 before, by hand from step 62 on.
    records = [float(s) for s in range(50)] + [100.0 + s for s in range(50, 60)]
    value = 1.0
    for step in range(60, 90):
        records.append(100.0 - step)
        window = records[-20:]
        before, last = window[:-5], window[-5:]
        if sum(last) / 5 < sum(before) / len(before):
            value = max(0.2, value / 1.01)
    assert 0.7 < value < 1
    assert schedule(90) == pytest.approx(value)
    for step in range(90, 500):
        schedule.record(step, torch.tensor(-float(step)))
    assert schedule(500) == pytest.approx(0.2)


def test_adaptive_state_survives() -> None:
    one = Adaptive(5.0, 1.0, 0.2, linear_steps=0, interval=2)
    for step in range(80):
        one.record(step, torch.tensor(-float(step)))
    other = Adaptive(5.0, 1.0, 0.2, linear_steps=0, interval=2)
    other.load(one.state())
    for schedule in (one, other):
        schedule.record(81, torch.tensor(-81.0))
    assert other(82) == one(82) < 1
    assert len(one.records) == 20


def test_linear_part_may_be_empty_or_everything() -> None:
    assert LinearThenExponential(5, 1, 0.2, 0, 10)(0) == 1
    assert LinearThenExponential(5, 1, 0.2, 10, 10)(10) == pytest.approx(1.0)
