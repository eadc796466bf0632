"""Everything that can be wrong with arrays from a file, each with a sentence that says so."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import Bools, Floats
from pbrl.data.missing import MissingCell
from pbrl.data.rows import Metadata, Rows, RowSource, source_of
from pbrl.errors import PbrlError

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")
KEYS = REQUIRED + OPTIONAL
VECTORS = ("observations", "actions", "next_observations")

BOUND_TOLERANCE = 1e-5
"""Share of the action range by which rounding may carry an action over its bound."""


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turns whatever a damaged file does to the library that reads it into one sentence.

    A pipe, socket or device is refused before it is opened: that could wait for ever. The
    exceptions of h5py, NumPy, zipfile and pyarrow on damaged files are of many kinds and of no use
    to a user, hence the broad catch; our own errors pass.
    """
    try:
        state = path.stat()
        if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
            raise PbrlError(
                f"'{path}' is no regular file but a pipe, socket or device; save what it gives to "
                f"a {kind} file first."
            )
        yield
    except PbrlError:
        raise
    except FileNotFoundError as error:
        raise PbrlError(f"No file '{path}'.") from error
    except PermissionError as error:
        raise PbrlError(f"No permission to read '{path}'; change its mode or owner.") from error
    except IsADirectoryError as error:
        raise PbrlError(f"'{path}' is a directory; give a {kind} file.") from error
    except MemoryError as error:
        raise PbrlError(
            f"'{path}' claims more data than memory holds; if that is right, convert it with "
            "'pbrl data convert' into a store, else the file is damaged."
        ) from error
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise PbrlError(
            f"'{path}' cannot be read as {kind}: it is truncated, damaged or of another format "
            f"({type(error).__name__}: {detail}). Download or write it again."
        ) from error


def check_shapes(where: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int]:
    """Checks keys, ranks and lengths, and returns ``(N, S, A)``.

    Args:
        where: the file, for messages.
        shapes: the shape of every known array that the file has.
    """
    missing = [key for key in REQUIRED if key not in shapes]
    if missing:
        raise PbrlError(
            f"{where} lacks {_listed(missing)}; a dataset needs {_listed(REQUIRED)}, and may have "
            f"{_listed(OPTIONAL)}."
        )
    for key in shapes:
        if key not in VECTORS:
            continue
        rank = len(shapes[key])
        if rank == 4:
            raise PbrlError(
                f"{where}: '{key}' has shape {list(shapes[key])}, which looks like images; only "
                "flat vectors [N, dims] are supported. Encode images to vectors first."
            )
        if rank != 2:
            hint = " For one-dimensional values reshape to [N, 1]." if rank == 1 else ""
            raise PbrlError(
                f"{where}: '{key}' must have shape [N, dims], but has {list(shapes[key])}.{hint}"
            )
    for key in shapes:
        if key in VECTORS:
            continue
        if len(shapes[key]) != 1 and not (len(shapes[key]) == 2 and shapes[key][1] == 1):
            raise PbrlError(
                f"{where}: '{key}' must have shape [N] or [N, 1], but has {list(shapes[key])}."
            )
    lengths = {key: shape[0] for key, shape in shapes.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise PbrlError(f"{where}: the arrays differ in length ({listed}); give one row a step.")
    rows, dims = shapes["observations"]
    actions = shapes["actions"][1]
    if rows == 0:
        raise PbrlError(f"{where} has no rows.")
    if dims == 0 or actions == 0:
        empty = "observations" if dims == 0 else "actions"
        raise PbrlError(f"{where}: '{empty}' has no dimensions (shape {list(shapes[empty])}).")
    if "next_observations" in shapes and shapes["next_observations"][1] != dims:
        raise PbrlError(
            f"{where}: next_observations have {shapes['next_observations'][1]} dimensions, "
            f"observations {dims}; they must agree."
        )
    return rows, dims, actions


def check_kind(where: str, key: str, dtype: np.dtype[Any]) -> None:
    """Refuses arrays that are not numbers."""
    if dtype.kind == "O":
        raise PbrlError(
            f"{where}: '{key}' holds Python objects; write it as a plain numeric array "
            "(rows of unequal length must be stored row by row, one step a row)."
        )
    if dtype.kind not in "fiub":
        raise PbrlError(f"{where}: '{key}' holds {dtype} values; numbers are needed.")


def to_rows(
    where: str, arrays: Mapping[str, NDArray[Any]], start: int, strict: bool = True
) -> Rows:
    """Checked float32 rows from arrays as read.

    Args:
        where: the file, for messages.
        arrays: by D4RL's key.
        start: number of the first row in the file, for messages.
        strict: refuse NaN and infinite values; inspecting a file reports them instead.
    """
    known: dict[str, Any] = {}
    for key, values in arrays.items():
        check_kind(where, key, values.dtype)
        if key not in VECTORS and values.ndim == 2:
            values = values[:, 0]
        if key in ("terminals", "timeouts"):
            known[key] = _flags(where, key, values, start)
        else:
            known[key] = _floats(where, key, values, start, strict)
    return Rows(**known)


def source_of_arrays(
    where: str, arrays: Mapping[str, NDArray[Any]], metadata: Metadata, strict: bool = True
) -> RowSource:
    """Arrays in memory as a source of rows, checked.

    Args:
        where: the file, for messages.
        arrays: by D4RL's key: ``observations``, ``actions``, ``rewards``, ``terminals``, and
            ``timeouts`` and ``next_observations`` where there are any; one entry a step.
        metadata: what is known besides the rows.
        strict: refuse NaN and infinite values.
    """
    check_shapes(where, {key: values.shape for key, values in arrays.items()})
    return source_of(to_rows(where, arrays, 0, strict), metadata)


def _floats(where: str, key: str, values: NDArray[Any], start: int, strict: bool) -> Floats:
    if not strict:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        place = np.argwhere(~finite)[0]
        value = values[tuple(place)]
        column = f", column {place[1]}" if values.ndim == 2 else ""
        raise MissingCell(
            f"{where}: '{key}' has {'NaN' if np.isnan(value) else 'an infinite value'} at row "
            f"{start + int(place[0])}{column}."
        )
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(values, np.float32)
    if values.dtype.kind == "f" and values.dtype.itemsize > 4 and not np.isfinite(narrow).all():
        place = np.argwhere(~np.isfinite(narrow))[0]
        raise PbrlError(
            f"{where}: '{key}' has {values[tuple(place)]:g} at row {start + int(place[0])}, which "
            "is beyond float32; rescale it."
        )
    return narrow


def _flags(where: str, key: str, values: NDArray[Any], start: int) -> Bools:
    if values.dtype.kind == "b":
        return np.ascontiguousarray(values)
    odd = ~((values == 0) | (values == 1))
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        if np.isnan(values[row]):
            raise PbrlError(
                f"{where}: '{key}' must be 0 or 1 (or true/false), but has no value in "
                f"{int(np.isnan(values).sum()):,} rows, first in row {start + row}; write 0 where "
                "nothing ended."
            )
        raise PbrlError(
            f"{where}: '{key}' must be 0 or 1 (or true/false), but row {start + row} has "
            f"{values[row]:g}."
        )
    return values.astype(np.bool_)


def bound_actions(
    where: str,
    rows: Rows,
    low: Floats | None,
    high: Floats | None,
    clip: bool,
    start: int = 0,
) -> Rows:
    """Rows whose actions lie within the declared bounds: refused, or clipped if asked for."""
    if low is None or high is None:
        return rows
    slack = BOUND_TOLERANCE * (high - low)
    outside = (rows.actions < low - slack) | (rows.actions > high + slack)
    if not outside.any():
        return rows
    if clip:
        return replace(rows, actions=np.clip(rows.actions, low, high))
    row, column = (int(i) for i in np.argwhere(outside)[0])
    raise PbrlError(
        f"{where}: actions leave their bounds in dimension {column} at row {start + row}: "
        f"{rows.actions[row, column]:g} is outside [{low[column]:g}, {high[column]:g}]. Clip them "
        "with --clip-actions, or declare other bounds with --action-low and --action-high."
    )


def checked_bounds(values: object, size: int, which: str) -> Floats:
    """A bound given as a number or ``[A]`` numbers, as ``[A]`` float32."""
    try:
        bound = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise PbrlError(f"{which} must be a number or {size} numbers.") from error
    if bound.ndim > 1 or bound.size not in (1, size):
        raise PbrlError(f"{which} has {bound.size} numbers; the actions have {size} dimensions.")
    bound = np.broadcast_to(bound.reshape(-1), (size,)).copy()
    if not np.isfinite(bound).all():
        raise PbrlError(f"{which} must be finite; got {bound.tolist()}.")
    return bound


def _listed(names: tuple[str, ...] | list[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) < 2:
        return quoted[0]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]
