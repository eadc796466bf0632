"""Rows by the names of their columns: mappings, data frames, or plain numbers in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbrl.errors import PbrlError

Floats = NDArray[np.float32]
# Rows in the order of training, or columns by name: a mapping or a data frame.
Given = ArrayLike | Mapping[str, Any]


def as_numbers(values: ArrayLike, must: str) -> Floats:
    """As float32; ``must`` begins the sentence where they are none."""
    try:
        with np.errstate(over="ignore"):  # too large for float32 is infinite
            return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise PbrlError(f"{must} numbers.") from error


def in_order(values: Given, names: Sequence[str], what: str) -> ArrayLike:
    """The columns ``names`` of a mapping or data frame, in that order; anything else as it is.

    Args:
        values: by name: one number each, or ``[B]`` each.
        names: the order of training.
        what: "observations" or "actions", for messages.
    """
    table: Any = values
    given = _column_names_of(table)
    if given is None:
        plain: ArrayLike = table
        return plain
    missing = [name for name in names if name not in given]
    if missing:
        raise PbrlError(
            f"The {what} lack {_listed(missing)}; the policy was trained on {_listed(names)}."
        )
    columns = [_cells(table[name]) for name in names]
    if len({np.shape(column) for column in columns}) > 1:
        raise PbrlError(f"The {what} by name differ in length; give one value a row for each.")
    return np.stack(columns, axis=-1)


def _column_names_of(values: Any) -> set[str] | None:
    """The names in a mapping, a data frame or a row of one; None for plain numbers."""
    if hasattr(values, "columns"):
        return set(values.columns)
    keys = list(values.keys()) if hasattr(values, "keys") else []
    named = isinstance(values, Mapping) or any(isinstance(key, str) for key in keys)
    return set(keys) if named else None


def _cells(values: Any) -> NDArray[Any]:
    """A column, ``[]`` or ``[B]``; text is read as a number, and what is none becomes NaN."""
    cells = np.asarray(values)
    if cells.dtype.kind not in "OUS":
        return cells
    numbers = [_number(cell) for cell in cells.reshape(-1)]
    return np.reshape(numbers, cells.shape)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def check_order(given: list[str], names: Sequence[str]) -> None:
    """Refuse names that are not those of training in their order."""
    if given == list(names):
        return
    how = "come in another order than" if sorted(given) == sorted(names) else "are not those of"
    raise PbrlError(
        f"The observations {how} the training data: they are {_listed(given)}, the policy takes "
        f"{_listed(names)}. Put them in that order, or give a mapping, which is taken by name."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def as_rows(values: Given, names: Sequence[str], what: str) -> tuple[Floats, bool]:
    """``[B, C]`` and whether a single row ``[C]`` was given."""
    size = len(names)
    shape = f"shape [{size}] or [B, {size}]"
    array = as_numbers(in_order(values, names, what), f"{what} of {shape} must be")
    if array.ndim not in (1, 2) or array.shape[-1] != size:
        raise PbrlError(f"{what} must have {shape}, got {list(array.shape)}.")
    return np.ascontiguousarray(np.atleast_2d(array)), array.ndim == 1
