"""The file formats pbrl reads and writes: one module and one line here for each.

Other packages bring theirs by an entry point of the group ``pbrl.formats``, programs by
``register_format``. What a format's module offers is a ``Format``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from pbrl.data.rows import Rows, RowSource
from pbrl.errors import PbrlError

Columns = Mapping[str, str | Sequence[str]] | None

FORMATS = {
    ".hdf5": "pbrl.data.formats.hdf5:HDF5",
    ".h5": "pbrl.data.formats.hdf5:HDF5",
    ".npz": "pbrl.data.formats.npz:NPZ",
    ".csv": "pbrl.data.formats.csv:CSV",
    ".parquet": "pbrl.data.formats.parquet:PARQUET",
    ".store": "pbrl.data.store:STORE",
}
"""Suffix -> where its ``Format`` is, as ``module:name``; modules are imported when needed."""

ENTRY_POINTS = "pbrl.formats"


class RowWriter(Protocol):
    """What a format's writer makes: it takes raw rows and completes the file at the end."""

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""

    def close(self) -> None:
        """Completes the file."""

    def abandon(self) -> None:
        """Lets go of what is open; the caller removes the unfinished file."""


@dataclass(frozen=True)
class Reading:
    """How a file is to be read.

    Attributes:
        columns: names of a table's columns, role -> name, names with commas between, or
            ``prefix*``; formats without columns do not look at it.
        strict: refuse NaN and infinite values; inspecting a file reports them instead.
        verify: compare a store with its checksums; None does so for a small one.
    """

    columns: Columns = None
    strict: bool = True
    verify: bool | None = None


@dataclass(frozen=True)
class Format:
    """How one kind of file becomes rows, and rows the file.

    Attributes:
        reader: opens a path; the rows are read when the source's blocks are asked for.
        writer: opens a new file for rows of the source's shape and metadata, which come later;
            what it puts beside the file goes along to the destination. None: only read.
        holds: whether a directory is one of this format; None where it is a file.
    """

    reader: Callable[[Path, Reading], RowSource]
    writer: Callable[[Path, RowSource], RowWriter] | None = None
    holds: Callable[[Path], bool] | None = None


_REGISTERED: dict[str, Format] = {}


def register_format(suffix: str, new: Format) -> None:
    """Makes files with ``suffix`` known wherever pbrl reads or writes data, in this process.

    Args:
        suffix: with its dot, in lower case, for example ``.feather``.
        new: how such files are read and written.
    """
    if not re.fullmatch(r"(\.[a-z0-9_-]+)+", suffix):
        raise PbrlError(f"A suffix is a dot and letters or digits in lower case, not '{suffix}'.")
    if suffix in suffixes():
        raise PbrlError(f"The suffix '{suffix}' is taken; choose another.")
    _REGISTERED[suffix] = new


def suffixes() -> tuple[str, ...]:
    """All known suffixes: pbrl's own, installed packages', this program's."""
    return (*FORMATS, *_installed(), *_REGISTERED)


def suffix_of(path: str | Path) -> str:
    """The known suffix that a name ends with, the longest; empty if it has none."""
    name = Path(path).name.lower()
    fitting = (s for s in suffixes() if name.endswith(s) and name != s)
    return max(fitting, key=len, default="")


def stem_of(path: str | Path) -> str:
    """A file's or directory's name without its known suffix."""
    name = Path(path).name
    return name[: len(name) - len(suffix_of(path))]


def format_of(path: str | Path) -> Format | None:
    """The format that a name's suffix says; None for an unknown one."""
    suffix = suffix_of(path)
    if not suffix:
        return None
    return _REGISTERED.get(suffix) or _imported(FORMATS.get(suffix) or _installed()[suffix])


def format_of_directory(path: Path) -> Format | None:
    """The format whose directory ``path`` is."""
    for suffix in suffixes():
        found = format_of("x" + suffix)
        if found is not None and found.holds is not None and found.holds(path):
            return found
    return None


@cache
def _installed() -> dict[str, str]:
    """Formats of installed packages, by suffix; an entry point's name is the suffix, dot or not."""
    found = {
        "." + entry.name.lower().removeprefix("."): entry.value
        for entry in entry_points(group=ENTRY_POINTS)
    }
    return {suffix: place for suffix, place in found.items() if suffix not in FORMATS}


@cache
def _imported(place: str) -> Format:
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PbrlError(
            f"The data format at '{place}' cannot be imported ({error}); repair or remove the "
            "package that brings it."
        ) from error
    if not isinstance(found, Format):
        raise PbrlError(f"'{place}' is no pbrl.data.Format; repair or remove its package.")
    return found
