"""Downloads that end with the right file or with none.

The answer is written to a ``.part`` file beside its destination, checked for size, signature and
SHA-256, and only then renamed. A broken connection leaves the ``.part`` file, from which the next
attempt goes on where the server allows it; an answer that is complete but wrong is removed.
"""

from __future__ import annotations

import hashlib
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import platformdirs

from pbrl.data.catalogue import CatalogueEntry
from pbrl.errors import PbrlError

MIRROR_VARIABLE = "PBRL_D4RL_MIRROR"
DIRECTORY_VARIABLE = "PBRL_DATA_DIR"
CHUNK = 1 << 18
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

Progress = Callable[[int, int], None]
"""Called with the bytes so far and the bytes in all."""


class _Refused(PbrlError):
    """The answer is complete but is not the file; trying again would not help."""


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
        attempts: connections to try in a row without any progress before giving up.
        timeout: seconds without a byte after which a connection counts as broken.
        pause: seconds before the second attempt, doubled before each further one.

    Returns:
        The verified file.
    """
    path = cached_file(entry, directory)
    if path.is_file() and path.stat().st_size == entry.size:
        return path
    url = entry.url(mirror or os.environ.get(MIRROR_VARIABLE) or None)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise PbrlError(f"The mirror must be an http or https address; got '{mirror}'.")
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
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch(entry, url, part, progress, timeout)
            _verify(entry, url, part)
        except _Refused:
            part.unlink(missing_ok=True)
            raise
        except _Broken as error:
            after = part.stat().st_size if part.exists() else 0
            failures = 1 if after > before else failures + 1
            if failures >= attempts:
                raise PbrlError(
                    f"Downloading {entry.name} from {url} failed: {error}. {_got(after, entry)} "
                    "Try again later to go on from there, or name another server with --mirror."
                ) from error
            time.sleep(pause * 2 ** (failures - 1))
            continue
        os.replace(part, path)
        return path


def _fetch(
    entry: CatalogueEntry, url: str, part: Path, progress: Progress | None, timeout: float
) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have >= entry.size:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "pbrl"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            _receive(entry, url, part, answer, have, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            # The server has no such range: what we hold is not a beginning of its file.
            part.unlink(missing_ok=True)
            raise _Broken("the server refused to resume") from error
        if error.code >= 500 or error.code in (408, 429):
            raise _Broken(f"the server answered {error.code} {error.reason}") from error
        raise _Refused(
            f"{url} answered {error.code} {error.reason}; the host may have moved. Name another "
            f"server with --mirror or {MIRROR_VARIABLE}, or download the file by hand and give its "
            "path."
        ) from error
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
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
    announced = answer.headers.get("Content-Length")
    with part.open("ab" if resumed else "wb") as file:
        received = start
        while True:
            try:
                # read1 hands over what has arrived, so that a stall loses nothing.
                chunk = answer.read1(CHUNK)
            except (HTTPException, TimeoutError, ConnectionError) as error:
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
    if received < entry.size and announced is not None and start + int(announced) > received:
        raise _Broken("the connection ended early")
    if received != entry.size:
        raise _Refused(
            f"{url} sent {received:,} bytes where {entry.size:,} were expected; the copy there is "
            "truncated or another file. It was removed; name another server with --mirror."
        )


def _verify(entry: CatalogueEntry, url: str, part: Path) -> None:
    digest = hashlib.sha256()
    with part.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise _Refused(
            f"What {url} sent for {entry.name} does not match its SHA-256 checksum; it was "
            "removed. Download again; if it happens twice, name another server with --mirror."
        )


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
