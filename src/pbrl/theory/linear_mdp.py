"""Finite linear MDPs whose truth is known: ``r = φᵀθ`` and ``P(s'|s,a) = φᵀψ(s')``, horizon T.

States and actions are finite so that optimal values come from exact dynamic programming, but
nothing a learner does depends on their number: it sees the features and the data alone. Time runs
t = 0..T-1 here (the paper counts from 1) and there is no discount, as in appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pbrl.errors import PbrlError
from pbrl.theory.regression import Floats, Ints


@dataclass(frozen=True)
class OfflineData:
    """Logged transitions of ``m`` episodes, one column a time step; every array is ``[m, T]``."""

    states: Ints
    actions: Ints
    rewards: Floats
    next_states: Ints

    @property
    def episodes(self) -> int:
        """Number of rows, m."""
        return int(self.states.shape[0])

    @property
    def horizon(self) -> int:
        """Number of time steps, T."""
        return int(self.states.shape[1])

    def split_by_step(self) -> OfflineData:
        """Use each episode for one time step only: ``[m // T, T]``.

        A value estimated from the columns after t is then independent of column t, which is what
        Theorem 1 means by a fixed V. Without it the bound needs a covering argument and a larger β.
        """
        steps = self.horizon
        rows = self.episodes // steps
        if rows == 0:
            raise PbrlError(f"Splitting needs at least {steps} episodes, got {self.episodes}.")

        row = np.arange(rows)[:, None] + rows * np.arange(steps)  # [rows, T]: a block each step
        pick = (row, np.arange(steps))
        return OfflineData(
            self.states[pick], self.actions[pick], self.rewards[pick], self.next_states[pick]
        )


@dataclass(frozen=True)
class LinearMDP:
    """A linear MDP, checked on construction.

    Attributes:
        features: ``φ(s, a)``, ``[S, A, d]``, Euclidean norm at most 1.
        theta: reward weights ``[d]``; rewards ``φᵀθ`` lie in [0, 1].
        psi: ``ψ_j(s')``, ``[d, S]``; ``φᵀψ`` is a probability over next states.
        horizon: T.
        initial: distribution of the first state, ``[S]``.
    """

    features: Floats
    theta: Floats
    psi: Floats
    horizon: int
    initial: Floats

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise PbrlError(f"The horizon must be at least 1, got {self.horizon}.")
        tolerance = 1e-9
        checks = {
            "feature norms must be at most 1": np.all(
                np.linalg.norm(self.features, axis=-1) <= 1 + tolerance
            ),
            "rewards must lie in [0, 1]": np.all(np.abs(self.rewards - 0.5) <= 0.5 + tolerance),
            "transition probabilities must not be negative": np.all(self.transitions >= -tolerance),
            "transition probabilities must sum to 1": np.all(
                np.abs(self.transitions.sum(axis=-1) - 1) <= tolerance
            ),
            "initial must be a distribution over states": np.all(self.initial >= 0)
            and abs(self.initial.sum() - 1) <= tolerance,
        }
        for rule, holds in checks.items():
            if not holds:
                raise PbrlError(f"This is not a valid linear MDP: {rule}.")

    @staticmethod
    def random(
        states: int,
        actions: int,
        dimension: int,
        horizon: int,
        rng: np.random.Generator,
        *,
        concentration: float = 0.3,
    ) -> LinearMDP:
        """A random one, valid by construction.

        Every ``φ(s, a)`` is a convex combination of d latent factors, every factor has a reward in
        [0, 1] and a distribution over next states, so rewards and kernels are convex combinations
        too and ``|φ|₂ <= |φ|₁ = 1``.

        Args:
            states: S.
            actions: A.
            dimension: d.
            horizon: T.
            rng: source of randomness.
            concentration: of the Dirichlet draws; small means nearly one-hot, large nearly uniform.
        """
        return LinearMDP(
            features=rng.dirichlet(np.full(dimension, concentration), size=(states, actions)),
            theta=rng.uniform(size=dimension),
            psi=rng.dirichlet(np.full(states, concentration), size=dimension),
            horizon=horizon,
            initial=np.full(states, 1.0 / states),
        )

    @staticmethod
    def tabular(
        transitions: Floats, rewards: Floats, horizon: int, initial: Floats | None = None
    ) -> LinearMDP:
        """The one-hot case: ``d = S A``, for ``transitions [S, A, S]`` and ``rewards [S, A]``."""
        states, actions = rewards.shape
        pairs = states * actions
        return LinearMDP(
            features=np.eye(pairs).reshape(states, actions, pairs),
            theta=rewards.reshape(pairs),
            psi=transitions.reshape(pairs, states),
            horizon=horizon,
            initial=np.full(states, 1.0 / states) if initial is None else initial,
        )

    @property
    def dimension(self) -> int:
        """d."""
        return int(self.features.shape[2])

    @cached_property
    def rewards(self) -> Floats:
        """``r(s, a)``, ``[S, A]``."""
        return self.features @ self.theta

    @cached_property
    def transitions(self) -> Floats:
        """``P(s' | s, a)``, ``[S, A, S]``."""
        return self.features @ self.psi

    def bellman_weights(self, next_values: Floats) -> Floats:
        """The true ``w [d]`` with ``T V(s, a) = φ(s, a)ᵀ w``, for ``next_values [S]``."""
        return self.theta + self.psi @ next_values

    def optimal_values(self) -> tuple[Floats, Floats]:
        """Exact ``Q* [T, S, A]`` and ``V* [T + 1, S]`` by dynamic programming (``V*[T] = 0``)."""
        return self._backward(None)

    def policy_values(self, policy: Floats) -> tuple[Floats, Floats]:
        """Exact ``Q [T, S, A]`` and ``V [T + 1, S]`` of ``policy [T, S, A]`` (probabilities)."""
        return self._backward(policy)

    def _backward(self, policy: Floats | None) -> tuple[Floats, Floats]:
        states, actions, _ = self.features.shape
        q = np.zeros((self.horizon, states, actions))
        v = np.zeros((self.horizon + 1, states))
        for t in reversed(range(self.horizon)):
            q[t] = self.features @ self.bellman_weights(v[t + 1])
            v[t] = q[t].max(axis=1) if policy is None else np.sum(policy[t] * q[t], axis=1)
        return q, v

    def start_value(self, values: Floats) -> float:
        """Expected value of the first state for ``values [T + 1, S]``."""
        return float(self.initial @ values[0])

    def occupancy(self, policy: Floats) -> Floats:
        """Probability of ``(s, a)`` at time t under ``policy [T, S, A]``; returns ``[T, S, A]``."""
        visits = np.zeros((self.horizon, *self.rewards.shape))
        state = self.initial
        for t in range(self.horizon):
            visits[t] = state[:, None] * policy[t]
            state = np.einsum("sa,sap->p", visits[t], self.transitions)
        return visits

    def sample(self, policy: Floats, episodes: int, rng: np.random.Generator) -> OfflineData:
        """``episodes`` independent episodes under ``policy [T, S, A]``."""
        transitions = self.transitions
        visited = np.zeros((episodes, self.horizon + 1), dtype=np.int64)
        actions = np.zeros((episodes, self.horizon), dtype=np.int64)
        visited[:, 0] = sample_categorical(np.tile(self.initial, (episodes, 1)), rng)
        for t in range(self.horizon):
            actions[:, t] = sample_categorical(policy[t, visited[:, t]], rng)
            visited[:, t + 1] = sample_categorical(transitions[visited[:, t], actions[:, t]], rng)
        states = visited[:, :-1]
        return OfflineData(states, actions, self.rewards[states, actions], visited[:, 1:])


def sample_categorical(probabilities: Floats, rng: np.random.Generator) -> Ints:
    """One draw a row from ``probabilities [n, k]``; returns ``[n]``."""
    edges = np.cumsum(probabilities, axis=1)
    # Scaling by the last edge keeps a row whose sum rounds below 1 from ever running off its end.
    draws = rng.random(len(probabilities)) * edges[:, -1]
    return np.asarray((edges <= draws[:, None]).sum(axis=1), dtype=np.int64)


def greedy_policy(q: Floats) -> Floats:
    """The policy that takes the (first) best action of ``q [T, S, A]``; one-hot ``[T, S, A]``."""
    return np.asarray(np.eye(q.shape[-1])[np.argmax(q, axis=-1)])


def softmax_policy(q: Floats, temperature: float) -> Floats:
    """Actions with probability proportional to ``exp(q / temperature)``; ``[T, S, A]``."""
    weights = np.exp((q - q.max(axis=-1, keepdims=True)) / temperature)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def uniform_policy(horizon: int, states: int, actions: int) -> Floats:
    """Every action alike; ``[T, S, A]``."""
    return np.full((horizon, states, actions), 1.0 / actions)
