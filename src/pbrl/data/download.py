"""Downloads that end with the right file or with none.

The answer is written to a ``.part`` file beside its destination, checked for size, signature and
SHA-256, and only then renamed. A broken connection leaves the ``.part`` file, from which the next
attempt goes on where the server allows it; an answer that is complete but wrong is removed.

Files that are there already are compared with their checksum too. That is remembered beside the
file, with its size and time of change, so that it costs once.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs

from pbrl.data.catalogue import CatalogueEntry
from pbrl.data.web import BROKEN, NotAnAddress, TooSlow, ask
from pbrl.errors import PbrlError, printable

MIRROR_VARIABLE = "PBRL_D4RL_MIRROR"
DIRECTORY_VARIABLE = "PBRL_DATA_DIR"
CHUNK = 1 << 18
CONNECTIONS = 10
"""Connections in all, progress or not, for each attempt asked for."""
LONGEST_PAUSE = 60.0
LONGEST_TIMEOUT = 86_400
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

Progress = Callable[[int, int], None]
"""Called with the bytes so far and the bytes in all."""


class _Refused(PbrlError):
    """The answer is complete but is not the file; trying again would not help."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class _Broken(Exception):
    """The connection failed; what has come so far is worth keeping."""


def cache_directory() -> Path:
    """Where downloads are kept: ``PBRL_DATA_DIR``, or the platform's cache directory."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("pbrl") / "d4rl"


def cached_file(entry: CatalogueEntry, directory: Path | None = None) -> Path:
    """Where a dataset's file is, or would be."""
    return (directory or cache_directory()) / f"{entry.name}.hdf5"


def download(
    entry: CatalogueEntry,
    *,
    directory: Path | None = None,
    mirror: str | None = None,
    progress: Progress | None = None,
    attempts: int = 4,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Fetches one dataset, or returns it at once if it is there already.

    Args:
        entry: from the catalogue.
        directory: where to put it; the cache directory by default.
        mirror: base URL that takes the place of D4RL's host; ``PBRL_D4RL_MIRROR`` by default.
        progress: told how far it is.
        attempts: connections to try in a row without any progress before giving up; ten times as
            many in all.
        timeout: seconds without a byte, or with less than a kilobyte a second, after which a
            connection counts as broken.
        pause: seconds before the second attempt, doubled before each further one.

    Returns:
        The verified file.
    """
    if attempts < 1:
        raise PbrlError(f"Downloading takes at least one attempt; got {attempts}.")
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise PbrlError(f"The timeout must be between 0 and {LONGEST_TIMEOUT} s; got {timeout}.")
    path = cached_file(entry, directory)
    if path.is_file() and difference(path, entry) is None:
        return path
    url = entry.url(mirror or os.environ.get(MIRROR_VARIABLE) or None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path):
            return _download(entry, url, path, progress, attempts, timeout, pause)
    except OSError as error:
        raise PbrlError(
            f"Cannot write to '{path.parent}': {error.strerror or error}; set {DIRECTORY_VARIABLE} "
            "to a directory with room."
        ) from error


def _download(
    entry: CatalogueEntry,
    url: str,
    path: Path,
    progress: Progress | None,
    attempts: int,
    timeout: float,
    pause: float,
) -> Path:
    part = path.with_name(path.name + ".part")
    failures, most = 0, _size(part)
    for _ in range(CONNECTIONS * attempts):
        try:
            _fetch(entry, url, part, progress, timeout)
            _verify(entry, url, part)
        except _Refused:
            part.unlink(missing_ok=True)
            raise
        except _Broken as error:
            problem = error
            came = _size(part) > most and not isinstance(error.__cause__, TooSlow)
            failures = 1 if came else failures + 1
            most = max(most, _size(part))
            if failures >= attempts:
                break
            time.sleep(min(pause * 2.0 ** min(failures - 1, 30), LONGEST_PAUSE))
            continue
        os.replace(part, path)
        _remember(path, entry.sha256)
        return path
    raise PbrlError(
        f"Downloading {entry.name} from {printable(url)} failed: {printable(str(problem))}. "
        f"{_got(_size(part), entry)} Try again later to go on from there, or name another server "
        "with --mirror."
    ) from problem


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _fetch(
    entry: CatalogueEntry, url: str, part: Path, progress: Progress | None, timeout: float
) -> None:
    have = _size(part)
    if have >= entry.size:
        return
    headers = {"User-Agent": "pbrl"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with ask(url, headers, timeout) as answer:
            _receive(entry, url, part, answer, have, progress)
    except NotAnAddress as error:
        raise _Refused(f"{error}; name another server with --mirror.") from error
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            # The server has no such range: what we hold is not a beginning of its file.
            part.unlink(missing_ok=True)
            raise _Broken("the server refused to resume") from error
        if error.code >= 500 or error.code in (408, 429):
            raise _Broken(f"the server answered {error.code} {error.reason[:80]}") from error
        raise _Refused(
            f"{url} answered {error.code} {error.reason[:80]}; the host may have moved. Name "
            f"another server with --mirror or {MIRROR_VARIABLE}, or download the file by hand and "
            "give its path."
        ) from error
    except (urllib.error.URLError, *BROKEN) as error:
        raise _Broken(str(getattr(error, "reason", "") or error) or "connection lost") from error


def _receive(
    entry: CatalogueEntry, url: str, part: Path, answer: Any, have: int, progress: Progress | None
) -> None:
    resumed = answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(
        f"bytes {have}-"
    )
    start = have if resumed else 0
    if "text/html" in str(answer.headers.get("Content-Type", "")).lower():
        raise _Refused(_not_data(url))
    announced = str(answer.headers.get("Content-Length", ""))
    with part.open("ab" if resumed else "wb") as file:
        received = start
        while True:
            try:
                # read1 hands over what has arrived, so that a stall loses nothing.
                chunk = answer.read1(CHUNK)
            except BROKEN as error:
                raise _Broken(str(error) or "connection lost") from error
            if not chunk:
                break
            if received == 0 and not chunk.startswith(HDF5_SIGNATURE[: len(chunk)]):
                raise _Refused(_not_data(url))
            file.write(chunk)
            received += len(chunk)
            if progress is not None:
                progress(received, entry.size)
            if received > entry.size:
                break
    if received < entry.size and announced.isdecimal() and start + int(announced) > received:
        raise _Broken("the connection ended early")
    if received != entry.size:
        raise _Refused(
            f"{url} sent {received:,} bytes where {entry.size:,} were expected; the copy there is "
            "truncated or another file. It was removed; name another server with --mirror."
        )


def _verify(entry: CatalogueEntry, url: str, part: Path) -> None:
    if file_digest(part) != entry.sha256:
        raise _Refused(
            f"What {url} sent for {entry.name} does not match its SHA-256 checksum; it was "
            "removed. Download again; if it happens twice, name another server with --mirror."
        )


def difference(path: Path, entry: CatalogueEntry) -> str | None:
    """How the file at ``path`` differs from the official one, in words; None if it is that file."""
    state = path.stat()
    if state.st_size != entry.size:
        return f"it has {state.st_size:,} bytes, {entry.name} has {entry.size:,}"
    if _remembered(path) == [state.st_size, state.st_mtime_ns, entry.sha256]:
        return None
    if file_digest(path) != entry.sha256:
        return f"its SHA-256 is not that of {entry.name}"
    _remember(path, entry.sha256)
    return None


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(path: Path) -> Path:
    return path.with_name(f".{path.name}.verified")


def _remembered(path: Path) -> object:
    try:
        return json.loads(_note(path).read_text())
    except (OSError, ValueError, RecursionError):
        return None


def _remember(path: Path, sha256: str) -> None:
    state = path.stat()
    with suppress(OSError):  # a directory that is read-only costs the sum again, nothing else
        _note(path).write_text(json.dumps([state.st_size, state.st_mtime_ns, sha256]))


def _not_data(url: str) -> str:
    return (
        f"{url} answered with a web page or other text instead of HDF5 data; nothing was kept. The "
        "host may be down or need a login; name another server with --mirror."
    )


def _got(size: int, entry: CatalogueEntry) -> str:
    return f"{size:,} of {entry.size:,} bytes are kept." if size else "Nothing has arrived yet."


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Keeps two processes from writing one ``.part`` file."""
    try:
        import fcntl
    except ImportError:  # not on this platform; two downloads at once are the user's care
        yield
        return
    lock = path.with_name(path.name + ".lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PbrlError(
                f"Another process is downloading '{path.name}'; wait until it is done."
            ) from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
