"""Writers for every format: raw rows in, block by block, and a complete file or nothing at the end.

Each writer has ``append(rows)``, ``close()`` and ``abandon()``. Files are written under a temporary
name beside their destination and renamed when complete, so a killed conversion leaves no half file
under the wanted name.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from pbrl.data.column_file import ColumnFile
from pbrl.data.readers_hdf5 import METADATA_KEY as HDF5_METADATA
from pbrl.data.readers_npz import METADATA_KEY as NPZ_METADATA
from pbrl.data.rows import Rows, RowSource
from pbrl.data.store import StoreWriter, is_store
from pbrl.data.view import ViewChoice
from pbrl.errors import PbrlError, optional_import

PARQUET_METADATA = b"pbrl"


class RowWriter(Protocol):
    """What every writer offers."""

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""

    def close(self) -> None:
        """Completes the file."""

    def abandon(self) -> None:
        """Removes what was written."""


def _keys(source: RowSource) -> list[str]:
    keys = ["observations", "actions", "rewards", "terminals"]
    keys += ["timeouts"] if source.has_timeouts else []
    keys += ["next_observations"] if source.has_next else []
    return keys


class Hdf5Writer:
    """D4RL's HDF5 layout, compressed.

    Args:
        path: the file to create.
        source: the rows to come: their shape and metadata.
    """

    def __init__(self, path: Path, source: RowSource) -> None:
        self.path = path
        self.file = h5py.File(path, "w")
        widths = {"observations": source.observation_dim, "actions": source.action_dim}
        widths["next_observations"] = source.observation_dim
        for key in _keys(source):
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
        self.file.attrs[HDF5_METADATA] = json.dumps(metadata.to_json())
        if metadata.env_id is not None:
            self.file.attrs["env_id"] = metadata.env_id
        if isinstance(provenance := metadata.recipe.get("provenance"), str):
            self.file.attrs["provenance"] = provenance

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""
        for key in self.file:
            column = self.file[key]
            start = len(column)
            column.resize(start + len(rows), axis=0)
            column[start:] = getattr(rows, key)

    def close(self) -> None:
        """Completes the file."""
        self.file.close()

    def abandon(self) -> None:
        """Removes what was written."""
        self.file.close()
        self.path.unlink(missing_ok=True)


class NpzWriter:
    """An ``.npz`` archive; columns grow in a scratch directory and are packed at the end.

    Args:
        path: the file to create.
        source: the rows to come: their shape and metadata.
    """

    def __init__(self, path: Path, source: RowSource) -> None:
        self.path = path
        self.metadata = source.metadata
        self.scratch = path.with_name(path.name + ".columns")
        self.scratch.mkdir()
        widths = {"observations": source.observation_dim, "actions": source.action_dim}
        widths["next_observations"] = source.observation_dim
        self.columns = {
            key: ColumnFile(
                self.scratch / f"{key}.npy",
                "|b1" if key in ("terminals", "timeouts") else "<f4",
                widths.get(key, 0),
            )
            for key in _keys(source)
        }

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""
        for key, column in self.columns.items():
            column.append(getattr(rows, key))

    def close(self) -> None:
        """Packs the archive."""
        text = np.array(json.dumps(self.metadata.to_json()))
        np.save(self.scratch / f"{NPZ_METADATA}.npy", text)
        for column in self.columns.values():
            column.close()
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for key in (*self.columns, NPZ_METADATA):
                # A fixed date keeps equal data equal files.
                member = zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0))
                member.compress_type = zipfile.ZIP_DEFLATED
                with (
                    (self.scratch / f"{key}.npy").open("rb") as column_file,
                    archive.open(member, "w", force_zip64=True) as packed,
                ):
                    shutil.copyfileobj(column_file, packed, 1 << 20)
        shutil.rmtree(self.scratch)

    def abandon(self) -> None:
        """Removes what was written."""
        for column in self.columns.values():
            column.abandon()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.path.unlink(missing_ok=True)


class _EpisodeNumbers:
    """Numbers episodes for the ``episode`` column of tables."""

    def __init__(self) -> None:
        self.current = 0

    def of(self, rows: Rows) -> Any:
        ends = rows.terminals if rows.timeouts is None else rows.terminals | rows.timeouts
        passed = np.cumsum(ends)
        numbers = self.current + passed - ends
        self.current += int(passed[-1]) if len(passed) else 0
        return numbers


def table_columns(source: RowSource) -> list[str]:
    """The default column names of CSV and Parquet."""
    names = [f"obs_{i}" for i in range(source.observation_dim)]
    names += [f"action_{i}" for i in range(source.action_dim)]
    names += ["reward", "terminal"]
    names += ["timeout"] if source.has_timeouts else []
    if source.has_next:
        names += [f"next_obs_{i}" for i in range(source.observation_dim)]
    # Without timeouts, episodes are told by terminals alone; an episode column would claim more.
    return [*names, "episode"] if source.has_timeouts else names


class CsvWriter:
    """CSV with a header; what is known besides the rows goes to ``<name>.csv.json``.

    Args:
        path: the file to create.
        source: the rows to come: their shape and metadata.
        final: the name the file will have, beside which the JSON is written.
    """

    def __init__(self, path: Path, source: RowSource, final: Path) -> None:
        self.path = path
        self.sidecar = final.with_name(final.name + ".json")
        self.metadata = source.metadata
        self.episodes = _EpisodeNumbers()
        self.file = path.open("w", newline="", encoding="utf-8")
        csv.writer(self.file, lineterminator="\n").writerow(table_columns(source))

    def append(self, rows: Rows) -> None:
        """Adds raw rows. Nine digits give a float32 back exactly."""
        parts = [rows.observations, rows.actions, rows.rewards[:, None], rows.terminals[:, None]]
        widths = [rows.observations.shape[1] + rows.actions.shape[1] + 1, 1]
        formats = ["%.9g"] * widths[0] + ["%d"]
        if rows.timeouts is not None:
            parts.append(rows.timeouts[:, None])
            formats.append("%d")
        if rows.next_observations is not None:
            parts.append(rows.next_observations)
            formats += ["%.9g"] * rows.next_observations.shape[1]
        if rows.timeouts is not None:
            parts.append(self.episodes.of(rows)[:, None])
            formats.append("%d")
        matrix = np.concatenate([part.astype(np.float64) for part in parts], axis=1)
        line = ",".join(formats) + "\n"
        self.file.writelines(line % tuple(row) for row in matrix.tolist())

    def close(self) -> None:
        """Completes the file and its side file."""
        self.file.close()
        self.sidecar.write_text(json.dumps(self.metadata.to_json(), indent=1) + "\n")

    def abandon(self) -> None:
        """Removes what was written."""
        self.file.close()
        self.path.unlink(missing_ok=True)


class ParquetWriter:
    """Parquet with one float32 column a dimension.

    Args:
        path: the file to create.
        source: the rows to come: their shape and metadata.
    """

    def __init__(self, path: Path, source: RowSource) -> None:
        self.path = path
        self.arrow = optional_import("pyarrow", "parquet")
        parquet = optional_import("pyarrow.parquet", "parquet")
        self.episodes = _EpisodeNumbers()
        kinds = {"terminal": self.arrow.bool_(), "timeout": self.arrow.bool_()}
        kinds["episode"] = self.arrow.int64()
        self.schema = self.arrow.schema(
            [(name, kinds.get(name, self.arrow.float32())) for name in table_columns(source)],
            metadata={PARQUET_METADATA: json.dumps(source.metadata.to_json()).encode()},
        )
        self.writer = parquet.ParquetWriter(path, self.schema)

    def append(self, rows: Rows) -> None:
        """Adds raw rows as a row group."""
        columns: list[Any] = [*rows.observations.T, *rows.actions.T, rows.rewards, rows.terminals]
        if rows.timeouts is not None:
            columns.append(rows.timeouts)
        if rows.next_observations is not None:
            columns += [*rows.next_observations.T]
        if rows.timeouts is not None:
            columns.append(self.episodes.of(rows))
        arrays = [
            self.arrow.array(np.ascontiguousarray(values), field.type)
            for values, field in zip(columns, self.schema, strict=True)
        ]
        self.writer.write_table(self.arrow.Table.from_arrays(arrays, schema=self.schema))

    def close(self) -> None:
        """Completes the file."""
        self.writer.close()

    def abandon(self) -> None:
        """Removes what was written."""
        self.writer.close()
        self.path.unlink(missing_ok=True)


WRITABLE = (".hdf5", ".h5", ".npz", ".csv", ".parquet", ".store")


@contextmanager
def writing(
    path: Path, source: RowSource, choice: ViewChoice, *, overwrite: bool = False
) -> Iterator[RowWriter]:
    """A writer for ``path`` by its suffix; a directory name without suffix makes a store.

    Args:
        path: the destination; appears only when complete.
        source: the rows to come: their shape and metadata.
        choice: the training view, which a store lays out.
        overwrite: replace what is there.
    """
    suffix = path.suffix.lower()
    if suffix not in ("", *WRITABLE):
        raise PbrlError(
            f"Cannot write '{path}': unknown suffix '{suffix}'. Known: {', '.join(WRITABLE)} (a "
            "name without suffix makes a store)."
        )
    _check_destination(path, overwrite)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = _make_writer(suffix, temporary, path, source, choice)
    except OSError as error:
        raise PbrlError(f"Cannot write '{path}': {error.strerror or error}.") from error
    try:
        yield writer
        writer.close()
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException as error:
        writer.abandon()
        if isinstance(error, OSError):
            raise PbrlError(
                f"Writing '{path}' failed: {error.strerror or error}. Nothing was kept; free space "
                "or choose another place."
            ) from error
        raise


def _make_writer(
    suffix: str, temporary: Path, path: Path, source: RowSource, choice: ViewChoice
) -> RowWriter:
    if suffix in (".hdf5", ".h5"):
        return Hdf5Writer(temporary, source)
    if suffix == ".npz":
        return NpzWriter(temporary, source)
    if suffix == ".csv":
        return CsvWriter(temporary, source, path)
    if suffix == ".parquet":
        return ParquetWriter(temporary, source)
    return StoreWriter(temporary, source, choice)


def _check_destination(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if path.is_dir() and not is_store(path):
        # Never remove a directory that is not known to be a store of ours.
        raise PbrlError(f"'{path}' is a directory that is not a store; choose another name.")
    if not overwrite:
        raise PbrlError(f"'{path}' exists; give --overwrite to replace it, or another name.")
