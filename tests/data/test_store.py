"""The store: mapped, streamed in bounded memory, and recognised when damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from row_samples import as_arrays, random_rows, write_hdf5, write_npz

from pbrl.data import DatasetInfo, TrainingData, convert, load_dataset
from pbrl.data.loading import open_source
from pbrl.data.store import Store
from pbrl.errors import PbrlError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = write_hdf5(tmp_path / "x.hdf5", as_arrays(random_rows(0, 300)))
    return convert(path, tmp_path / "x.store").path


def test_a_store_is_mapped_and_gives_the_same_batches(tmp_path: Path, store: Path) -> None:
    mapped, loaded = load_dataset(store), load_dataset(tmp_path / "x.hdf5")
    assert mapped.memory_mapped
    assert not loaded.memory_mapped
    left, right = TrainingData(mapped), TrainingData(loaded)
    for _ in range(3):
        index = torch.randint(len(loaded), (64,))
        for a, b in zip(left.gather(index), right.gather(index), strict=True):
            assert torch.equal(a, b)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    batches = [data.sample(32, g) for data, g in zip((left, right), generators, strict=True)]
    for a, b in zip(*batches, strict=True):
        assert torch.equal(a, b)


def test_the_columns_are_plain_npy_files(store: Path) -> None:
    mapped = load_dataset(store)
    side_by_side = np.load(store / "rows.npy")
    assert mapped.side_by_side is not None
    parts = [mapped.observations, mapped.actions, mapped.rewards, mapped.next_observations]
    np.testing.assert_array_equal(side_by_side, np.column_stack([*parts, mapped.terminals]))
    for name in ("rewards", "terminals", "episode_ends"):
        np.testing.assert_array_equal(np.load(store / f"{name}.npy"), mapped.columns()[name])


def test_the_recorded_fingerprint_is_the_true_one(store: Path) -> None:
    mapped = load_dataset(store)
    assert mapped.known_fingerprint is not None
    again = mapped.rows(slice(None))
    assert again.known_fingerprint is None
    assert again.fingerprint == mapped.fingerprint


def test_many_small_blocks_give_the_same_store(tmp_path: Path) -> None:
    # The writer holds rows back between blocks; every cut must come out the same.
    from pbrl.data.rows import View, ViewChoice
    from pbrl.data.store import StoreWriter
    from pbrl.data.view import training_view

    for seed in range(4):
        rows = random_rows(seed, 40, end_rate=1.0, timeouts=seed != 3)
        source = open_source(write_npz(tmp_path / f"{seed}.npz", as_arrays(rows)))
        views: tuple[View, ...] = ("d4rl", "episode", "file")
        for view in views:
            prints = set()
            for size in (1, 2, 3, 7, 40):
                path = tmp_path / f"{seed}-{view}-{size}.store"
                writer = StoreWriter(path, replace(source, choice=ViewChoice(view, "")))
                for block in source.blocks(size):
                    writer.append(block)
                writer.close()
                prints.add(Store(path).fingerprint)
            whole = training_view(rows, view, DatasetInfo("x"))
            assert prints == {whole.fingerprint}


def damage_value(store: Path) -> None:
    file = store / "rewards.npy"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))


def cut_column(store: Path) -> None:
    file = store / "rows.npy"
    file.write_bytes(file.read_bytes()[:-4])


def edit(store: Path, **changes: object) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    manifest.update(changes)
    (store / "manifest.json").write_text(json.dumps(manifest))


def point_outside(store: Path) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["columns"]["rewards"]["file"] = "../../elsewhere.npy"
    (store / "manifest.json").write_text(json.dumps(manifest))


DAMAGE = {
    "one bit": (damage_value, "'rewards.npy' does not match its checksum"),
    "cut column": (cut_column, "cannot be read as a store's column"),
    "missing column": (lambda s: (s / "rows.npy").unlink(), "No file .*rows.npy"),
    "garbled manifest": (
        lambda s: (s / "manifest.json").write_text("{"),
        "cannot be read as a store",
    ),
    "other json": (lambda s: (s / "manifest.json").write_text("{}"), "is not a pbrl store"),
    "json list": (lambda s: (s / "manifest.json").write_text("[]"), "is not a pbrl store"),
    "newer version": (lambda s: edit(s, version=2), "format version 2; this pbrl reads version 1"),
    "wrong count": (lambda s: edit(s, transitions=5), "do not fit together"),
    "wrong fingerprint": (lambda s: edit(s, fingerprint="0"), "fingerprint does not match"),
    "no columns": (lambda s: edit(s, columns={}), "is not a pbrl store"),
    "column outside": (point_outside, "points outside the store"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_recognised(store: Path, case: str) -> None:
    change, message = DAMAGE[case]
    change(store)
    with pytest.raises(PbrlError, match=message):
        load_dataset(store)


def test_an_unfinished_store_is_no_store(store: Path) -> None:
    # The manifest is written last: a killed conversion leaves none.
    (store / "manifest.json").unlink()
    with pytest.raises(PbrlError, match="neither a pbrl store"):
        load_dataset(store)


def test_another_view_needs_another_store(store: Path) -> None:
    assert len(load_dataset(store, next_observations="shift")) > 0
    with pytest.raises(PbrlError, match="convert it again with --next-observations file"):
        load_dataset(store, next_observations="file")


def test_bounds_of_a_store(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(1))
    arrays["actions"][3, 1] = -4
    path = write_npz(tmp_path / "x.npz", arrays)
    store = convert(path, tmp_path / "x.store").path
    with pytest.raises(PbrlError, match="dimension 1: they reach from -4"):
        load_dataset(store, action_low=-1, action_high=1)
    clipped = convert(
        store, tmp_path / "y.store", clip_actions=True, action_low=-1, action_high=1
    ).path
    assert load_dataset(clipped).actions.min() == -1


# Peak anonymous memory (not file pages, which the kernel may drop) while converting there and back.
MEASURE = """
import sys, threading
from pathlib import Path
from pbrl.data import convert

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024

peak, done = [0.0], threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], anonymous())
thread = threading.Thread(target=watch); thread.start()
folder = Path(sys.argv[1])
convert(sys.argv[2], folder / "there.store")
convert(folder / "there.store", folder / "back.hdf5")
done.set(); thread.join()
print(peak[0])
"""


def write_long(path: Path, length: int) -> Path:
    """A Hopper-shaped HDF5 file, written in pieces without the code under test."""
    import h5py

    rng = np.random.default_rng(0)
    piece = 50_000
    with h5py.File(path, "w") as file:
        widths = {"observations": 11, "actions": 3, "rewards": 0, "terminals": 0, "timeouts": 0}
        for key, width in widths.items():
            shape = (length, width) if width else (length,)
            kind = "?" if key in ("terminals", "timeouts") else "<f4"
            file.create_dataset(key, shape, kind, chunks=(10_000, *shape[1:]))
        for start in range(0, length, piece):
            rows = slice(start, start + piece)
            file["observations"][rows] = rng.normal(size=(piece, 11)).astype("<f4")
            file["actions"][rows] = rng.uniform(-1, 1, (piece, 3)).astype("<f4")
            file["rewards"][rows] = rng.normal(size=piece).astype("<f4")
            file["terminals"][rows] = rng.random(piece) < 0.01
            file["timeouts"][rows] = rng.random(piece) < 0.001
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is a Linux figure")
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks = []
    for length in (100_000, 1_000_000):
        folder = tmp_path / str(length)
        folder.mkdir()
        path = write_long(folder / "x.hdf5", length)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(folder), str(path)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        peaks.append(float(done.stdout))
        back = open_source(folder / "back.hdf5")
        assert back.length == length
    # A million rows are 100 MB in float32 with their next observations; the peak may not show it.
    assert peaks[1] < peaks[0] + 25, peaks
    original = open_source(tmp_path / "1000000" / "x.hdf5")
    for left, right in zip(original.blocks(1 << 16), back.blocks(1 << 16), strict=True):
        for key, values in as_arrays(left).items():
            np.testing.assert_array_equal(values, as_arrays(right)[key])
