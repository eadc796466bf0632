"""The MDPs themselves: valid by construction, and exact where they claim to be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbrl.errors import PbrlError
from pbrl.theory import LinearMDP, OfflineData, greedy_policy, softmax_policy, uniform_policy


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 7), st.integers(1, 4)),
    concentration=st.floats(0.05, 5.0),
)
def test_random_mdps_are_valid(
    seed: int, sizes: tuple[int, int, int, int], concentration: float
) -> None:
    rng = np.random.default_rng(seed)
    mdp = LinearMDP.random(*sizes, rng, concentration=concentration)
    kernel = np.einsum("sad,dp->sap", mdp.features, mdp.psi)
    assert np.all(kernel >= 0)
    np.testing.assert_allclose(kernel.sum(axis=-1), 1.0, atol=1e-10)
    reward = np.einsum("sad,d->sa", mdp.features, mdp.theta)
    assert np.all(reward >= 0)
    assert np.all(reward <= 1 + 1e-12)
    assert np.all(np.sum(mdp.features**2, axis=-1) <= 1 + 1e-12)


def tiny() -> LinearMDP:
    rng = np.random.default_rng(5)
    return LinearMDP.tabular(
        rng.dirichlet(np.ones(2), size=(2, 2)), rng.uniform(size=(2, 2)), 3, np.array([0.3, 0.7])
    )


def value_by_paths(mdp: LinearMDP, choice: np.ndarray) -> float:
    """Expected return of a deterministic policy ``choice [T, S]`` by listing every path."""
    total = 0.0
    for path in itertools.product(range(2), repeat=mdp.horizon):
        probability, reward = mdp.initial[path[0]], 0.0
        for t, state in enumerate(path):
            action = choice[t, state]
            reward += mdp.rewards[state, action]
            if t + 1 < mdp.horizon:
                probability *= mdp.transitions[state, action, path[t + 1]]
        total += probability * reward
    return float(total)


def test_optimal_values_are_the_best_of_all_policies() -> None:
    mdp = tiny()
    choices = [np.array(c).reshape(3, 2) for c in itertools.product(range(2), repeat=6)]
    best = max(value_by_paths(mdp, choice) for choice in choices)
    q, v = mdp.optimal_values()
    assert mdp.start_value(v) == pytest.approx(best, abs=1e-10)
    greedy = greedy_policy(q)
    assert value_by_paths(mdp, greedy.argmax(axis=-1)) == pytest.approx(best, abs=1e-10)
    assert mdp.start_value(mdp.policy_values(greedy)[1]) == pytest.approx(best, abs=1e-10)


def test_value_is_reward_under_the_occupancy() -> None:
    rng = np.random.default_rng(0)
    mdp = LinearMDP.random(7, 3, 4, 5, rng)
    policy = softmax_policy(rng.standard_normal((5, 7, 3)), 0.7)
    visits = mdp.occupancy(policy)
    np.testing.assert_allclose(visits.sum(axis=(1, 2)), 1.0, atol=1e-10)
    value = mdp.start_value(mdp.policy_values(policy)[1])
    assert value == pytest.approx(float(np.sum(visits * mdp.rewards)), abs=1e-10)


def test_samples_follow_the_occupancy_and_the_kernel() -> None:
    """Hoeffding over every cell at once: fails by chance less than once in 10^6 runs."""
    mdp, episodes = tiny(), 20_000
    policy = softmax_policy(np.random.default_rng(1).standard_normal((3, 2, 2)), 1.0)
    data = mdp.sample(policy, episodes, np.random.default_rng(2))
    joint = mdp.occupancy(policy)[:, :, :, None] * mdp.transitions
    cells = joint.size
    tolerance = np.sqrt(np.log(2 * cells / 1e-6) / (2 * episodes))
    for t, s, a, p in itertools.product(range(3), range(2), range(2), range(2)):
        seen = np.mean(
            (data.states[:, t] == s) & (data.actions[:, t] == a) & (data.next_states[:, t] == p)
        )
        assert abs(seen - joint[t, s, a, p]) < tolerance
    np.testing.assert_array_equal(data.states[:, 1:], data.next_states[:, :-1])
    np.testing.assert_array_equal(data.rewards, mdp.rewards[data.states, data.actions])


def test_split_by_step_uses_an_episode_once() -> None:
    labels = np.arange(7)[:, None] * np.ones((7, 3), dtype=np.int64)  # entry = its episode
    data = OfflineData(labels, labels, labels.astype(float), labels).split_by_step()
    assert data.states.shape == (2, 3)
    assert len(np.unique(data.states)) == data.states.size
    with pytest.raises(PbrlError, match="at least 3 episodes"):
        OfflineData(labels[:2], labels[:2], labels[:2].astype(float), labels[:2]).split_by_step()


def test_tabular_is_what_was_given() -> None:
    rng = np.random.default_rng(0)
    transitions, rewards = rng.dirichlet(np.ones(4), size=(4, 3)), rng.uniform(size=(4, 3))
    mdp = LinearMDP.tabular(transitions, rewards, 2)
    np.testing.assert_array_equal(mdp.transitions, transitions)
    np.testing.assert_array_equal(mdp.rewards, rewards)
    assert mdp.dimension == 12


def test_uniform_policy_is_uniform() -> None:
    np.testing.assert_array_equal(uniform_policy(2, 3, 4), np.full((2, 3, 4), 0.25))


def test_invalid_mdps_are_refused() -> None:
    mdp = tiny()
    with pytest.raises(PbrlError, match="rewards"):
        replace(mdp, theta=mdp.theta + 1.0)
    with pytest.raises(PbrlError, match="sum to 1"):
        replace(mdp, psi=mdp.psi * 0.9)
    with pytest.raises(PbrlError, match="negative"):
        replace(mdp, psi=np.tile([-0.5, 1.5], (4, 1)))
    with pytest.raises(PbrlError, match="norms"):
        replace(mdp, features=2.0 * mdp.features)
    with pytest.raises(PbrlError, match="initial"):
        replace(mdp, initial=np.array([0.5, 0.6]))
    with pytest.raises(PbrlError, match="horizon"):
        replace(mdp, horizon=0)
