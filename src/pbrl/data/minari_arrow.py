"""Minari's younger storage: a folder an episode, with one Arrow or Parquet file in it.

A file has a row an observation, so the actions, rewards and flags of its last row are padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.validate import reading
from pbrl.errors import PbrlError, optional_import

KINDS = ("arrow", "parquet")
VECTORS, NUMBERS = ("observations", "actions"), ("rewards", "terminations", "truncations")


def arrow_episodes(
    folder: Path, kind: str, widths: tuple[int, int]
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Names of a dataset's episodes and their arrays, with one observation more than steps.

    Args:
        folder: the dataset's ``data``.
        kind: ``arrow`` or ``parquet``.
        widths: S and A.
    """
    numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    if not numbers:
        raise PbrlError(f"'{folder}' holds no episode.")
    for number in numbers:
        files = sorted((folder / str(number)).glob(f"*.{kind}"))
        if len(files) != 1:
            raise PbrlError(f"'{folder / str(number)}' holds {len(files)} .{kind} files, not one.")
        yield f"episode {number}", _arrays(files[0], kind, widths)


def _arrays(file: Path, kind: str, widths: tuple[int, int]) -> dict[str, NDArray[Any]]:
    where = f"'{file}'"
    with reading(file, f"Minari {kind}"):
        if kind == "parquet":
            parquet = optional_import("pyarrow.parquet", "parquet")
            with parquet.ParquetFile(file) as opened:  # alone: its folder's name is no column
                table = opened.read()
        else:
            ipc = optional_import("pyarrow.ipc", "parquet")
            with ipc.open_file(file) as opened:
                table = opened.read_all()
        arrays: dict[str, NDArray[Any]] = {}
        for name in (*VECTORS, *NUMBERS):
            if name not in table.column_names:
                raise PbrlError(f"{where} lacks '{name}'.")
            column = table.column(name).combine_chunks()
            if name in VECTORS:
                width = widths[VECTORS.index(name)]
                if getattr(column.type, "list_size", None) != width:
                    raise PbrlError(f"{where}: '{name}' holds {column.type}, not {width} numbers.")
                column = column.flatten()
            if column.null_count:
                raise PbrlError(f"{where}: '{name}' has missing values; fill or remove them.")
            values = np.asarray(column.to_numpy(zero_copy_only=False))
            if values.dtype.kind not in "fiub":
                raise PbrlError(f"{where}: '{name}' holds {column.type} values, not numbers.")
            arrays[name] = values.reshape(-1, width) if name in VECTORS else values
    if len({len(array) for array in arrays.values()}) != 1:
        raise PbrlError(f"{where}: its columns differ in length.")
    return {name: array if name == "observations" else array[:-1] for name, array in arrays.items()}
