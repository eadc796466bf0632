"""Logged data that a program has in memory: a mapping of arrays, or a pandas or polars frame.

Frames are known by what they can do, so that neither library is needed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.formats import Reading
from pbrl.data.formats.table import Keys, Matrix, described_table, table_source
from pbrl.data.formats.table_columns import find_columns
from pbrl.data.rows import Metadata, RowSource
from pbrl.data.validate import KEYS, check_kind, source_of_arrays
from pbrl.errors import PbrlError

NAME = "memory"
_TAKES = (
    "a name or path, a TransitionDataset, a mapping of arrays with D4RL's names (observations, "
    "actions, rewards, terminals, …), or a table (mapping of columns, pandas or polars frame)"
)


def open_in_memory(source: Any, how: Reading) -> RowSource:
    """The rows of ``source``: arrays by D4RL's keys, or the columns of a table."""
    if isinstance(source, Mapping):
        names = list(source)
    elif hasattr(source, "columns") and hasattr(source, "__getitem__"):
        names = list(source.columns)
    else:
        raise PbrlError(f"Data can be {_TAKES}, not a {type(source).__name__}.")
    if not all(isinstance(name, str) for name in names):
        raise PbrlError("The names of arrays and columns must be text.")
    where = "The data in memory"
    if how.columns is None and "observations" in names:
        arrays = {name: np.asarray(source[name]) for name in names if name in KEYS}
        for key, values in arrays.items():
            check_kind(where, key, values.dtype)
        return source_of_arrays(where, arrays, Metadata(NAME), how.strict)
    layout = find_columns(where, names, how.columns)
    columns = {name: _numbers(where, name, source[name]) for name in layout.numeric()}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise PbrlError(f"{where}: the columns differ in length; give one row a step.")
    episodes = None if layout.episode is None else list(source[layout.episode])

    def pieces(size: int) -> Iterator[tuple[Matrix, Keys]]:
        for start in range(0, max(lengths), size):
            part = slice(start, start + size)
            matrix = np.stack([column[part] for column in columns.values()], axis=1)
            yield matrix, None if episodes is None else episodes[part]

    return table_source(where, layout, described_table(Metadata(NAME), layout), pieces, how.strict)


def _numbers(where: str, name: str, column: Any) -> NDArray[np.float64]:
    """A column as float64 ``[N]``, with NaN where it has no value."""
    values = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
    if values.ndim != 1:
        raise PbrlError(
            f"{where}: column '{name}' must have shape [N], but has {list(values.shape)}."
        )
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise PbrlError(
            f"{where}: column '{name}' holds {values.dtype} values; numbers are needed."
        ) from error
