"""What the log earned from each row on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pbrl.data import DatasetInfo, TrainingData, TransitionDataset, convert, load_dataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import ReturnRows, discount


def plainly(
    rewards: np.ndarray, ends: np.ndarray, terminals: np.ndarray, gamma: float, tail: float
) -> np.ndarray:
    """Row by row from the back, as the definition says."""
    out, following = np.zeros(len(rewards)), 0.0
    for row in reversed(range(len(rewards))):
        if ends[row] or row == len(rewards) - 1:
            following = 0.0 if terminals[row] else tail
        following = out[row] = rewards[row] + gamma * following
    return out


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
@pytest.mark.parametrize("end", [0.0, 0.01, 0.5, 1.0])
def test_discount_is_the_definition(rows: int, end: float) -> None:
    rng = np.random.default_rng(rows)
    rewards, ends = rng.normal(size=rows), rng.random(rows) < end
    terminals = ends & (rng.random(rows) < 0.5)
    made = discount(rewards, ends, terminals, 0.97, 5.0)
    np.testing.assert_allclose(made, plainly(rewards, ends, terminals, 0.97, 5.0), rtol=1e-12)


def by_hand() -> TransitionDataset:
    """One episode that terminates, one that is cut, one row where the log stops."""
    rewards = np.array([1, 2, 3, 4, 5, 6], np.float32)
    terminals = np.array([0, 1, 0, 0, 0, 0], bool)
    ends = np.array([0, 1, 0, 0, 1, 0], bool)
    s = np.arange(12, dtype=np.float32).reshape(6, 2)
    a = np.zeros((6, 1), np.float32)
    return TransitionDataset(s, a, rewards, s + 1, terminals, ends, DatasetInfo("by hand"))


def test_returns_by_hand_and_cut_episodes_go_on_at_the_mean_reward() -> None:
    tail = 3.5 / (1 - 0.5)
    expected = [1 + 1, 2, 3 + 2 + 1.25 + tail / 8, 4 + 2.5 + tail / 4, 5 + tail / 2, 6 + tail / 2]
    assert TrainingData(by_hand()).discounted_returns(0.5).tolist() == pytest.approx(expected)


def test_returns_are_in_network_units() -> None:
    maps = Preprocessing.identity(2, 1)
    scaled = Preprocessing(
        maps.observation_shift,
        maps.observation_scale,
        maps.action_low,
        maps.action_high,
        reward_scale=2.0,
    )
    raw, halved = (TrainingData(by_hand(), m).discounted_returns(0.9) for m in (maps, scaled))
    assert torch.allclose(halved, raw / 2)


def test_some_rows_of_a_batch_are_whole_futures(tmp_path: Path) -> None:
    log = by_hand()
    np.savez(
        tmp_path / "log.npz",
        observations=log.observations,
        actions=log.actions,
        rewards=log.rewards,
        next_observations=log.next_observations,
        terminals=log.terminals,
        timeouts=log.episode_ends & ~log.terminals,
    )
    store = load_dataset(convert(tmp_path / "log.npz", tmp_path / "log.store").path)
    assert store.memory_mapped
    for data in (TrainingData(by_hand()), TrainingData(store)):
        plain = data.sample(40, torch.Generator().manual_seed(3))
        mixed = data.sample(40, torch.Generator().manual_seed(3), ReturnRows(0.25, 0.5))
        row = (mixed.observations[:, 0] / 2).long()
        returns = data.discounted_returns(0.5)
        assert torch.equal(mixed.observations, plain.observations)
        assert torch.equal(mixed.rewards[:10], returns[row[:10]])
        assert torch.equal(mixed.rewards[10:], plain.rewards[10:])
        assert mixed.terminals[:10].all()
        assert torch.equal(mixed.terminals[10:], plain.terminals[10:])
        # What was handed out is a copy: the next batch is as logged.
        again = data.sample(40, torch.Generator().manual_seed(3))
        assert torch.equal(again.rewards, plain.rewards)
