"""The dataset that comes with the package."""

from __future__ import annotations

from importlib import resources

import numpy as np

import pbrl
from pbrl.data.loading import open_source
from pbrl.evaluation.rollout import Evaluator


def test_demo_is_small_mixed_and_positive() -> None:
    file = resources.files("pbrl.data") / "embedded" / "demo.npz"
    with resources.as_file(file) as path:
        assert path.stat().st_size <= 5_000_000
    dataset = pbrl.load_dataset()
    returns = dataset.episode_returns()
    assert dataset.info.name == "demo"
    assert dataset.info.env_id == "InvertedDoublePendulum-v5"
    assert (returns > 0).mean() > 0.99
    assert returns.mean() > 0
    assert dataset.info.reference_scores is not None
    low, high = dataset.info.reference_scores
    # Mixed quality: from hardly better than random to nearly the expert, mostly far below it.
    assert np.quantile(returns, 0.1) < 2 * low
    assert returns.max() > 0.5 * high
    assert returns.mean() < 0.2 * high


def test_demo_fits_its_environment_and_its_recipe() -> None:
    metadata = open_source("demo").metadata
    dataset = pbrl.load_dataset()
    parts = metadata.recipe["parts"]
    assert sum(part["rows"] for part in parts.values()) == len(dataset)
    assert metadata.recipe["training"]["env_id"] == dataset.info.env_id
    assert dataset.info.env_id is not None
    evaluator = Evaluator(dataset.info.env_id)
    evaluator.require_spaces(dataset.observation_dim, dataset.action_dim)
    low, high = evaluator.action_bounds
    evaluator.close()
    np.testing.assert_array_equal(dataset.info.action_low, low)
    np.testing.assert_array_equal(dataset.info.action_high, high)
    # The reward rule of InvertedDoublePendulum-v5 (alive bonus 10, less distance and speed).
    assert dataset.rewards.max() < 10
    assert np.median(dataset.rewards) > 9


def test_demo_rows_are_the_environments_own() -> None:
    """The recorded next observation and reward follow from the recorded state and action."""
    import gymnasium

    dataset = pbrl.load_dataset()
    env = gymnasium.make("InvertedDoublePendulum-v5").unwrapped
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    errors = []
    for row in rng.choice(len(dataset), 100, replace=False):
        x, sin1, sin2, cos1, cos2, *speeds = dataset.observations[row][:8].astype(np.float64)
        if np.abs(speeds).max() >= 9.99:
            continue  # clipped at 10: the state cannot be restored
        position = np.array([x, np.arctan2(sin1, cos1), np.arctan2(sin2, cos2)])
        env.set_state(position, np.array(speeds))  # type: ignore[attr-defined]
        after, reward, *_ = env.step(dataset.actions[row])
        errors.append(abs(float(reward) - float(dataset.rewards[row])))
        errors.append(float(np.abs(after[:8] - dataset.next_observations[row][:8]).max()))
    env.close()
    assert len(errors) > 100
    assert np.median(errors) < 1e-4
