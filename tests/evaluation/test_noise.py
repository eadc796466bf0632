"""Noise on observations and actions: of the size asked for, seeded, an episode at a time."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from pbrl import DatasetInfo, Evaluator, TransitionDataset
from pbrl.errors import PbrlError
from pbrl.evaluation.noise import Noise, NoisyEpisodes

ENV = "InvertedPendulum-v5"


def dataset(scales: tuple[float, ...] = (1.0, 10.0), action: float = 3.0) -> TransitionDataset:
    rng = np.random.default_rng(0)
    rows = 20_000
    s = (rng.normal(size=(rows, len(scales))) * scales + 7).astype(np.float32)
    a = rng.normal(size=(rows, 1)).astype(np.float32) * np.float32(action)
    ends = np.zeros(rows, np.bool_)
    return TransitionDataset(s, a, np.ones(rows, np.float32), s, ends, ends, DatasetInfo("made"))


def test_noise_is_counted_in_the_datas_deviations() -> None:
    noise = Noise.of(dataset(), 0.05, 0.1)
    np.testing.assert_allclose(noise.observation, [0.05, 0.5], rtol=0.02)
    np.testing.assert_allclose(noise.action, [0.3], rtol=0.02)
    seen = []

    def policy(observations: NDArray[Any]) -> NDArray[Any]:
        seen.append(observations)
        return np.zeros((len(observations), 1), np.float32)

    noisy = NoisyEpisodes(noise, policy, list(range(4000)))
    actions = noisy(np.full((4000, 2), 5, np.float32))
    np.testing.assert_allclose(seen[0].mean(0), [5, 5], atol=0.03)
    np.testing.assert_allclose(seen[0].std(0), noise.observation, rtol=0.05)
    assert actions.std() == pytest.approx(noise.action[0], rel=0.05)
    with pytest.raises(PbrlError, match="--action-noise is a number of the data's deviations"):
        Noise.of(dataset(), 0.1, -1)
    with pytest.raises(PbrlError, match="got nan"):
        Noise.of(dataset(), float("nan"), 0)


def proportional(observations: NDArray[Any]) -> NDArray[Any]:
    actions: NDArray[Any] = np.clip(observations[:, :1] * 2 + observations[:, 1:2] * 8, -3, 3)
    return actions


def test_episodes_under_noise_are_their_own() -> None:
    """By a loop of its own: the policy sees noise, the simulator does not."""
    noise = Noise(np.full(4, 0.02), np.array([0.5]))
    evaluator = Evaluator(ENV)
    result = evaluator.evaluate(proportional, 3, 5, noise)
    seeds = np.random.SeedSequence(5).generate_state(3).tolist()
    for i, seed in enumerate(seeds):
        rng, env = np.random.default_rng([seed, 104_729]), gymnasium.make(ENV)
        observation, _ = env.reset(seed=seed)
        steps, over = 0, False
        while not over:
            seen = observation.astype(np.float32) + 0.02 * rng.standard_normal(4)
            action = proportional(seen[None].astype(np.float32))[0] + 0.5 * rng.standard_normal(1)
            action = np.clip(action.astype(np.float32), -3, 3)
            observation, _, terminated, truncated, _ = env.step(action)
            steps, over = steps + 1, terminated or truncated
        assert result.lengths[i] == steps
    assert len(set(result.lengths.tolist())) > 1, "episodes end at different times"
    again = evaluator.evaluate(proportional, 3, 5, noise)
    np.testing.assert_array_equal(again.returns, result.returns)
    none = evaluator.evaluate(proportional, 3, 5, Noise(np.zeros(4), np.zeros(1)))
    np.testing.assert_array_equal(none.returns, evaluator.evaluate(proportional, 3, 5).returns)
    evaluator.close()
