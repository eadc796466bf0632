"""A continuous task whose every policy can be played thousands of times: a point on a plane.

Position and velocity [4] in, a force [2] in [-1, 1] out; friction, noise, a reward that falls with
the distance from the origin and with the force. All episodes are stepped side by side in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl import DatasetInfo, TransitionDataset

Act = Callable[[NDArray[Any]], NDArray[Any]]
GAMMA, HORIZON = 0.95, 40


@dataclass(frozen=True)
class Point:
    """The task; ``mass`` and ``friction`` can be changed, and observations moved."""

    mass: float = 1.0
    friction: float = 0.3
    offset: float = 0.0
    push: float = 0.0

    def play(
        self, act: Act, episodes: int, seed: int, noise: float = 0.0, horizon: int = HORIZON
    ) -> dict[str, NDArray[Any]]:
        """Episodes of ``act`` with normal noise on its actions; arrays ``[episodes, horizon, …]``.

        With ``push``, all velocities get a push of that size at a third of the episode.
        """
        rng = np.random.default_rng(seed)
        position = rng.uniform(-1, 1, (episodes, 2))
        velocity = rng.normal(0, 0.2, (episodes, 2))
        rows: dict[str, list[NDArray[Any]]] = {k: [] for k in ("s", "a", "r", "s2")}
        for step in range(horizon):
            if self.push and step == horizon // 3:
                velocity = velocity + self.push * np.sign(velocity)
            s = np.concatenate([position, velocity], 1) + self.offset * np.array([1.0, 1, 0, 0])
            a = np.clip(act(s.astype(np.float32)) + noise * rng.normal(size=(episodes, 2)), -1, 1)
            velocity = velocity + 0.25 * (a - self.friction * velocity) / self.mass
            velocity = velocity + 0.03 * rng.normal(size=velocity.shape)
            position = np.clip(position + 0.25 * velocity, -3, 3)
            reward = 1 - np.hypot(*position.T) - 0.1 * np.square(a).sum(1)
            after = np.concatenate([position, velocity], 1) + self.offset * np.array([1.0, 1, 0, 0])
            for key, value in zip(rows, (s, a, reward, after), strict=True):
                rows[key].append(value)
        return {key: np.stack(values, 1) for key, values in rows.items()}

    def value(self, act: Act, noise: float = 0.0, episodes: int = 2000, seed: int = 999) -> float:
        """Discounted value without end, to three digits: 200 steps are played."""
        rewards = self.play(act, episodes, seed, noise, horizon=200)["r"]
        return float((rewards * GAMMA ** np.arange(200)).sum(1).mean())

    def log(self, act: Act, episodes: int, seed: int, noise: float) -> TransitionDataset:
        """A log of ``act`` with noise: episodes cut after HORIZON steps, none ends for good."""
        return as_log(self.play(act, episodes, seed, noise))


def as_log(played: dict[str, NDArray[Any]]) -> TransitionDataset:
    """Played episodes as a dataset."""
    flat = {k: v.reshape(-1, *v.shape[2:]).astype(np.float32) for k, v in played.items()}
    episodes, horizon = played["r"].shape
    ends = np.tile(np.arange(horizon) == horizon - 1, episodes)
    info = DatasetInfo("point", action_low=-np.ones(2, "f4"), action_high=np.ones(2, "f4"))
    never = np.zeros(len(ends), bool)
    return TransitionDataset(flat["s"], flat["a"], flat["r"], flat["s2"], never, ends, info)


def regulator(gain: float, damping: float, turn: float = 0.0) -> Act:
    """A linear regulator; ``turn`` (radians) makes it pull past the origin."""
    c, s = np.cos(turn), np.sin(turn)
    matrix = np.array([[c, -s], [s, c]])

    def act(observations: NDArray[Any]) -> NDArray[Any]:
        pull = -gain * observations[:, :2] @ matrix.T - damping * observations[:, 2:]
        return np.clip(pull, -1, 1).astype(np.float32)

    return act


POLICIES: dict[str, Act] = {
    f"g{gain:g} d{damping:g} t{turn:g}": regulator(gain, damping, turn)
    for gain, damping, turn in [
        (-0.5, 0.0, 0.0), (-0.2, 0.2, 0.0), (0.0, 0.0, 0.0), (0.2, 0.0, 0.8), (0.3, 0.0, 0.0),
        (0.4, 0.2, 0.6), (0.5, 0.3, 0.0), (0.8, 0.2, 0.0), (0.8, 0.6, 0.4), (1.0, 0.6, 0.0),
        (1.5, 0.8, 0.0), (2.0, 1.5, 0.0),
    ]
}  # fmt: skip
