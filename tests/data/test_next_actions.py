"""The action logged at the next observation, which ReBRAC's critics are held to."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pbrl.data import load_dataset
from pbrl.data.convert import convert
from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import Batch, TrainingData
from pbrl.errors import PbrlError

REAL = Path(os.environ.get("PBRL_REAL_DATA", ""))
needs_real_data = pytest.mark.skipif("PBRL_REAL_DATA" not in os.environ, reason="real data")


def write_log(
    path: Path, terminals: list[int], timeouts: list[int], own: NDArray[np.float32] | None = None
) -> Path:
    """A log whose row i has observation i, action i / 100 and reward 1."""
    n = len(terminals)
    i = np.arange(n, dtype=np.float32)
    columns: dict[str, NDArray[Any]] = {
        "observations": np.stack([i, i], 1),
        "actions": i[:, None] / 100,
        "rewards": np.ones(n, np.float32),
        "terminals": np.array(terminals, bool),
        "timeouts": np.array(timeouts, bool),
    }
    if own is not None:
        columns["next_observations"] = own
    np.savez(path, allow_pickle=False, **columns)
    return path


def after(dataset: TransitionDataset) -> list[float]:
    """Next actions in units of the row's number; -1 where there is none."""
    found = dataset.next_actions(np.arange(len(dataset)))[:, 0] * 100
    return [round(float(x), 3) for x in np.nan_to_num(found, nan=-1)]


def test_hand_computed_rows(tmp_path: Path) -> None:
    # Row:                       0  1  2  3  4  5  6  7  8  9
    terminals, timeouts = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    log = write_log(tmp_path / "log.npz", terminals, timeouts)
    # Rows 6 (timed out) and 9 (the log stops) are no transitions, but their actions were taken at
    # the next observations of rows 5 and 8. Row 3 is terminal: nothing was done after it.
    assert after(load_dataset(log)) == [1, 2, 3, -1, 5, 6, 8, 9]


def test_the_logs_own_next_observations(tmp_path: Path) -> None:
    n = 6
    i = np.arange(1, n + 1, dtype=np.float32)
    own = np.stack([i, i], 1)
    log = write_log(tmp_path / "log.npz", [0] * n, [0, 0, 1, 0, 0, 0], own)
    # No row is dropped, so nobody says what was done after a cut.
    assert after(load_dataset(log, next_observations="file")) == [1, 2, -1, 4, 5, -1]
    order = [3, 1, 0, 5, 4, 2]
    rows = load_dataset(log, next_observations="file").rows(np.array(order))
    shuffled = dataclasses.replace(rows, episode_ends=np.zeros(n, np.bool_))
    assert after(shuffled) == [-1] * n  # the following row is not what followed


@needs_real_data
@pytest.mark.parametrize("name", ["hopper_medium-v2", "hopper_medium_replay-v1", "pen-human-v1"])
def test_real_rows_follow_the_rule_of_rebracs_authors(name: str) -> None:
    """Their loader: the following raw row's action, for every row that is no timeout."""
    log = REAL / "d4rl-slices" / f"{name}.hdf5"
    with h5py.File(log) as file:
        actions, terminals = file["actions"][:], file["terminals"][:].astype(bool)
        timeouts = file["timeouts"][:].astype(bool)
    kept = [i for i in range(len(actions) - 1) if not timeouts[i]]
    dataset = load_dataset(log)
    assert len(dataset) == len(kept)
    ours = dataset.next_actions(np.arange(len(kept)))
    goes_on = ~terminals[kept]
    assert np.array_equal(ours[goes_on], actions[1:][kept][goes_on])
    assert np.isnan(ours[~goes_on]).all()


def episodes(count: int, rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Random terminals and timeouts, some side by side."""
    ends = rng.random(count) < 0.2
    terminal = ends & (rng.random(count) < 0.5)
    return terminal, ends & ~terminal


@pytest.mark.parametrize("seed", range(4))
def test_memory_and_store_agree(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    terminals, timeouts = episodes(300, rng)
    log = tmp_path / "log.npz"
    np.savez(
        log, observations=rng.normal(size=(300, 3)).astype(np.float32),
        actions=rng.uniform(-2, 2, (300, 2)).astype(np.float32),
        rewards=rng.normal(size=300).astype(np.float32), terminals=terminals, timeouts=timeouts,
    )  # fmt: skip
    convert(str(log), tmp_path / "log.store")
    memory, store = load_dataset(log), load_dataset(tmp_path / "log.store")
    assert store.memory_mapped
    maps = Preprocessing.fit(memory, normalize_observations=True)
    left, right = TrainingData(memory, maps), TrainingData(store, maps)
    index = torch.randint(len(memory), (64,), generator=torch.Generator().manual_seed(0))
    one, other = left.gather(index).next_actions, right.gather(index).next_actions
    assert torch.equal(one.isnan(), other.isnan())
    assert torch.equal(one.nan_to_num(), other.nan_to_num())
    assert 0 < one.isnan().sum() < one.numel()
    assert one.nan_to_num().abs().max() <= 1
    raw = memory.next_actions(index.numpy())
    np.testing.assert_array_equal(one.numpy(), maps.actions(raw).clip(-1, 1))


def test_a_batch_of_ones_own_says_that_it_cannot_know() -> None:
    x = torch.zeros(3, 1)
    with pytest.raises(PbrlError, match="TrainingData"):
        _ = Batch(x, x, x[:, 0], x, x[:, 0]).next_actions
