"""One process at a time in a run directory, from its first look at it to the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pbrl.errors import PbrlError
from pbrl.training.files import cannot_write, refuse_file

LOCK = ".lock"


class Busy(PbrlError):
    """Another process holds the directory."""


@contextmanager
def only_one(place: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the directory ``place``, made where it is missing, or refuse after ``wait`` seconds.

    The lock goes with the process, so a killed one leaves none behind. A directory made here in
    which nothing was written is taken away again: what is refused leaves nothing.
    """
    refuse_file(place)
    missing = [path for path in (place, *place.parents) if not path.exists()]
    try:
        file = _locked(place, time.monotonic() + wait)
    except OSError as error:
        raise cannot_write(place, error) from error
    try:
        yield
    finally:
        if file is not None:
            (place / LOCK).unlink(missing_ok=True)  # still held: nobody can have taken it
            file.close()
        for path in missing:
            try:
                path.rmdir()
            except OSError:  # something is in it
                break


def _locked(place: Path, deadline: float) -> IO[str] | None:
    """The locked file in ``place``; None where the system has no such locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        place.mkdir(parents=True, exist_ok=True)
        return None
    while True:
        place.mkdir(parents=True, exist_ok=True)
        try:
            file = open(place / LOCK, "w")  # noqa: SIM115 - closed by the caller
        except FileNotFoundError:  # another process made the directory, and took it away again
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(file, place / LOCK):
                return file
            file.close()  # the one who held it has removed it meanwhile
            continue
        except OSError as error:
            file.close()
            if time.monotonic() >= deadline:
                raise Busy(
                    f"Another process is at work in {place}; wait for its end, or give another "
                    "--run-dir."
                ) from error
        time.sleep(0.5)


def _is(file: IO[str], path: Path) -> bool:
    """Whether ``path`` still names the open ``file``."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
