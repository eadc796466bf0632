"""A small tabular MDP, one-hot encoded, whose policies have exactly known values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import DatasetInfo, TransitionDataset


@dataclass(frozen=True)
class TabularMDP:
    """``transitions [S, A, S + 1]`` (the last column ends the episode), ``rewards [S, A]``."""

    transitions: NDArray[np.float64]
    rewards: NDArray[np.float64]
    initial: NDArray[np.float64]

    @staticmethod
    def random(states: int = 5, actions: int = 3, seed: int = 0) -> TabularMDP:
        rng = np.random.default_rng(seed)
        transitions = rng.dirichlet(np.full(states + 1, 0.5), (states, actions))
        return TabularMDP(
            transitions, rng.uniform(0, 1, (states, actions)), rng.dirichlet(np.ones(states))
        )

    def value(self, policy: NDArray[Any], gamma: float) -> float:
        """Exact discounted value at the initial states of ``policy``.

        The policy is a table of actions ``[S]`` or of their probabilities ``[S, A]``.
        """
        chances = policy if policy.ndim == 2 else np.eye(self.rewards.shape[1])[policy]
        p = np.einsum("sa,sat->st", chances, self.transitions[:, :, :-1])
        r = (chances * self.rewards).sum(1)
        return float(self.initial @ np.linalg.solve(np.eye(len(p)) - gamma * p, r))

    def action_values(self, chances: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
        """Exact Q ``[S, A]`` of a policy with these probabilities ``[S, A]``."""
        inner = self.transitions[:, :, :-1]
        p = np.einsum("sa,sat->st", chances, inner)
        r = (chances * self.rewards).sum(1)
        values = np.linalg.solve(np.eye(len(p)) - gamma * p, r)
        return np.asarray(self.rewards + gamma * inner @ values)

    def log(self, episodes: int, horizon: int, seed: int, noise: float = 0.3) -> TransitionDataset:
        """Episodes of uniformly random actions with noisy rewards, cut off after ``horizon``."""
        rng = np.random.default_rng(seed)
        s_count, a_count = self.rewards.shape
        rows: list[tuple[int, int, float, int, bool, bool]] = []
        for _ in range(episodes):
            s = int(rng.choice(s_count, p=self.initial))
            for t in range(horizon):
                a = int(rng.integers(a_count))
                after = int(rng.choice(s_count + 1, p=self.transitions[s, a]))
                reward = self.rewards[s, a] + noise * rng.normal()
                ended = after == s_count
                rows.append((s, a, reward, min(after, s_count - 1), ended, t == horizon - 1))
                if ended:
                    break
                s = after
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        s_eye, a_eye = np.eye(s_count, dtype=np.float32), np.eye(a_count, dtype=np.float32)
        return TransitionDataset(
            s_eye[columns[0]],
            a_eye[columns[1]],
            columns[2].astype(np.float32),
            s_eye[columns[3]],
            columns[4].astype(np.bool_),
            (columns[4] | columns[5]).astype(np.bool_),
            DatasetInfo("tabular"),
        )


def table_policy(table: NDArray[np.int64], actions: int) -> Any:
    """A deterministic table as a function of one-hot observations."""
    eye = np.eye(actions, dtype=np.float32)

    def act(observations: NDArray[Any]) -> NDArray[np.float32]:
        picked: NDArray[np.float32] = eye[table[observations.argmax(1)]]
        return picked

    return act
