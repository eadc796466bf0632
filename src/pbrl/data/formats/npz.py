"""``.npz`` archives with D4RL's keys."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.data.column_file import ColumnFile
from pbrl.data.formats import Format, Reading
from pbrl.data.rows import Metadata, Rows, RowSource
from pbrl.data.validate import KEYS, check_kind, reading, source_of_arrays
from pbrl.errors import PbrlError

METADATA_KEY = "metadata"


def open_npz(path: Path, how: Reading) -> RowSource:
    """An ``.npz`` archive as a source of rows (in memory: archives cannot be mapped)."""
    where = f"'{path}'"
    with reading(path, ".npz"):
        if path.is_dir():
            raise IsADirectoryError(path)
        with path.open("rb") as file:
            # NumPy gets the open file: given a path, it leaks it when the archive is damaged.
            if not zipfile.is_zipfile(file):
                raise PbrlError(
                    f"{where} is not an .npz archive: it is truncated or of another format. Write "
                    "it with numpy.savez, which makes archives of named arrays."
                )
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {key: _array(where, archive, key) for key in KEYS if key in archive.files}
                extra = sorted(set(archive.files) - {*KEYS, METADATA_KEY})
                recipe = _recipe(where, archive)
        notes = (f"Ignored what training does not use: {', '.join(extra)}.",) if extra else ()
        metadata = Metadata(path.stem, str(path), shift="d4rl", notes=notes).updated(where, recipe)
        return source_of_arrays(where, arrays, metadata, how.strict)


def _array(where: str, archive: Any, key: str) -> Any:
    try:
        values = archive[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise PbrlError(
            f"{where}: '{key}' holds pickled Python objects, which are never loaded because they "
            "can run code; write it as a plain numeric array."
        ) from error
    check_kind(where, key, values.dtype)
    return values


def _recipe(where: str, archive: Any) -> dict[str, Any]:
    """The JSON text that our own writer keeps under ``metadata``."""
    if METADATA_KEY not in archive.files:
        return {}
    try:
        values = json.loads(str(archive[METADATA_KEY]))
    except (ValueError, RecursionError) as error:
        raise PbrlError(f"{where}: 'metadata' must be JSON text; remove or repair it.") from error
    if not isinstance(values, dict):
        raise PbrlError(f"{where}: 'metadata' must be a JSON object.")
    return values


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
            for key in source.columns()
        }

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""
        for key, column in self.columns.items():
            column.append(getattr(rows, key))

    def close(self) -> None:
        """Packs the archive."""
        text = np.array(json.dumps(self.metadata.to_json()))
        np.save(self.scratch / f"{METADATA_KEY}.npy", text)
        for column in self.columns.values():
            column.close()
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for key in (*self.columns, METADATA_KEY):
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
        """Closes the files as they are."""
        for column in self.columns.values():
            column.abandon()


NPZ = Format(open_npz, NpzWriter)
