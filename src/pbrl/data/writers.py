"""Writing a file or directory of any format: complete under its name, or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from pbrl.data.formats import RowWriter, format_of, format_of_directory, suffixes
from pbrl.data.minari_writer import PREFIX, MinariWriter, is_minari, minari_destination
from pbrl.data.rows import RowSource
from pbrl.data.scratch import scratch_beside
from pbrl.errors import PbrlError


@contextmanager
def writing(path: Path, source: RowSource, *, overwrite: bool = False) -> Iterator[RowWriter]:
    """A writer for ``path`` by its suffix; a directory name without suffix makes a store.

    ``minari:ID`` makes a dataset in Minari's own directory.

    The format writes under the wanted name in a hidden directory beside the destination, from where
    everything moves when it is complete; a killed conversion leaves no half file.

    Args:
        path: the destination; appears only when complete.
        source: the rows to come: their shape, metadata and training view.
        overwrite: replace what is there.
    """
    minari = minari_destination(path)
    if minari is None:
        make = _writer_of(path)
    else:
        make = partial(MinariWriter, dataset_id=path.as_posix().removeprefix(PREFIX))
        path = minari
    _check_destination(path, overwrite, "store" if minari is None else "Minari dataset")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(scratch_beside(path))
        except OSError as error:
            raise PbrlError(f"Cannot write '{path}': {error.strerror or error}.") from error
        writer = None
        try:
            writer = make(scratch / path.name, source)
            yield writer
            writer.close()
            _move(scratch, path)
        except BaseException as error:
            if writer is not None:
                with suppress(OSError):  # closing cannot write either, where the disk is full
                    writer.abandon()
            if isinstance(error, OSError):
                raise PbrlError(
                    f"Writing '{path}' failed: {error.strerror or error}. Nothing was kept; free "
                    "space or choose another place."
                ) from error
            raise


def _writer_of(path: Path) -> Callable[[Path, RowSource], RowWriter]:
    found = format_of(path if path.suffix else path.with_suffix(".store"))
    if found is None:
        raise PbrlError(
            f"Cannot write '{path}': unknown suffix '{path.suffix.lower()}'. Known: "
            f"{', '.join(suffixes())} (a name without suffix makes a store)."
        )
    if found.writer is None:
        raise PbrlError(f"Cannot write '{path}': such files are only read; choose another suffix.")
    return found.writer


def _move(scratch: Path, path: Path) -> None:
    """Everything in ``scratch`` to its place beside ``path``, ``path`` itself last."""
    for made in sorted(scratch.iterdir(), key=lambda made: made.name == path.name):
        target = path.with_name(made.name)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(made, target)


def _check_destination(path: Path, overwrite: bool, kind: str) -> None:
    if not path.exists():
        return
    known = is_minari(path) if kind != "store" else format_of_directory(path) is not None
    if path.is_dir() and not known:
        # Never remove a directory that is not known to be data.
        raise PbrlError(f"'{path}' is a directory that is not a {kind}; choose another name.")
    if not overwrite:
        raise PbrlError(f"'{path}' exists; give --overwrite to replace it, or another name.")
