"""D4RL's HDF5 layout: one array a key, rows of all episodes one after the other."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pbrl.data.formats import Format, Reading
from pbrl.data.hdf5_file import opened_hdf5, own_array
from pbrl.data.hdf5_growing import GrowingHdf5
from pbrl.data.rows import Metadata, Rows, RowSource
from pbrl.data.validate import KEYS, check_kind, check_shapes, to_rows
from pbrl.errors import PbrlError

METADATA_KEY = "pbrl_metadata"
"""The attribute under which our own writer keeps what is known besides the rows, as JSON."""

MOST_COMPRESSED = 2000
"""Twice what gzip can do; a file that claims more data than that for its size is damaged."""


def open_hdf5(path: Path, how: Reading) -> RowSource:
    """A D4RL HDF5 file as a source of rows."""
    where = f"'{path}'"
    with opened_hdf5(path) as file:
        if "episode_0" in file:
            raise PbrlError(
                f"{where} is the data file of a Minari dataset; give the directory that holds its "
                "'data' folder, or the Minari id."
            )
        arrays = {key: file[key] for key in KEYS if key in file}
        for key, array in arrays.items():
            if not isinstance(array, h5py.Dataset):
                raise PbrlError(
                    f"{where}: '{key}' is a group, not an array; dictionary observations are not "
                    "supported, store one flat vector a step."
                )
            check_kind(where, key, own_array(where, key, array).dtype)
        length, s, a = check_shapes(where, {key: arrays[key].shape for key in arrays})
        claimed = sum(int(arrays[key].nbytes) for key in arrays)
        if claimed > MOST_COMPRESSED * path.stat().st_size + (1 << 20):
            raise PbrlError(
                f"{where} claims {claimed:,} bytes of data but has {path.stat().st_size:,}; it was "
                "never completely written or is damaged."
            )
        metadata = _metadata(path, file)

    def blocks(size: int) -> Iterator[Rows]:
        with opened_hdf5(path) as file:
            for start in range(0, length, size):
                block = {key: file[key][start : start + size] for key in arrays}
                yield to_rows(where, block, start, how.strict)

    return RowSource(
        metadata, s, a, "timeouts" in arrays, "next_observations" in arrays, blocks, length
    )


def _metadata(path: Path, file: Any) -> Metadata:
    known = {*KEYS, "infos", "metadata"}
    extra = sorted(key for key in file if key not in known)
    notes = (f"Ignored what training does not use: {', '.join(extra)}.",) if extra else ()
    attributes = {str(key): _plain(value) for key, value in file.attrs.items()}
    carried = attributes.pop(METADATA_KEY, "{}")
    env_id = attributes.pop("env_id", None)
    metadata = Metadata(
        name=path.stem,
        source=str(path),
        env_id=env_id if isinstance(env_id, str) else None,
        shift="d4rl",
        prefer_file=False,
        recipe=attributes,
        notes=notes,
    )
    try:
        values = json.loads(carried)
    except (TypeError, ValueError, RecursionError) as error:
        raise PbrlError(f"'{path}': attribute '{METADATA_KEY}' must be JSON text.") from error
    return metadata.updated(f"'{path}'", values)


def _plain(value: Any) -> Any:
    """An HDF5 attribute as a JSON value."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


class Hdf5Writer:
    """D4RL's HDF5 layout, compressed.

    Args:
        path: the file to create.
        source: the rows to come: their shape and metadata.
    """

    def __init__(self, path: Path, source: RowSource) -> None:
        self._growing = GrowingHdf5(path)
        self.file = self._growing.file
        widths = {"observations": source.observation_dim, "actions": source.action_dim}
        widths["next_observations"] = source.observation_dim
        for key in source.columns():
            tail = (widths[key],) if key in widths else ()
            self.file.create_dataset(
                key,
                shape=(0, *tail),
                maxshape=(None, *tail),
                chunks=(4096, *tail),
                dtype=bool if key in ("terminals", "timeouts") else "<f4",
                compression="gzip",
                compression_opts=1,
                shuffle=True,
            )
        metadata = source.metadata
        self.file.attrs[METADATA_KEY] = json.dumps(metadata.to_json())
        if metadata.env_id is not None:
            self.file.attrs["env_id"] = metadata.env_id
        if isinstance(provenance := metadata.recipe.get("provenance"), str):
            self.file.attrs["provenance"] = provenance

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""
        needed = 0
        for key in self.file:
            column = self.file[key]
            chunk = math.prod(column.chunks) * column.dtype.itemsize
            needed += (len(rows) // column.chunks[0] + 2) * (chunk + chunk // 100 + 100)
        self._growing.reserve(needed)
        for key in self.file:
            column = self.file[key]
            start = len(column)
            column.resize(start + len(rows), axis=0)
            column[start:] = getattr(rows, key)
        self.file.flush()

    def close(self) -> None:
        """Completes the file."""
        self._growing.close()

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._growing.abandon()


HDF5 = Format(open_hdf5, Hdf5Writer)
