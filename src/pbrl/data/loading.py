"""``load_dataset``: one call for every source of logged data."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.data.catalogue import catalogue
from pbrl.data.dataset import TransitionDataset
from pbrl.data.download import cached_file, difference, download
from pbrl.data.formats import Columns, Reading, format_of, format_of_directory, suffixes
from pbrl.data.formats.hdf5 import open_hdf5
from pbrl.data.formats.npz import open_npz
from pbrl.data.memory import open_in_memory
from pbrl.data.minari import local_ids, minari_data_dir, minari_root, open_minari
from pbrl.data.minari_writer import PREFIX
from pbrl.data.missing import (
    Missing,
    MissingCell,
    check_missing,
    count_gaps,
    forward_filled,
    refused,
    without_gaps,
)
from pbrl.data.resolve import describe, info_of, official
from pbrl.data.rows import BLOCK, Metadata, RowSource
from pbrl.data.store import Store
from pbrl.data.validate import BOUND_TOLERANCE, bound_actions
from pbrl.data.view import NextObservations, choose_view, doubtful_episodes, training_view
from pbrl.errors import PbrlError

EMBEDDED = ("demo",)
Source = str | os.PathLike[str] | Mapping[str, Any] | Any
_MINARI_ID = re.compile(r"^(?:[\w.-]+/)*[\w.-]+-v\d+$")


def load_dataset(
    source: Source = "demo",
    *,
    next_observations: NextObservations = "auto",
    clip_actions: bool = False,
    action_low: object = None,
    action_high: object = None,
    columns: Columns = None,
    env_id: str | None = None,
    missing: Missing = "refuse",
) -> TransitionDataset:
    """Load logged data from wherever they are, checked and in one form.

    Args:
        source: ``demo``; a D4RL name (downloaded if it is not there yet); a Minari id or directory;
            a path to a D4RL HDF5, ``.npz``, CSV or Parquet file, or to a store; a mapping of arrays
            with D4RL's names; a mapping of columns, or a pandas or polars frame, read as a table.
        next_observations: ``file`` uses the log's own, ``shift`` the following row's, ``auto``
            decides and says so in ``info.notes``.
        clip_actions: clip actions to their bounds instead of refusing those outside.
        action_low: declared lower bounds, a number or ``[A]``.
        action_high: declared upper bounds, a number or ``[A]``.
        columns: for CSV and Parquet, other names of columns: role -> name, names with commas
            between, or ``prefix*``.
        env_id: the environment to score in, where the data do not tell or tell another.
        missing: what becomes of cells without a number: ``refuse`` says how many there are;
            ``split`` leaves out the rows with one, and no transition reaches across the gap;
            ``drop-episode`` leaves out their whole episodes; ``forward-fill`` holds the last
            reading of observations and actions, and splits for the rest.

    Returns:
        The transitions, with what is known about them in ``info``; memory-mapped from a store.
    """
    check_missing(missing)
    strict = missing == "refuse"
    with gaps_counted(source, columns):
        opened = open_source(source, columns, strict=strict)
        described = describe(opened, env_id, action_low, action_high)
        metadata = described.metadata
        if described.store is not None:
            return _load_store(described.store, metadata, next_observations, clip_actions)
        rows = described.read()
    if len(rows) == 0:
        raise PbrlError(f"'{metadata.source}' has no rows.")
    rows = bound_actions(
        f"'{metadata.source}'", rows, metadata.action_low, metadata.action_high, clip_actions
    )
    choice = choose_view(metadata, rows[:BLOCK], next_observations)
    metadata = metadata.with_notes(choice.note, *doubtful_episodes(rows))
    info = info_of(metadata)
    if strict or not (gaps := count_gaps(metadata, [rows])).cells:
        return training_view(rows, choice.view, info, metadata.horizon)
    if missing == "forward-fill":
        rows = forward_filled(rows)
    return without_gaps(training_view(rows, choice.view, info, metadata.horizon), gaps, missing)


@contextmanager
def gaps_counted(source: Source, columns: Columns) -> Iterator[None]:
    """Where a cell without a number ends the reading, the error counts all of them."""
    try:
        yield
    except MissingCell as error:
        raise refused(error, open_source(source, columns, strict=False)) from error


def _load_store(
    store: Store, metadata: Metadata, wanted: NextObservations, clip: bool
) -> TransitionDataset:
    low, high = metadata.action_low, metadata.action_high
    if low is not None and high is not None:
        slack = BOUND_TOLERANCE * (high - low)
        outside = (store.action_min < low - slack) | (store.action_max > high + slack)
        if outside.any():
            column = int(np.flatnonzero(outside)[0])
            how = (
                "a store is not changed in place; convert it with --clip-actions"
                if clip
                else (
                    "clip them with 'pbrl data convert --clip-actions', or declare other bounds "
                    "with --action-low and --action-high"
                )
            )
            raise PbrlError(
                f"'{metadata.source}': actions leave their bounds in dimension {column}: they "
                f"reach from {store.action_min[column]:g} to {store.action_max[column]:g}, outside "
                f"[{low[column]:g}, {high[column]:g}]; {how}."
            )
    shifted = "file" if store.choice.view == "file" else "shift"
    if wanted not in ("auto", shifted):
        raise PbrlError(
            f"'{metadata.source}' was written with next_observations = {shifted}; convert it again "
            f"with --next-observations {wanted}."
        )
    return store.dataset(info_of(metadata.with_notes(store.choice.note)))


def parse_columns(entries: tuple[str, ...]) -> dict[str, str] | None:
    """``("rewards=r", …)`` as a map from role to columns."""
    mapping: dict[str, str] = {}
    for entry in entries:
        role, sign, names = entry.partition("=")
        if not sign or not names:
            raise PbrlError(f"--columns takes ROLE=NAME, got '{entry}'.")
        mapping[role.strip()] = names
    return mapping or None


def open_source(
    source: Source,
    columns: Columns = None,
    *,
    strict: bool = True,
    verify: bool | None = None,
) -> RowSource:
    """The raw rows behind a name or path, not yet read.

    Args:
        source: as in ``load_dataset``.
        columns: as in ``load_dataset``.
        strict: refuse NaN and infinite values while reading.
        verify: compare a store with its checksums; by default only a small one.
    """
    if not isinstance(source, str | os.PathLike):
        return open_in_memory(source, Reading(columns, strict, verify))
    text = os.fspath(source)
    if not text.strip():
        raise PbrlError("The dataset's name is empty; give a name or a path.")
    if "\0" in text:
        raise PbrlError("The dataset's name has a NUL character in it.")
    if text in EMBEDDED:
        return _open_embedded(text)
    how = Reading(columns, strict, verify)
    if text.startswith(PREFIX):
        return _open_by_name(text.removeprefix(PREFIX), how)
    if text in catalogue():
        return _open_d4rl(text, how)
    path = Path(text).expanduser()
    try:
        is_directory, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise PbrlError(f"Cannot look at '{text[:80]}': {error.strerror or error}.") from error
    if is_directory:
        return _open_directory(path, how)
    found = format_of(path)
    if found is not None and found.holds is None:
        return found.reader(path, how)
    if exists:
        raise PbrlError(
            f"'{path}' has a suffix pbrl does not know; known: {', '.join(suffixes())}, and "
            "directories of a store or of Minari."
        )
    return _open_by_name(text, how)


def _open_directory(path: Path, how: Reading) -> RowSource:
    found = format_of_directory(path)
    if found is not None:
        return found.reader(path, how)
    folder = minari_data_dir(path)
    if folder is not None:
        return open_minari(folder, how)
    raise PbrlError(
        f"'{path}' is a directory, but neither a pbrl store (no manifest.json) nor a Minari "
        "dataset (no data/metadata.json); give a file or one of these."
    )


def _open_by_name(text: str, how: Reading) -> RowSource:
    """A Minari id on this machine, or the nearest name that would have been known."""
    if _MINARI_ID.match(text):
        folder = minari_data_dir(minari_root() / text)
        if folder is not None:
            return open_minari(folder, how)
    if "/" in text and _MINARI_ID.match(text):
        near = difflib.get_close_matches(text, local_ids(), n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise PbrlError(
            f"No path '{text}', and no Minari dataset of that id in {minari_root()}.{hint} Fetch "
            f"it with 'pbrl data download {text}'."
        )
    if "/" in text or "\\" in text:
        raise PbrlError(f"No file or directory '{text}'.")
    known = [*EMBEDDED, *catalogue(), *local_ids()]
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise PbrlError(
        f"Unknown dataset '{text}': no file or directory of that name, and no dataset pbrl knows."
        f"{hint} 'pbrl data list' shows the names."
    )


def _open_d4rl(name: str, how: Reading) -> RowSource:
    entry = catalogue()[name]
    path = cached_file(entry)
    if not path.exists():
        path = download(entry)
    elif (problem := difference(path, entry)) is not None:
        raise PbrlError(
            f"'{path}' is not the official file: {problem}. Remove it, or replace it: run 'pbrl "
            f"data download {name}'."
        )
    opened = open_hdf5(path, how)
    return replace(opened, metadata=official(opened.metadata, name, path, entry.environment))


def _open_embedded(name: str) -> RowSource:
    file = resources.files("pbrl.data") / "embedded" / f"{name}.npz"
    with resources.as_file(file) as path:
        if not path.exists():
            raise PbrlError(
                f"The embedded dataset '{name}' is missing from this installation; install pbrl "
                "again."
            )
        opened = open_npz(path, Reading())
    return replace(opened, metadata=replace(opened.metadata, name=name, source=name))
