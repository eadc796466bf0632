"""Normalisation of observations, actions and rewards, against plain NumPy, and its way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_samples import as_arrays, random_rows, write_npz

from pbrl.data import Preprocessing, TrainingData, TransitionDataset, load_dataset
from pbrl.errors import PbrlError


@pytest.fixture
def dataset(tmp_path: Path) -> TransitionDataset:
    arrays = as_arrays(random_rows(0, 500))
    arrays["observations"] = arrays["observations"] * [1, 50, 0] + [0, -7, 3]
    arrays["actions"] = arrays["actions"] * 4 + 1
    return load_dataset(write_npz(tmp_path / "x.npz", arrays))


def test_by_default_only_actions_outside_the_unit_box_are_mapped(
    dataset: TransitionDataset,
) -> None:
    maps = Preprocessing.fit(dataset)
    assert not maps.changes_observations
    assert not maps.changes_rewards
    np.testing.assert_allclose(maps.action_low, dataset.actions.min(0))
    unit = maps.actions(dataset.actions)
    np.testing.assert_allclose(unit.min(0), -1, atol=1e-6)
    np.testing.assert_allclose(unit.max(0), 1, atol=1e-6)
    np.testing.assert_allclose(maps.raw_actions(unit), dataset.actions, atol=1e-5)


def test_observations_are_standardised(dataset: TransitionDataset) -> None:
    maps = Preprocessing.fit(dataset, normalize_observations=True)
    wide = dataset.observations.astype(np.float64)
    expected = (wide - wide.mean(0)) / (wide.std(0) + 1e-3)
    np.testing.assert_allclose(maps.observations(dataset.observations), expected, atol=1e-4)
    assert np.isfinite(maps.observations(dataset.observations)).all()


@pytest.mark.parametrize("how", ["standardize", "return-range", "min-zero"])
def test_rewards(dataset: TransitionDataset, how: Any) -> None:
    maps = Preprocessing.fit(dataset, normalize_rewards=how)
    wide = dataset.rewards.astype(np.float64)
    returns = np.array([wide[rows].sum() for rows in dataset.episodes()])
    expected = {
        "standardize": (wide - wide.mean()) / wide.std(),
        "return-range": wide * 1000 / (returns.max() - returns.min()),
        "min-zero": wide - wide.min(),
    }[how]
    np.testing.assert_allclose(maps.rewards(dataset.rewards), expected, rtol=1e-4, atol=1e-5)


def test_declared_bounds_count_before_the_datas_own(dataset: TransitionDataset) -> None:
    maps = Preprocessing.fit(
        dataset, action_low=np.array([-5, -6], np.float32), action_high=np.array([5, 6], np.float32)
    )
    np.testing.assert_allclose(maps.actions(np.array([5.0, -6.0])), [1, -1])
    np.testing.assert_allclose(maps.raw_actions(np.array([0.5, 0.5])), [2.5, 3])
    with pytest.raises(PbrlError, match="low < high"):
        Preprocessing.fit(
            dataset,
            action_low=np.array([1, 1], np.float32),
            action_high=np.array([0, 2], np.float32),
        )


def test_an_action_that_never_changes_has_a_range(dataset: TransitionDataset) -> None:
    dataset.actions[:, 1] = 9
    maps = Preprocessing.fit(dataset)
    assert (maps.action_low[1], maps.action_high[1]) == (8, 10)


def test_json_gives_the_same_bits(dataset: TransitionDataset) -> None:
    maps = Preprocessing.fit(dataset, normalize_observations=True, normalize_rewards="standardize")
    again = Preprocessing.from_json(json.loads(json.dumps(maps.to_json())))
    assert again.to_json() == maps.to_json()
    assert again.observation_scale.tobytes() == maps.observation_scale.tobytes()
    assert again.actions(dataset.actions).tobytes() == maps.actions(dataset.actions).tobytes()


def test_equal_returns_have_no_range(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(0, 20, end_rate=0))
    dataset = load_dataset(write_npz(tmp_path / "x.npz", arrays))
    with pytest.raises(PbrlError, match="all returns in this dataset are equal"):
        Preprocessing.fit(dataset, normalize_rewards="return-range")
    with pytest.raises(PbrlError, match="Unknown normalize_rewards 'z'"):
        Preprocessing.fit(dataset, normalize_rewards="z")  # type: ignore[arg-type]


def test_batches_are_rows_in_network_units(dataset: TransitionDataset) -> None:
    maps = Preprocessing.fit(dataset, normalize_observations=True, normalize_rewards="min-zero")
    data = TrainingData(dataset, maps)
    index = torch.tensor([0, 499, 17, 17])
    batch = data.gather(index)
    rows = dataset.rows(index.numpy())
    np.testing.assert_array_equal(batch.observations, maps.observations(rows.observations))
    np.testing.assert_array_equal(
        batch.next_observations, maps.observations(rows.next_observations)
    )
    np.testing.assert_array_equal(batch.actions, maps.actions(rows.actions))
    np.testing.assert_array_equal(batch.rewards, maps.rewards(rows.rewards))
    np.testing.assert_array_equal(batch.terminals, rows.terminals.astype(np.float32))


def test_samples_are_uniform_and_seeded(dataset: TransitionDataset) -> None:
    numbered = dataset.rows(slice(None))
    numbered.rewards[:] = np.arange(500)
    data = TrainingData(numbered)
    first = data.sample(50_000, torch.Generator().manual_seed(1)).rewards
    again = data.sample(50_000, torch.Generator().manual_seed(1)).rewards
    assert torch.equal(first, again)
    counts = torch.bincount(first.long(), minlength=500)
    # 100 draws a row on average: 6 deviations leave nothing to chance.
    assert counts.min() > 40
    assert counts.max() < 160
