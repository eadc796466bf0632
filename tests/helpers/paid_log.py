"""A log whose every policy has a known value: the reward is the first action."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import DatasetInfo, TransitionDataset


def paid_by_action(
    episodes: int = 80, length: int = 5, noise: float = 0.3, ending: float = 0.0, seed: int = 0
) -> TransitionDataset:
    """The reward is the first action, whatever the state; the log does 0.2 s, with noise.

    Doing c for ever is worth c / (1 - gamma (1 - ending)).
    """
    rng = np.random.default_rng(seed)
    lengths = np.full(episodes, length)
    if ending:
        lengths = rng.geometric(ending, episodes)
    rows = int(lengths.sum())
    s = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    a = np.clip(0.2 * s + noise * rng.normal(size=(rows, 2)), -1, 1).astype(np.float32)
    ends = np.zeros(rows, np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    after = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    inside = np.flatnonzero(~ends)
    after[inside] = s[inside + 1]
    info = DatasetInfo("paid", action_low=-np.ones(2, "f4"), action_high=np.ones(2, "f4"))
    terminals = ends if ending else np.zeros(rows, np.bool_)
    return TransitionDataset(s, a, a[:, 0].copy(), after, terminals, ends, info)


def always(value: float) -> Any:
    def act(observations: NDArray[Any]) -> NDArray[Any]:
        return np.full((len(observations), 2), value, np.float32)

    return act
