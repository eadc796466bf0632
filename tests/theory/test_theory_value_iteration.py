"""LSVI and PEVI: exact where the data are exact, pessimistic where they must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbrl.theory import LinearMDP, OfflineData, OODSamples, Precision, lsvi, pevi, uniform_policy
from pbrl.theory.experiments.corollary1 import (
    expected_penalty,
    explicit_beta,
    quantifier_holds,
    suboptimality,
    two_action_data,
    two_action_mdp,
)


def complete_case() -> tuple[LinearMDP, OfflineData]:
    """Kernels in quarters, and data that hold each quarter once at every step."""
    rng = np.random.default_rng(3)
    states, actions, horizon = 3, 2, 4
    following = rng.integers(states, size=(states, actions, 4))
    transitions = np.zeros((states, actions, states))
    for s in range(states):
        for a in range(actions):
            transitions[s, a] = np.bincount(following[s, a], minlength=states) / 4
    mdp = LinearMDP.tabular(transitions, rng.uniform(size=(states, actions)), horizon)
    index = np.indices(following.shape).reshape(3, -1)
    rows = (index[0], index[1], following.ravel())
    columns = [np.tile(row[:, None], horizon) for row in rows]
    data = OfflineData(columns[0], columns[1], mdp.rewards[columns[0], columns[1]], columns[2])
    return mdp, data


def test_lsvi_is_dynamic_programming_on_complete_data() -> None:
    mdp, data = complete_case()
    found = lsvi(mdp.features, data, ridge=0.0)
    q, v = mdp.optimal_values()
    np.testing.assert_allclose(found.q, q, atol=1e-10)
    np.testing.assert_allclose(found.values, v, atol=1e-10)
    assert suboptimality(mdp, found.policy) == pytest.approx(0.0, abs=1e-10)


def test_true_ood_targets_do_no_harm_and_zero_targets_do() -> None:
    mdp, data = complete_case()
    rows = mdp.features.reshape(-1, mdp.dimension)
    oracle = lsvi(mdp.features, data, ridge=0.0, ood=OODSamples.oracle(mdp, rows))
    np.testing.assert_allclose(oracle.q, mdp.optimal_values()[0], atol=1e-10)
    zero = lsvi(mdp.features, data, ridge=0.0, ood=OODSamples.zero(rows))
    # Four data rows and one row of zero: the last step's rewards shrink to four fifths.
    np.testing.assert_allclose(zero.q[-1], 0.8 * mdp.rewards, atol=1e-10)


def test_ood_rows_of_root_ridge_are_ridge_in_the_whole_iteration() -> None:
    rng = np.random.default_rng(0)
    mdp = LinearMDP.random(8, 3, 5, 4, rng)
    data = mdp.sample(uniform_policy(4, 8, 3), 30, rng)
    rows = OODSamples.zero(math.sqrt(0.4) * np.eye(5))
    for beta in (0.0, 0.7):
        ridge = pevi(mdp.features, data, beta, ridge=0.4)
        ood = pevi(mdp.features, data, beta, ridge=0.0, ood=rows)
        np.testing.assert_allclose(ood.weights, ridge.weights, atol=1e-10)
        np.testing.assert_allclose(ood.penalty, ridge.penalty, atol=1e-10)
        np.testing.assert_allclose(ood.q, ridge.q, atol=1e-10)


def test_pevi_on_a_bandit_by_hand() -> None:
    """Rewards 1 and 0.5 seen once and fifteen times, λ = 1: the sure arm wins when careful."""
    mdp = LinearMDP.tabular(np.ones((1, 2, 1)), np.array([[1.0, 0.5]]), 1)
    actions = np.repeat([0, 1], [1, 15])[:, None]
    zeros = np.zeros_like(actions)
    data = OfflineData(zeros, actions, mdp.rewards[zeros, actions], zeros)
    means = np.array([1 / 2, 7.5 / 16])
    widths = np.array([1 / math.sqrt(2), 1 / 4])
    for beta, best in ((0.0, 0), (0.5, 1), (5.0, 1)):
        found = pevi(mdp.features, data, beta, ridge=1.0)
        expected = np.maximum(means - beta * widths, 0.0)
        np.testing.assert_allclose(found.q[0, 0], expected, atol=1e-12)
        assert found.policy[0, 0, best] == 1.0


def test_values_never_leave_what_is_left_to_earn() -> None:
    """A log with rewards above 1 breaks the model, yet Q stays within [0, T - t]."""
    mdp = LinearMDP.tabular(np.ones((1, 1, 1)), np.ones((1, 1)), 2)
    zeros = np.zeros((50, 2), dtype=np.int64)
    found = lsvi(mdp.features, OfflineData(zeros, zeros, np.full((50, 2), 9.0), zeros))
    np.testing.assert_array_equal(found.q.ravel(), [2.0, 1.0])


def test_explicit_beta_of_each_step_by_hand() -> None:
    """T = 3, ξ = 0.3: a share of 0.1 a step, noise scales 1, 1/2 and 0; det ratio 4 · 4."""
    beta = explicit_beta(np.eye(2), 3, 0.3)
    assert callable(beta)
    root = math.sqrt(2 * math.log(10) + math.log(16))
    precision = Precision.of(4.0 * np.eye(2))
    assert [beta(t, precision) for t in range(3)] == pytest.approx([root, root / 2, 0.0])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    beta=st.floats(0.0, 3.0),
    episodes=st.integers(1, 60),
    ridge=st.floats(0.01, 2.0),
)
def test_where_the_penalty_covers_the_error_the_bound_holds(
    seed: int, beta: float, episodes: int, ridge: float
) -> None:
    """Corollary 1 with the 2 is a deduction, so no dataset may contradict it."""
    rng = np.random.default_rng(seed)
    mdp = LinearMDP.random(6, 3, 4, 3, rng)
    data = mdp.sample(uniform_policy(3, 6, 3), episodes, rng)
    found = pevi(mdp.features, data, beta, ridge=ridge)
    assert np.all(found.q >= 0)
    for t in range(3):
        assert np.all(found.q[t] <= 3 - t)
    if quantifier_holds(mdp, found):
        gap = suboptimality(mdp, found.policy)
        assert gap <= 2 * expected_penalty(mdp, found) + 1e-9
        assert np.all(found.values <= mdp.policy_values(found.policy)[1] + 1e-9)


def test_the_implication_is_put_to_the_test() -> None:
    """The property above is not empty: Γ covers the error in some runs and not in others."""
    held = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        mdp = LinearMDP.random(6, 3, 4, 3, rng)
        data = mdp.sample(uniform_policy(3, 6, 3), 30, rng)
        held.append(quantifier_holds(mdp, pevi(mdp.features, data, 0.3, ridge=0.1)))
    assert 0 < sum(held) < 40


def test_counterexample_to_the_bound_without_the_two() -> None:
    """By hand: 100 gambles of which 44 won, 10000 sure; one OOD row a pair; Γ = 2 / sqrt(N + 1)."""
    penalty = 2 / math.sqrt(101)
    sure = 0.5 - 1.05 * penalty
    mdp = two_action_mdp(sure)
    data = two_action_data(mdp, 44, 100, 10_000)
    ood = OODSamples.oracle(mdp, np.eye(8))
    found = pevi(mdp.features, data, lambda t, _: 2.0 if t == 0 else 0.0, ridge=0.0, ood=ood)
    np.testing.assert_allclose(
        found.q[0, 0], [44.5 / 101 - penalty, sure - 2 / math.sqrt(10_001)], atol=1e-10
    )
    assert found.policy[0, 0, 1] == 1.0  # the sure thing, though the gamble is better
    assert quantifier_holds(mdp, found)
    gap, limit = suboptimality(mdp, found.policy), expected_penalty(mdp, found)
    assert gap == pytest.approx(1.05 * penalty, abs=1e-10)
    assert limit == pytest.approx(penalty, abs=1e-10)
    assert limit < gap <= 2 * limit
