"""HDF5 files that answer for themselves.

An HDF5 file may say that its values lie elsewhere: behind a link into another file, in external
storage, or in the sources of a virtual array. Such a file would make its reader fetch what its
sender could not read, and carry it on into copies; all three are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from pbrl.data.validate import reading
from pbrl.errors import PbrlError

_OWN_LINKS = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)


@contextmanager
def opened_hdf5(path: Path, kind: str = "HDF5") -> Iterator[h5py.File]:
    """The open file, which has no link that leads out of it.

    Args:
        path: the file.
        kind: what it should be, for messages.
    """

    with reading(path, kind), h5py.File(path, "r") as file:
        way_out = file.id.links.visit(_leads_out, info=True)
        if way_out is not None:
            name = way_out.decode(errors="replace")
            raise _elsewhere(f"'{path}'", name, "a link to another file")
        yield file


def _leads_out(name: bytes, link: Any) -> bytes | None:
    """The link's name if it leaves the file, which ends the visit."""
    return None if link.type in _OWN_LINKS else name


def own_array(where: str, name: str, array: h5py.Dataset) -> h5py.Dataset:
    """The same array, whose values lie in its own file.

    Args:
        where: the file, for messages.
        name: of the array, for messages.
        array: as looked up; nothing of it is read.
    """
    if array.is_virtual:
        raise _elsewhere(where, name, "a virtual array, put together from other files")
    if array.external:
        raise _elsewhere(where, name, "stored in another file")
    return array


def _elsewhere(where: str, name: str, how: str) -> PbrlError:
    return PbrlError(
        f"{where}: '{name}' is {how}; pbrl reads what lies in the file itself alone. Copy the "
        "values into it, for example with 'h5repack' or h5py."
    )
