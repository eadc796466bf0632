"""Files by somebody who means harm: nothing outside them is read, and nothing waits for ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from row_samples import as_arrays, random_rows, write_hdf5, write_npz

from pbrl.collect.policies import policy_of
from pbrl.data import convert, load_dataset
from pbrl.data.formats.table_columns import find_columns
from pbrl.errors import PbrlError

ROWS = as_arrays(random_rows(0, 12))
SECRET = ROWS["observations"] + 7


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """An HDF5 file that the one below points to, and the same values as bare bytes."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "bare").write_bytes(SECRET.tobytes())
    return write_hdf5(folder / "secret.hdf5", ROWS | {"observations": SECRET})


def external_link(file: h5py.File, secret: Path) -> None:
    file["observations"] = h5py.ExternalLink(str(secret), "/observations")


def soft_link_out(file: h5py.File, secret: Path) -> None:
    file["infos"] = h5py.ExternalLink(str(secret), "/")
    file["observations"] = h5py.SoftLink("/infos/observations")


def link_in_a_corner(file: h5py.File, secret: Path) -> None:
    file["observations"] = ROWS["observations"]
    file["infos/deeper/still"] = h5py.ExternalLink(str(secret), "/observations")


def external_storage(file: h5py.File, secret: Path) -> None:
    bare = [(str(secret.with_name("bare")), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("observations", SECRET.shape, SECRET.dtype, external=bare)


def virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout(SECRET.shape, SECRET.dtype)
    layout[:] = h5py.VirtualSource(str(secret), "observations", SECRET.shape)
    file.create_virtual_dataset("observations", layout)


def growing_virtual(file: h5py.File, secret: Path) -> None:
    """A pattern of file names, which HDF5 opens to find out the array's length."""
    source = h5py.VirtualSource(
        str(secret), "observations", SECRET.shape, maxshape=(None, SECRET.shape[1])
    )
    layout = h5py.VirtualLayout(SECRET.shape, SECRET.dtype, maxshape=(None, SECRET.shape[1]))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    file.create_virtual_dataset("observations", layout)


WAYS_OUT: dict[str, tuple[Callable[[h5py.File, Path], None], str]] = {
    "external link": (external_link, "'observations' is a link to another file"),
    "soft link through an external one": (soft_link_out, "'infos' is a link to another file"),
    "external link in a corner": (link_in_a_corner, "'infos/deeper/still' is a link to"),
    "external storage": (external_storage, "'observations' is stored in another file"),
    "virtual array": (virtual, "'observations' is a virtual array"),
    "virtual array without end": (growing_virtual, "'observations' is a virtual array"),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_an_hdf5_file_reaches_no_other(tmp_path: Path, secret: Path, way: str) -> None:
    make, message = WAYS_OUT[way]
    path = write_hdf5(tmp_path / "x.hdf5", {k: v for k, v in ROWS.items() if k != "observations"})
    with h5py.File(path, "a") as file:
        make(file, secret)
        # The file works for a reader who trusts it.
        np.testing.assert_array_equal(file["observations"].shape, SECRET.shape)
    with pytest.raises(PbrlError, match=message):
        load_dataset(path)
    with pytest.raises(PbrlError, match=message):
        convert(path, tmp_path / "copy.npz")
    assert not (tmp_path / "copy.npz").exists()


def test_links_inside_the_file_are_followed(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "x.hdf5", ROWS)
    expected = load_dataset(path)
    with h5py.File(path, "a") as file:
        file.move("observations", "kept/observations")
        file["observations"] = h5py.SoftLink("/kept/observations")
        file["kept/again"] = file["kept"]  # a circle, which is no way out either
    np.testing.assert_array_equal(load_dataset(path).observations, expected.observations)


def minari_of(folder: Path, fill: Callable[[h5py.Group], None]) -> Path:
    """A Minari dataset of one episode, whose observations ``fill`` makes."""
    data = folder / "set" / "data"
    data.mkdir(parents=True)
    box = {"type": "Box", "dtype": "float32", "low": -9, "high": 9}
    spaces = {"observation_space": box | {"shape": [3]}, "action_space": box | {"shape": [2]}}
    (data / "metadata.json").write_text(json.dumps(spaces))
    with h5py.File(data / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        for key, name in (("actions", "actions"), ("rewards", "rewards")):
            group[key] = ROWS[name][:11]
        for key in ("terminations", "truncations"):
            group[key] = np.zeros(11, bool)
        fill(group)
    return folder / "set"


@pytest.mark.parametrize("way", ["external link", "external storage", "virtual array"])
def test_neither_does_a_minari_set(tmp_path: Path, secret: Path, way: str) -> None:
    make, message = WAYS_OUT[way]
    message = message.removeprefix("'observations'")
    with pytest.raises(PbrlError, match=f"episode_0/observations'{message}"):
        load_dataset(minari_of(tmp_path, lambda group: make(group, secret)))


def test_neither_does_a_stored_policy(tmp_path: Path, secret: Path) -> None:
    path = write_hdf5(tmp_path / "x.hdf5", ROWS)
    with h5py.File(path, "a") as file:
        layer = file.create_group("metadata/policy/last_fc")
        layer["bias"] = np.zeros(2)
        bare = [(str(secret.with_name("bare")), 0, h5py.h5f.UNLIMITED)]
        layer.create_dataset("weight", (2, 3), "f4", external=bare)
    with pytest.raises(PbrlError, match="'weight' is stored in another file"):
        policy_of(path, False)


# ------------------------------------------------------------------ files that are none


@pytest.fixture
def _impatient() -> Iterator[None]:
    """Opening a pipe that nobody writes to would hold the tests for ever."""

    def give_up(number: int, frame: Any) -> None:
        raise TimeoutError("waits for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(5)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("name", ["x.hdf5", "x.npz", "x.csv", "x.parquet", "x"])
def test_a_pipe_is_refused(tmp_path: Path, name: str) -> None:
    pipe(tmp_path / name)
    with pytest.raises(PbrlError, match=r"no regular file but a pipe|suffix pbrl does not know"):
        load_dataset(tmp_path / name)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("inside", ["rewards.npy", "raw/dropped_index.npy"])
def test_a_pipe_in_a_store_is_refused(tmp_path: Path, inside: str) -> None:
    convert(write_npz(tmp_path / "x.npz", ROWS), tmp_path / "x.store")
    pipe(tmp_path / "x.store" / inside)
    with pytest.raises(PbrlError, match="no regular file but a pipe"):
        load_dataset(tmp_path / "x.store")


@pytest.mark.usefixtures("_impatient")
def test_pipes_where_minari_and_policies_are_looked_for(tmp_path: Path) -> None:
    folder = minari_of(tmp_path, lambda group: group.update({}))
    pipe(folder / "data" / "main_data.hdf5")
    with pytest.raises(PbrlError, match="no regular file but a pipe"):
        load_dataset(folder)
    pipe(tmp_path / "policy.hdf5")
    with pytest.raises(PbrlError, match="no regular file but a pipe"):
        policy_of(tmp_path / "policy.hdf5", False)


@pytest.mark.usefixtures("_impatient")
def test_sockets_and_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's address has room for short names alone
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("x.csv")
        with pytest.raises(PbrlError, match="socket or device"):
            load_dataset("x.csv")
    Path("zero.csv").symlink_to("/dev/zero")
    with pytest.raises(PbrlError, match="socket or device"):
        load_dataset("zero.csv")


# ------------------------------------------------------------------ very wide tables


def test_a_table_of_twenty_thousand_columns_takes_no_minute(tmp_path: Path) -> None:
    names = [f"obs_{i}" for i in range(20_000)]
    header = [*names, "action_0", "reward", "terminal", "left", "right"]
    begun = time.process_time()
    layout = find_columns("'x'", header, None)
    mapped = find_columns("'x'", header, {"observations": ",".join(names[::2])})
    assert time.process_time() - begun < 3  # seconds; half a minute before
    assert layout.observations == tuple(names)
    assert layout.ignored == ("left", "right")
    assert mapped.observations == tuple(names[::2])
    assert mapped.ignored == (*names[1::2], "left", "right")
