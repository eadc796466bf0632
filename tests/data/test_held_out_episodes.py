"""Picking and holding out whole episodes."""

from __future__ import annotations

import numpy as np
import pytest

from pbrl.data.dataset import Cuts, TransitionDataset
from pbrl.data.episodes import choose_episodes, pick_episodes, split_episodes
from pbrl.errors import PbrlError


def log(lengths: tuple[int, ...]) -> TransitionDataset:
    """Rewards number the rows; every episode is cut, and 100 + row was done at the cut."""
    rows = sum(lengths)
    ends = np.zeros(rows, np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    s = np.arange(rows, dtype=np.float32)[:, None]
    cuts = Cuts(np.flatnonzero(ends), 100 + s[ends])
    return TransitionDataset(s, s, s[:, 0], s + 1, np.zeros(rows, np.bool_), ends, cuts=cuts)


def test_episodes_are_picked_whole_and_in_order() -> None:
    picked = pick_episodes(log((2, 3, 1, 2)), [3, 1])
    assert picked.rewards.tolist() == [2, 3, 4, 6, 7]
    assert [(e.start, e.stop) for e in picked.episodes()] == [(0, 3), (3, 5)]
    # What the log did at the cuts came along.
    assert picked.next_actions(np.array([1, 2, 4]))[:, 0].tolist() == [4, 104, 107]
    with pytest.raises(PbrlError, match="no number 4"):
        pick_episodes(log((2, 3, 1, 2)), [0, 4])


def test_held_out_episodes_are_random_whole_and_repeatable() -> None:
    numbers = choose_episodes(10, 0.3, seed=0)
    assert len(numbers) == 3
    assert numbers.tolist() == choose_episodes(10, 0.3, seed=0).tolist()
    assert any(choose_episodes(10, 0.3, s).tolist() != numbers.tolist() for s in range(1, 4))
    assert choose_episodes(2, 0.99, seed=0).size == 1
    data = log((2, 3, 1, 2))
    kept, held = split_episodes(data, np.array([1, 2]))
    assert kept.rewards.tolist() == [0, 1, 6, 7]
    assert held.rewards.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(("episodes", "share"), [(1, 0.3), (10, 0.0), (10, 1.0)])
def test_what_cannot_be_held_out_is_refused(episodes: int, share: float) -> None:
    with pytest.raises(PbrlError):
        choose_episodes(episodes, share, seed=0)
