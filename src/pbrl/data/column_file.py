"""One growing column on disk, which stores and ``.npz`` archives are made of."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


class ColumnFile:
    """A ``.npy`` file that grows by appending; its length is written into the header at the end.

    Args:
        path: the file.
        dtype: of the values.
        width: values a row; 0 for plain vectors.
    """

    def __init__(self, path: Path, dtype: str, width: int) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.width = width
        self.length = 0
        self.digest = hashlib.sha256()
        self._file: IO[bytes] = path.open("wb")
        self._header()

    def _header(self) -> None:
        # NumPy pads the header so that the first axis can grow in place.
        shape = (self.length, self.width) if self.width else (self.length,)
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: NDArray[Any]) -> None:
        """Adds rows."""
        data = np.ascontiguousarray(values, self.dtype)
        self._file.write(data.data)
        self.digest.update(data.data)
        self.length += len(data)

    def close(self) -> None:
        """Writes the final length."""
        self._header()
        self._file.close()

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._file.close()

    def entry(self, root: Path) -> dict[str, Any]:
        """This column's lines in the manifest."""
        return {
            "file": self.path.relative_to(root).as_posix(),
            "dtype": self.dtype.str,
            "shape": [self.length, self.width] if self.width else [self.length],
            "sha256": self.digest.hexdigest(),
        }
