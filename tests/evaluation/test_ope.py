"""Fitted Q evaluation against exactly known values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from tabular import TabularMDP, table_policy

from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.errors import PbrlError
from pbrl.evaluation.estimate import t_quantile
from pbrl.evaluation.ope import (
    FQEConfig,
    ValueEstimate,
    behaviour_value,
    fitted_q_evaluation,
    log_value,
)
from pbrl.evaluation.ranking import rank_policies, spearman

SMALL = FQEConfig(
    gamma=0.9, hidden=(32,), ensemble_size=6, steps=500, batch_size=64, tau=0.05, learning_rate=3e-3
)


def empirical_value(log: TransitionDataset, table: NDArray[np.int64], gamma: float) -> float:
    """Exact value in the MDP of the log's own frequencies and mean rewards."""
    s, a, s2 = (x.argmax(1) for x in (log.observations, log.actions, log.next_observations))
    states = len(table)
    p, r = np.zeros((states, states)), np.zeros(states)
    for state in range(states):
        rows = (s == state) & (a == table[state])
        r[state] = log.rewards[rows].mean()
        for after in s2[rows & ~log.terminals]:
            p[state, after] += 1 / rows.sum()
    starts = s[[rows.start for rows in log.episodes()]]
    values = np.linalg.solve(np.eye(states) - gamma * p, r)
    return float(values[starts].mean())


def test_value_of_a_tabular_policy_lies_in_the_interval() -> None:
    mdp, table = TabularMDP.random(), np.array([0, 1, 2, 0, 1])
    truth = mdp.value(table, SMALL.gamma)
    log = mdp.log(episodes=150, horizon=30, seed=1)
    estimate = fitted_q_evaluation(table_policy(table, 3), log, SMALL)
    assert estimate.low <= truth <= estimate.high
    # The members only see the log: what they must find is the value in the MDP the log describes.
    assert estimate.value == pytest.approx(empirical_value(log, table, SMALL.gamma), rel=0.05)
    assert estimate.curve.shape == (len(estimate.curve_steps), 6)
    # Another policy is worth something else, and the estimate follows it.
    values = {bits: mdp.value(np.array(bits), SMALL.gamma) for bits in np.ndindex(3, 3, 3, 3, 3)}
    best, worst = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    estimates = [
        fitted_q_evaluation(table_policy(np.array(bits), 3), log, SMALL).value
        for bits in (best, worst)
    ]
    assert estimates[0] - estimates[1] > 0.5 * (values[best] - values[worst])


def corridor(second_reward: dict[float, float]) -> TransitionDataset:
    """s = 0 -> s = 1 -> end. The first step earns 0, the second what its action says."""
    rng = np.random.default_rng(0)
    episodes = 60
    s = np.tile(np.array([[0.0], [1.0]], np.float32), (episodes, 1))
    a = rng.choice(np.array([-1.0, 1.0], np.float32), (2 * episodes, 1))
    r = np.zeros(2 * episodes, np.float32)
    r[1::2] = [second_reward[float(x)] for x in a[1::2, 0]]
    ends = np.tile([False, True], episodes)
    return TransitionDataset(s, a, r, 1 - s, ends, ends, DatasetInfo("corridor"))


@pytest.mark.parametrize(("at_zero", "at_one"), [(1.0, -1.0), (-1.0, 1.0)])
def test_bootstraps_from_the_next_state_and_the_policy_there(at_zero: float, at_one: float) -> None:
    """Value of s = 0 is gamma * reward of pi(1) at 1: s or pi(s) in place of s' gets it wrong."""
    log = corridor({-1.0: 2.0, 1.0: 10.0})

    def policy(observations: NDArray[Any]) -> NDArray[Any]:
        return np.where(observations < 0.5, at_zero, at_one).astype(np.float32)

    estimate = fitted_q_evaluation(policy, log, SMALL)
    expected = 0.9 * (10.0 if at_one > 0 else 2.0)
    assert estimate.value == pytest.approx(expected, rel=0.06)


def test_interval_narrows_with_more_episodes_and_widens_with_level() -> None:
    mdp, table = TabularMDP.random(), np.array([0, 1, 2, 0, 1])
    widths = []
    for episodes in (25, 400):
        log = mdp.log(episodes, horizon=20, seed=3, noise=1.0)
        estimate = fitted_q_evaluation(table_policy(table, 3), log, SMALL)
        widths.append(estimate.high - estimate.low)
    assert widths[1] < 0.6 * widths[0]


def test_behaviour_value_is_the_mean_discounted_return() -> None:
    rewards = np.array([1, 2, 3, 4, 5], np.float32)
    ends = np.array([False, False, True, False, True])
    zeros = np.zeros((5, 1), np.float32)
    whole = TransitionDataset(zeros, zeros, rewards, zeros, ends, ends)
    estimate = behaviour_value(whole, 0.5)
    assert estimate.value == pytest.approx(((1 + 1 + 0.75) + (4 + 2.5)) / 2)
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.notes == ()


def unbroken(episodes: int, length: int) -> TransitionDataset:
    """Batches cut out of a process that never ends and earns 1 at every step."""
    rows = episodes * length
    rng = np.random.default_rng(0)
    s = rng.normal(size=(rows, 1)).astype(np.float32)
    a = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    ends = np.tile(np.arange(length) == length - 1, episodes)
    rewards, never = np.ones(rows, np.float32), np.zeros(rows, np.bool_)
    return TransitionDataset(s, a, rewards, np.roll(s, -1, 0), never, ends)


def test_policy_and_log_are_valued_alike_beyond_the_time_limit() -> None:
    """1 at every step is worth 1 / (1 - 0.9) = 10; the ten logged rewards alone only 6.51."""
    log = unbroken(episodes=30, length=10)
    cut = log_value(log, SMALL)
    np.testing.assert_allclose(cut.returns, (1 - 0.9**10) / 0.1, rtol=1e-6)
    np.testing.assert_allclose(cut.missing, 0.9**10)
    behaviour = behaviour_value(log, 0.9, config=SMALL)
    policy = fitted_q_evaluation(lambda s: np.zeros_like(s), log, SMALL)
    assert behaviour.value == pytest.approx(10, rel=0.02)
    assert policy.value == pytest.approx(10, rel=0.05)
    assert "35% of the discounted weight" in behaviour.notes[0]


def test_a_cut_that_hardly_matters_is_not_fitted() -> None:
    log = unbroken(episodes=3, length=100)
    value = log_value(log, SMALL)
    assert value.fit is None
    assert value.by_episode == pytest.approx((1 - 0.9**100) / 0.1)


def test_t_quantile_agrees_with_scipy_and_errs_on_the_safe_side() -> None:
    for degrees in (1, 2, 4, 5, 9, 19, 100):
        for p in (0.9, 0.95, 0.975):
            exact = scipy.stats.t.ppf(p, degrees)
            assert t_quantile(p, degrees) == pytest.approx(exact, rel=6e-3)
    for few in (1.5, 2.7, 3.0, 3.9):
        assert t_quantile(0.95, few) >= scipy.stats.t.ppf(0.95, few)


def test_spearman_agrees_with_scipy_including_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 6, 9), rng.integers(0, 6, 9)
        assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


def estimate_of(samples: list[float]) -> ValueEstimate:
    values = np.array(samples)
    empty = np.zeros((0, len(values)))
    mean = float(values.mean())
    return ValueEstimate(
        mean, values.min(), values.max(), 0.95, 0.9, values, np.zeros(0, np.int64), empty
    )


def test_ranking_is_paired_and_says_how_far_to_trust_it() -> None:
    luck = np.random.default_rng(0).normal(0, 10, 8)  # shared by all policies
    sure = rank_policies(
        {
            "a": estimate_of(list(luck)),
            "c": estimate_of(list(luck + 2)),
            "b": estimate_of(list(luck + 1)),
        }
    )
    assert sure.names == ("c", "b", "a")
    assert sure.best.tolist() == [1, 0, 0]
    assert sure.agreement == 1
    assert "firm" in sure.verdict
    moving = dataclasses.replace(
        estimate_of(list(luck)), curve=np.linspace(0, 99, 30)[:, None] * np.ones(8)
    )
    early = rank_policies({"a": moving, "c": estimate_of(list(luck + 2))})
    assert "Not every estimate has settled" in early.verdict
    unsure = rank_policies({"a": estimate_of([1, 3, 1, 3]), "b": estimate_of([3.1, 1, 3, 1])})
    assert unsure.names[0] == "b"
    assert unsure.best[0] == 0.5
    assert "chance" in unsure.verdict
    with pytest.raises(PbrlError, match="two"):
        rank_policies({"a": estimate_of([1, 2])})


def test_bad_input_gets_a_sentence() -> None:
    log = corridor({-1.0: 2.0, 1.0: 10.0})
    with pytest.raises(PbrlError, match="shape"):
        fitted_q_evaluation(lambda s: np.zeros((len(s), 3)), log, SMALL)
    with pytest.raises(PbrlError, match="NaN"):
        fitted_q_evaluation(lambda s: np.full((len(s), 1), np.nan), log, SMALL)
    with pytest.raises(PbrlError, match="empty"):
        fitted_q_evaluation(lambda s: s, log.rows(slice(0, 0)), SMALL)
    for bad in ({"gamma": 1.0}, {"ensemble_size": 2}, {"tau": 0}, {"level": 1}, {"steps": 0}):
        with pytest.raises(PbrlError, match=next(iter(bad))):
            FQEConfig(**bad)


def test_few_episodes_and_unfinished_learning_are_said() -> None:
    log = corridor({-1.0: 2.0, 1.0: 10.0}).rows(slice(0, 20))
    short = FQEConfig(gamma=0.9, hidden=(16,), ensemble_size=3, steps=40, tau=0.005)
    estimate = fitted_q_evaluation(lambda s: np.ones_like(s), log, short)
    assert any("Only 10 episodes" in note for note in estimate.notes)
    assert any("more steps" in note for note in estimate.notes)
    wide = ValueEstimate(
        **{**vars(estimate), "low": 0.0, "high": 2.0, "value": 1.0, "curve": np.full((20, 3), 1.0)}
    )
    assert wide.converged
    moving = np.linspace(0, 1, 20)[:, None].repeat(3, 1)
    assert not ValueEstimate(**{**vars(wide), "curve": moving}).converged
