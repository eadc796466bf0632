"""Every format gives back the same raw rows and loads the same transitions."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_samples import any_rows, as_arrays, assert_same_rows, random_rows, write_hdf5, write_npz

from pbrl.data import convert, load_dataset
from pbrl.data.loading import open_source
from pbrl.data.rows import Rows
from pbrl.errors import PbrlError

FORMATS = ["a.hdf5", "b.npz", "c.csv", "d.parquet", "e.store"]


@settings(max_examples=30, deadline=None)
@given(rows=any_rows(), origin=st.sampled_from(["hdf5", "npz"]), order=st.permutations(FORMATS))
def test_round_trips_and_transitions(rows: Rows, origin: str, order: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write = write_hdf5 if origin == "hdf5" else write_npz
        path = write(folder / f"origin.{origin}", as_arrays(rows))
        timeouts = np.zeros(len(rows), bool) if rows.timeouts is None else rows.timeouts
        uses_own = rows.next_observations is not None and (origin == "npz" or rows.timeouts is None)
        if timeouts[:-1].all() and not uses_own:
            # Rows of which nothing can be learned are refused by every format alike.
            with pytest.raises(PbrlError, match="no transition"):
                load_dataset(path)
            for target in ("a.hdf5", "b.npz", "c.csv", "d.parquet"):
                convert(path, folder / target)
                with pytest.raises(PbrlError, match="no transition"):
                    load_dataset(folder / target)
            with pytest.raises(PbrlError, match="no transition"):
                convert(path, folder / "e.store")
            assert not (folder / "e.store").exists()
            return
        expected = load_dataset(path)
        assert_same_rows(open_source(path).read(), rows)
        for target in order:
            convert(path, folder / target)
            path = folder / target
            assert_same_rows(open_source(path).read(), rows)
            loaded = load_dataset(path)
            for key, column in expected.columns().items():
                assert column.tobytes() == loaded.columns()[key].tobytes(), (target, key)
            assert loaded.fingerprint == expected.fingerprint
            if rows.next_observations is not None and target != "e.store":
                own = load_dataset(path, next_observations="file")
                assert own.next_observations.tobytes() == rows.next_observations.tobytes()


@pytest.mark.parametrize("view", ["file", "shift"])
@pytest.mark.parametrize("seed", range(4))
def test_a_store_keeps_next_observations_its_view_does_not_use(
    tmp_path: Path, seed: int, view: Any
) -> None:
    rows = random_rows(seed, 60, end_rate=0.6)
    path = write_hdf5(tmp_path / "x.hdf5", as_arrays(rows))
    convert(path, tmp_path / "x.store", next_observations=view)
    assert_same_rows(open_source(tmp_path / "x.store").read(), rows)
    loaded, expected = (
        load_dataset(tmp_path / "x.store"),
        load_dataset(path, next_observations=view),
    )
    assert loaded.fingerprint == expected.fingerprint


@settings(max_examples=40, deadline=None)
@given(
    rows=any_rows(),
    vector=st.sampled_from(["float64", "float32", "float16"]),
    flag=st.sampled_from(["bool", "uint8", "int64", "float64"]),
    tall=st.booleans(),
)
def test_dtypes_do_not_matter(rows: Rows, vector: str, flag: str, tall: bool) -> None:
    arrays = as_arrays(rows)
    with np.errstate(over="ignore"):
        narrow = {
            key: np.nan_to_num(values.astype(vector), posinf=1, neginf=-1).astype("float32")
            for key, values in arrays.items()
            if values.dtype == np.float32
        }
    arrays |= narrow
    varied = {key: values.astype(vector) for key, values in narrow.items()}
    varied |= {k: v.astype(flag) for k, v in arrays.items() if v.dtype == np.bool_}
    if tall:
        varied["rewards"] = varied["rewards"][:, None]
        varied["terminals"] = varied["terminals"][:, None]
    with tempfile.TemporaryDirectory() as name:
        for write, suffix in ((write_hdf5, "hdf5"), (write_npz, "npz")):
            path = write(Path(name) / f"x.{suffix}", varied)
            read = as_arrays(open_source(path).read())
            for key, values in arrays.items():
                assert read[key].tobytes() == values.tobytes(), key


def test_integer_actions_and_rewards_are_taken_as_numbers(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(0))
    arrays["actions"] = np.arange(60).reshape(30, 2)
    arrays["rewards"] = np.arange(30, dtype=np.int32)
    dataset = load_dataset(write_npz(tmp_path / "x.npz", arrays))
    np.testing.assert_array_equal(dataset.rewards, arrays["rewards"])
    np.testing.assert_array_equal(dataset.actions, arrays["actions"])


def test_metadata_travel_through_every_format(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(1, 40, 11, 3))
    path = tmp_path / "hopper-mine.hdf5"
    write_hdf5(path, arrays, provenance="made for a test", seed=7)
    expected = load_dataset(path).info
    for target in [*FORMATS, "f.hdf5"]:
        convert(path, tmp_path / target)
        path = tmp_path / target
        info = load_dataset(path).info
        assert info.env_id == expected.env_id == "pbrl/HopperD4RL-v0"
        assert info.reference_scores == expected.reference_scores
        assert info.score_source == "D4RL"
        assert info.action_low is not None
        np.testing.assert_array_equal(info.action_low, [-1, -1, -1])
        recipe = open_source(path).metadata.recipe
        assert recipe["provenance"] == "made for a test"
        assert recipe["seed"] == 7


def test_real_slices_survive_the_tour(real_data: Path, tmp_path: Path) -> None:
    for origin in (
        real_data / "d4rl-slices" / "halfcheetah_medium_replay-v1.hdf5",
        real_data / "d4rl-slices" / "pen-human-v0.hdf5",
        real_data / "d4rl-slices" / "hopper_medium-v2.hdf5",
    ):
        expected, path = load_dataset(origin), Path(origin)
        rows = open_source(origin).read()
        for target in FORMATS:
            convert(path, tmp_path / target, overwrite=True)
            path = tmp_path / target
            assert_same_rows(open_source(path).read(), rows)
            assert load_dataset(path).fingerprint == expected.fingerprint


def test_next_observations_chosen_when_converting_hold_afterwards(tmp_path: Path) -> None:
    rows = random_rows(2)
    path = write_hdf5(tmp_path / "x.hdf5", as_arrays(rows))
    for target in FORMATS:
        convert(path, tmp_path / target, next_observations="file")
        loaded = load_dataset(tmp_path / target)
        np.testing.assert_array_equal(loaded.next_observations, rows.next_observations)


def test_destination_is_never_overwritten_unasked_nor_left_half_written(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", as_arrays(random_rows(3)))
    for target in FORMATS:
        convert(path, tmp_path / target)
        with pytest.raises(PbrlError, match="exists; give --overwrite"):
            convert(path, tmp_path / target)
        convert(path, tmp_path / target, overwrite=True)
    other = tmp_path / "precious"
    other.mkdir()
    (other / "thesis.txt").write_text("x")
    with pytest.raises(PbrlError, match="not a store"):
        convert(path, other, overwrite=True)
    assert (other / "thesis.txt").exists()

    # A source that breaks in its middle: bad cell after the first block of rows.
    bad = tmp_path / "bad.csv"
    lines = ["obs_0,action_0,reward,terminal"] + ["0.5,0.5,1,0"] * 70_000 + ["0.5,oops,1,0"]
    bad.write_text("\n".join(lines))
    for target in ("n.hdf5", "n.npz", "n.csv", "n.parquet", "n.store"):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(PbrlError, match="line 70002, column 'action_0': 'oops'"):
            convert(bad, tmp_path / target)
        assert sorted(tmp_path.iterdir()) == before
