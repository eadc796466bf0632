"""pbrl-anchored passes the shared tester, and does what it is for."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest
import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester, tiny_dataset

from pbrl.algorithms.pbrl import PBRL, PBRLConfig
from pbrl.algorithms.pbrl_anchored import PBRLAnchored, PBRLAnchoredConfig
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.training_data import Batch, TrainingData

SMALL = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "ensemble_size": 4,
    "n_ood": 2,
    "critic_lr": 3e-3,
    "actor_lr": 1e-3,
    "tau": 0.05,
}
BAD = (
    ({"ensemble_size": 1}, "ensemble_size"),
    ({"policy_average": 1.5}, "policy_average"),
    ({"ood_margin": -0.1}, "ood_margin"),
    ({"authors_code": True}, "authors_code"),
    ({"cloning": -0.1}, "cloning"),
    ({"value_scale": 0.0}, "value_scale"),
    ({"lr_end": -0.5}, "lr_end"),
    ({"lr_steps": -1}, "lr_steps"),
    ({"policy_noise": 0.0}, "policy_noise"),
    ({"policy_noise": 0.001}, "policy_noise"),
)


class TestPBRLAnchored(AlgorithmTester):
    case = AlgorithmCase(
        PBRLAnchored,
        {"hidden": (32, 32), "policy_hidden": (32, 32)},
        max_regret=0.08,
        bad_settings=BAD,
    )


class TestPBRLAnchoredByNothingButNoise(AlgorithmTester):
    case = AlgorithmCase(
        PBRLAnchored,
        {**SMALL, "cloning": 0.0, "cloning_end": 0.0, "policy_average": 0.0},
        max_regret=0.08,
        bad_settings=BAD,
    )


def bandit(reward: float, rows: int = 400) -> TrainingData:
    """One-step episodes whose reward depends on the first observation."""
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    a = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    ends = np.ones(rows, bool)
    info = DatasetInfo("bandit")
    return TrainingData(TransitionDataset(s, a, reward * (2 + s[:, 0]), s, ends, ends, info))


def error_after_150_steps(reward: float, value_scale: float | Literal["auto"]) -> float:
    """Mean error of Q in units of ``reward``."""
    data, generator = bandit(reward), torch.Generator().manual_seed(0)
    settings: dict[str, Any] = {**SMALL, "n_ood": 0, "gamma": 0.9, "value_scale": value_scale}
    algorithm = PBRLAnchored(PBRLAnchoredConfig(**settings), total_steps=150)
    algorithm.prepare(data)
    for _ in range(150):
        algorithm.update(data.sample(128, generator))
    rows = data.gather(torch.arange(400))
    q = algorithm.q_values(rows.observations, rows.actions)
    return float((q - rows.rewards).abs().mean()) / reward


def test_values_of_any_size_are_learnt_within_few_steps() -> None:
    assert error_after_150_steps(1e4, 1.0) > 1  # the last layer is still on its way
    errors = [error_after_150_steps(reward, "auto") for reward in (1e-6, 1e-3, 1.0, 1e4)]
    assert max(errors) < 0.1
    assert max(errors) < 1.1 * min(errors)  # the same training in other units


@pytest.mark.parametrize("prior_scale", [None, 2.0])
def test_value_scale_is_the_unit_of_untrained_critics_and_priors(
    prior_scale: float | None,
) -> None:
    s, a = torch.rand(9, 3), torch.rand(9, 1)
    small, large = (
        PBRLAnchored(PBRLAnchoredConfig(value_scale=unit, prior_scale=prior_scale), 3, 1)
        for unit in (1.0, 8.0)
    )
    assert torch.allclose(large.q_values(s, a), 8 * small.q_values(s, a))
    assert torch.allclose(large.targets.values(s, a), 8 * small.targets.values(s, a))


def weight(times: float, apart: float = 0.0) -> float:
    """Of cloning, where the second critic is the first one ``times`` and ``apart`` from it."""
    settings: dict[str, Any] = {**SMALL, "cloning": 3.0, "cloning_end": 3.0}
    settings |= {"ensemble_size": 2, "critic_lr": 1e-12, "value_scale": 1.0}
    agent = PBRLAnchored(PBRLAnchoredConfig(**settings), 3, 1)
    with torch.no_grad():
        for parameter in agent.critics.main.parameters():
            parameter[1] = parameter[0]
        agent.critics.main.head_weight.mul_(1e4)
        agent.critics.main.head_weight[1] *= times
        agent.critics.main.head_bias[1] += apart
    s = torch.linspace(0, 1, 600).reshape(200, 3)  # more rows than are looked at
    batch = Batch(s, s[:, :1], torch.ones(200), s, torch.zeros(200))
    return agent.update(batch)["cloning_weight"].item()


def test_doubt_about_gains_is_their_disagreement_times_its_share() -> None:
    # Differences d and m d are |m - 1| d / 2 apart, a share of |m - 1| / |m + 1|, at most 1.
    twice = weight(2)
    assert twice > 0
    assert weight(1) == pytest.approx(0, abs=1e-3 * twice)
    assert weight(3) / twice == pytest.approx((1 * 1 / 2) / (1 / 2 * 1 / 3), rel=1e-3)
    assert weight(-1) / twice == pytest.approx(1 / (1 / 2 * 1 / 3), rel=1e-3)


def test_critics_that_differ_by_a_constant_agree_on_gains() -> None:
    assert weight(2, apart=20) == pytest.approx(weight(2), rel=1e-3)


def test_a_policy_that_acts_as_logged_is_not_held_by_its_gain() -> None:
    settings: dict[str, Any] = {**SMALL, "cloning": 3.0}
    agent = PBRLAnchored(PBRLAnchoredConfig(**settings), 3, 1)
    s = torch.rand(50, 3)
    logged = agent.act(s)
    metrics = agent.update(Batch(s, logged, torch.ones(50), s, torch.zeros(50)))
    assert metrics["cloning_weight"].item() == pytest.approx(0, abs=1e-6)


def value_beside_narrow_data(ood_margin: float) -> float:
    """Q of the logged action where every step earns 1 for ever, gamma is 0.9 and Q is 10."""
    generator = torch.Generator().manual_seed(0)
    settings: dict[str, Any] = {**SMALL, "n_ood": 1, "gamma": 0.9}
    settings |= {"lr_end": 1.0, "lr_steps": 0, "value_scale": 1.0, "policy_average": 0.0}
    settings |= {"beta_ood_schedule": "constant", "beta_ood": 0.3, "ood_floor": "none"}
    agent = PBRLAnchored(
        PBRLAnchoredConfig(**settings, ood_margin=ood_margin), 2, 1, total_steps=600
    )
    rewards, terminals = torch.ones(128), torch.zeros(128)
    for _ in range(600):
        s, s2 = torch.rand(2, 128, 2, generator=generator)
        a = 0.05 * torch.randn(128, 1, generator=generator)  # a quarter of the draws' deviation
        agent.update(Batch(s, a, rewards, s2, terminals))
    s = torch.rand(500, 2, generator=generator)
    return float(agent.q_values(s, torch.zeros(500, 1)).mean())


def test_lowering_ood_actions_to_a_margin_keeps_the_values_of_narrow_data() -> None:
    assert value_beside_narrow_data(1e9) < 0  # Eq. 5 as it is, with draws wider than the data
    assert 6 < value_beside_narrow_data(1.0) < 10


@pytest.mark.parametrize("margin", [0.0, 1.0])
def test_an_ood_action_is_lowered_until_it_is_a_margin_below_the_logged_one(margin: float) -> None:
    agent = PBRLAnchored(
        PBRLAnchoredConfig(ensemble_size=2, ood_margin=margin, ood_floor="none"), 1, 1
    )
    logged = torch.tensor([[5.0, 5.0, 5.0], [5.0, 5.0, 5.0]])
    q = torch.tensor([[6.0, 4.5, 1.0], [8.0, 6.5, 3.0]])  # U = 1
    target = agent._ood_target(q, torch.full((3,), 0.5), logged, slice(0, 3))
    # Above 5 - margin: half of U comes off; at or below it nothing does.
    lowered = torch.tensor([[0.5, 0.5 * margin, 0.0], [0.5, 0.5, 0.0]])
    torch.testing.assert_close(target, q - lowered)


def actions_of_fast(unit: float) -> torch.Tensor:
    """What ``fast`` does after 100 steps on the tiny task, its rewards in units of ``unit``."""
    tiny = tiny_dataset()
    data = TrainingData(dataclasses.replace(tiny, rewards=unit * tiny.rewards))
    generator = torch.Generator().manual_seed(0)
    agent = PBRLAnchored(PBRLAnchoredConfig(**TestPBRLAnchored.case.config), total_steps=100)
    agent.prepare(data)
    for _ in range(100):
        agent.update(data.sample(128, generator))
    return agent.act(data.gather(torch.arange(200)).observations)


def test_the_fast_policy_does_not_depend_on_the_unit_of_rewards() -> None:
    expected = actions_of_fast(1.0)
    for unit in (1e-6, 1e-3, 1e4):
        torch.testing.assert_close(actions_of_fast(unit), expected, atol=1e-3, rtol=0)


def test_a_log_without_rewards_has_no_unit() -> None:
    assert PBRLAnchored(PBRLAnchoredConfig(value_scale="auto")).prepare(
        bandit(0.0)
    )  # notes, and no error


def test_critics_start_by_the_number_of_their_inputs() -> None:
    # 4 inputs, 100 units: rlkit takes 1/sqrt(outputs), fan-in 1/sqrt(inputs).
    papers = PBRL(PBRLConfig(hidden=(100, 100)), 3, 1).critics.main.weights[0]
    ours = PBRLAnchored(PBRLAnchoredConfig(hidden=(100, 100)), 3, 1).critics.main.weights[0]
    assert 0.09 < papers.abs().max() <= 0.1
    assert 0.45 < ours.abs().max() <= 0.5


def test_a_deterministic_policy_keeps_the_deviation_of_its_draws() -> None:
    data, generator = bandit(1.0), torch.Generator().manual_seed(0)
    settings: dict[str, Any] = {**SMALL, "policy_noise": 0.2, "policy_average": 0.5, "cloning": 0.1}
    algorithm = PBRLAnchored(PBRLAnchoredConfig(**settings), total_steps=30)
    algorithm.prepare(data)
    for _ in range(30):
        algorithm.update(data.sample(128, generator))
    for policy in (algorithm.actor, algorithm.policy):
        mean, log_std = policy(torch.rand(50, 2))
        assert mean.std() > 0
        torch.testing.assert_close(log_std.exp(), torch.full_like(mean, 0.2))
