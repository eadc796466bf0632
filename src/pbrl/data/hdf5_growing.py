"""A new HDF5 file on a disk that may be full."""

from __future__ import annotations

import os
from pathlib import Path

import h5py

MARGIN = 1 << 18
"""Bytes that a file's own tables may take besides the values of a block of rows."""


class GrowingHdf5:
    """An HDF5 file open for writing, whose room is claimed before it is used.

    Where the disk is full, the system says so in ``reserve``. The HDF5 library, told in the middle
    of its own work, may end the whole process.

    Args:
        path: the file to create.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self._disk = os.open(path, os.O_RDWR)
        _claim(self._disk, MARGIN)
        self.file = h5py.File(path, "w")
        _claim(self._disk, MARGIN)

    def reserve(self, size: int) -> None:
        """Claims room for ``size`` bytes more, and the file's own tables."""
        _claim(self._disk, self.file.id.get_filesize() + size + MARGIN)

    def close(self) -> None:
        """Completes the file."""
        self.reserve(0)
        self.file.flush()
        size = self.file.id.get_filesize()
        self.abandon()
        os.truncate(self._path, size)

    def abandon(self) -> None:
        """Closes the file as it is."""
        self.file.close()
        disk, self._disk = self._disk, -1
        if disk >= 0:  # twice, its number might be another file's by now
            os.close(disk)


def _claim(disk: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        os.posix_fallocate(disk, 0, size)
