"""Hidden directories in which files are made before they get their name; a killed command's go.

A process that is killed cannot clean up after itself. Each holds a lock on its directory while it
lives, so the next one that writes the same name can tell what is left over from what is in use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """A new directory beside ``path``, gone in the end; those of killed commands go first."""
    prefix = f".{path.name[:40]}."
    for old in path.parent.iterdir():
        if old.name.startswith(prefix) and old.name.endswith(".tmp") and old.is_dir():
            _remove_abandoned(old)
    place = Path(tempfile.mkdtemp(".tmp", prefix, path.parent))
    handle = _locked(place)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _remove_abandoned(place: Path) -> None:
    handle = _locked(place)
    if handle is not None:
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def _locked(place: Path) -> int | None:
    """An open, locked directory; None where another process holds it or nothing can be locked."""
    try:
        import fcntl

        handle = os.open(place, os.O_RDONLY)
    except (ImportError, OSError):  # Windows has no such locks
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
