"""Damaged and odd files: a ``PbrlError`` or the right rows, never a traceback, never wrong data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from row_samples import as_arrays, random_rows, write_npz

from pbrl.data import convert, load_dataset
from pbrl.data.loading import open_source
from pbrl.errors import PbrlError

SOURCES = ["x.hdf5", "x.npz", "x.csv", "x.parquet", "x.store"]
ROWS = random_rows(11, 50)


@pytest.fixture(scope="module")
def originals() -> Any:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_npz(folder / "origin.npz", as_arrays(ROWS))
        for target in SOURCES:
            convert(folder / "origin.npz", folder / target)
        yield folder


def read_or_refuse(path: Path) -> dict[str, Any] | None:
    """The rows if the file is accepted; every other exception than ours fails the test."""
    try:
        dataset = load_dataset(path)
        rows = open_source(path).read()
    except PbrlError:
        return None
    assert len(dataset) > 0
    for column in dataset.columns().values():
        assert len(column) == len(dataset)
        assert np.isfinite(column).all()
    return as_arrays(rows)


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=60, deadline=5000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_bytes(originals: Path, name: str, data: st.DataObject) -> None:
    victim = originals / name
    if victim.is_dir():
        files = sorted(p.relative_to(victim) for p in victim.rglob("*") if p.is_file())
        chosen = data.draw(st.sampled_from(files))
        content = (victim / chosen).read_bytes()
    else:
        chosen, content = Path(name), victim.read_bytes()
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
    place = data.draw(st.integers(0, max(0, len(content) - 1)))
    some = data.draw(st.binary(min_size=1, max_size=16))
    if how == "flip":
        damaged = content[:place] + some + content[place + len(some) :]
    elif how == "cut":
        damaged = content[:place]
    elif how == "insert":
        damaged = content[:place] + some + content[place:]
    else:
        damaged = content[:place] + content[max(0, place - 40) :]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / name
        if victim.is_dir():
            for file in files:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                (target / file).write_bytes((victim / file).read_bytes())
            (target / chosen).write_bytes(damaged)
        else:
            target.write_bytes(damaged)
        read = read_or_refuse(target)
    if read is None or name in ("x.csv", "x.hdf5"):
        # CSV and HDF5 have no checksums: another finite number in place of one cannot be seen.
        return
    if name == "x.store" and chosen.suffix == ".npy":
        # Every byte of a column's values is under a checksum.
        for key, values in as_arrays(ROWS).items():
            assert read[key].tobytes() == values.tobytes(), key


@settings(max_examples=40, deadline=5000)
@given(text=st.text(max_size=400), header=st.booleans())
def test_any_text_as_csv(text: str, header: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        start = "obs_0,action_0,reward,terminal,episode\n" if header else ""
        path.write_text(start + text, encoding="utf-8", errors="surrogatepass")
        read_or_refuse(path)


CELLS = st.one_of(
    st.floats(width=32).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ["", " ", "true", "False", "nan", "inf", "1e999", "0x1p3", "1,5", '"2"', "1_0"]
    ),
)


@settings(max_examples=80, deadline=5000)
@given(rows=st.lists(st.lists(CELLS, min_size=5, max_size=5), min_size=1, max_size=6))
def test_cells_mean_what_python_says_or_are_refused(rows: list[list[str]]) -> None:
    """An accepted CSV holds exactly the numbers that ``float`` reads from its cells."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        lines = ["obs_0,action_0,reward,terminal,note", *(",".join(row) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
        read = read_or_refuse(path)
    if read is None:
        return
    truth = {"true": 1.0, "false": 0.0}
    for i, row in enumerate(rows):
        plain = [truth.get(cell.strip('" ').lower(), cell.strip('" ')) for cell in row[:4]]
        numbers = [np.float32(float(cell)) for cell in plain]
        assert read["observations"][i, 0] == numbers[0]
        assert read["actions"][i, 0] == numbers[1]
        assert read["rewards"][i] == numbers[2]
        assert bool(read["terminals"][i]) == bool(numbers[3])


SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)
DTYPES = st.sampled_from(["<f4", "<f8", "<f2", "<i8", "|u1", "|b1", "<c8", "S3", "<U2", "<M8[s]"])


@settings(max_examples=80, deadline=5000)
@given(data=st.data())
def test_any_arrays_under_the_right_keys(data: st.DataObject) -> None:
    keys = ["observations", "actions", "rewards", "terminals", "timeouts", "next_observations"]
    arrays = {}
    for key in keys[: data.draw(st.integers(3, 6))]:
        arrays[key] = np.zeros(data.draw(SHAPES), data.draw(DTYPES))
    with tempfile.TemporaryDirectory() as folder:
        read_or_refuse(write_npz(Path(folder) / "x.npz", arrays))
        with h5py.File(Path(folder) / "x.hdf5", "w") as file:
            for key, values in arrays.items():
                if values.dtype.kind not in "UM":
                    file[key] = values
        read_or_refuse(Path(folder) / "x.hdf5")
