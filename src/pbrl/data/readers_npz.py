"""``.npz`` archives with D4RL's keys."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.data.rows import Metadata, RowSource, source_of
from pbrl.data.validate import KEYS, check_kind, check_shapes, reading, to_rows
from pbrl.errors import PbrlError

METADATA_KEY = "metadata"


def open_npz(path: Path, strict: bool = True) -> RowSource:
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
        check_shapes(where, {key: values.shape for key, values in arrays.items()})
        rows = to_rows(where, arrays, 0, strict)
    notes = (f"Ignored what training does not use: {', '.join(extra)}.",) if extra else ()
    metadata = Metadata(path.stem, str(path), shift="d4rl", notes=notes).updated(where, recipe)
    return source_of(rows, metadata)


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
