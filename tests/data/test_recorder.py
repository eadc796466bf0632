"""Recording a Gymnasium loop into a file that loads as what happened."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from pbrl.data import EpisodeRecorder, Recorder, load_dataset
from pbrl.errors import PbrlError


class Counting(gymnasium.Env[np.ndarray, np.ndarray]):
    """Counts steps; ends for good after ``limit`` of them."""

    def __init__(self, limit: int = 4) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-2, 2, (1,), np.float32)
        self.limit = limit
        self.episode = 0

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        self.episode += 1
        self.count = 0
        return np.array([self.episode, 0.0]), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        self.count += 1
        done = self.count == self.limit
        return np.array([self.episode, self.count]), float(self.count), done, False, {}


@pytest.mark.parametrize("name", ["x.hdf5", "x.npz", "x.csv", "x.parquet", "x.store"])
def test_a_loop_comes_back(tmp_path: Path, name: str) -> None:
    env = EpisodeRecorder(Counting(), tmp_path / name, recipe={"policy": "none", "seed": 1})
    env.reset()
    for _ in range(4):
        env.step(np.array([0.5]))
    env.reset()
    for _ in range(2):
        env.step(np.array([-0.5]))
    env.reset()  # in the middle of the second episode
    env.step(np.array([2.0]))
    assert not (tmp_path / name).exists()
    env.close()
    dataset = load_dataset(tmp_path / name)
    np.testing.assert_array_equal(
        dataset.observations, [[1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1], [3, 0]]
    )
    np.testing.assert_array_equal(
        dataset.next_observations, dataset.observations + np.array([0, 1])
    )
    np.testing.assert_array_equal(dataset.rewards, [1, 2, 3, 4, 1, 2, 1])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(dataset.episode_ends, [0, 0, 0, 1, 0, 1, 1])
    assert dataset.info.action_low is not None
    np.testing.assert_array_equal(dataset.info.action_low, [-2])


def test_a_real_environment_is_known_by_its_file(tmp_path: Path) -> None:
    env = EpisodeRecorder(gymnasium.make("Pendulum-v1"), tmp_path / "p.npz")
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(250):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    env.close()
    dataset = load_dataset(tmp_path / "p.npz")
    assert len(dataset) == 250
    assert dataset.info.env_id == "Pendulum-v1"
    # Pendulum is cut after 200 steps and never terminates.
    assert not dataset.terminals.any()
    assert np.flatnonzero(dataset.episode_ends).tolist() == [199, 249]


def test_long_recordings_keep_every_row(tmp_path: Path) -> None:
    env = EpisodeRecorder(Counting(10**9), tmp_path / "x.store")
    env.reset()
    for i in range(10_000):
        env.step(np.zeros(1))
        if i == 4095 or i == 8000:  # the newest row is the first one of a full buffer
            env.reset()
    env.close()
    dataset = load_dataset(tmp_path / "x.store")
    assert len(dataset) == 10_000
    assert np.flatnonzero(dataset.episode_ends).tolist() == [4095, 8000, 9999]


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    def fail() -> None:
        with Recorder(tmp_path / "x.npz", 2, 1) as recorder:
            recorder.add(np.zeros(2), np.zeros(1), 0, np.zeros(2), False, False)
            raise RuntimeError("the policy broke")

    with pytest.raises(RuntimeError, match="the policy broke"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PbrlError, match="Nothing was recorded"):
        Recorder(tmp_path / "x.npz", 2, 1).close()
    assert list(tmp_path.iterdir()) == []


def test_wrong_shapes_and_spaces(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "x.npz", 2, 1)
    with pytest.raises(PbrlError, match=r"observation \(\), action \(1,\)"):
        recorder.add(np.float64(1.0), np.zeros(1), 0, np.zeros(2), False, False)  # type: ignore[arg-type]
    recorder.abandon()
    with pytest.raises(PbrlError, match="flat Box spaces"):
        EpisodeRecorder(gymnasium.make("CartPole-v1"), tmp_path / "c.npz")
    assert list(tmp_path.iterdir()) == []
