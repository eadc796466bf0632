"""Conversion between all formats, in memory that does not grow with the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pbrl.data.dataset import TransitionDataset
from pbrl.data.formats import Columns
from pbrl.data.loading import gaps_counted, load_dataset, open_source
from pbrl.data.missing import Missing, check_missing
from pbrl.data.resolve import describe
from pbrl.data.rows import BLOCK, Metadata, Rows, RowSource, source_of
from pbrl.data.validate import bound_actions
from pbrl.data.view import NextObservations, choose_view
from pbrl.data.writers import writing
from pbrl.errors import PbrlError


@dataclass(frozen=True)
class Converted:
    """What a conversion did.

    Attributes:
        path: the new file or store.
        rows: raw rows written.
        notes: sentences about how the source was read, and what the format could not hold.
    """

    path: Path
    rows: int
    notes: tuple[str, ...]


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    next_observations: NextObservations = "auto",
    clip_actions: bool = False,
    action_low: object = None,
    action_high: object = None,
    columns: Columns = None,
    env_id: str | None = None,
    missing: Missing = "refuse",
    progress: Callable[[int, int | None], None] | None = None,
) -> Converted:
    """Writes the raw rows of ``source`` to ``destination``, whose suffix says the format.

    Raw rows are kept as they are, in float32: no row is dropped and no flag changed. What is known
    besides (environment, reference scores, bounds, recipe) goes along.

    Args:
        source: as in ``load_dataset``.
        destination: ``.hdf5``, ``.npz``, ``.csv``, ``.parquet``, a store's directory, or
            ``minari:ID`` for a dataset in Minari's own directory.
        overwrite: replace what is there.
        next_observations: which view a store lays out for training; other formats keep both.
        clip_actions: clip actions to their bounds.
        action_low: declared lower bounds.
        action_high: declared upper bounds.
        columns: names of a table's columns.
        env_id: the environment to record.
        missing: as in ``load_dataset``; unless ``refuse``, the transitions are read into memory and
            written with next observations of their own.
        progress: told the rows written and the rows in all, if known.
    """
    path = Path(destination).expanduser()
    check_missing(missing)
    with gaps_counted(source, columns):
        opened = open_source(source, columns, strict=missing == "refuse", verify=True)
    opened = describe(opened, env_id, action_low, action_high)
    if missing != "refuse" and opened.store is None:
        loaded = load_dataset(
            source,
            next_observations=next_observations,
            clip_actions=clip_actions,
            action_low=action_low,
            action_high=action_high,
            columns=columns,
            env_id=env_id,
            missing=missing,
        )
        opened, next_observations = _transitions(loaded, opened.metadata), "file"
    with gaps_counted(source, columns):
        first = next(opened.blocks(BLOCK), None)
    if first is None:
        raise PbrlError(f"'{opened.metadata.source}' has no rows.")
    choice = choose_view(opened.metadata, first, next_observations)
    if next_observations != "auto":
        # The word given here holds wherever the converted data are loaded.
        opened = _with_preference(opened, next_observations == "file")
    rows = 0
    opened = replace(opened, choice=choice)
    with gaps_counted(source, columns), writing(path, opened, overwrite=overwrite) as writer:
        for block in _bounded(opened, clip_actions):
            writer.append(block)
            rows += len(block)
            if progress is not None:
                progress(rows, opened.length)
    written: tuple[str, ...] = getattr(writer, "notes", ())  # few formats cannot hold every log
    return Converted(path, rows, (*opened.metadata.notes, choice.note, *written))


def _transitions(loaded: TransitionDataset, metadata: Metadata) -> RowSource:
    """A dataset's transitions as raw rows, each with its own next observation."""
    rows = Rows(
        loaded.observations,
        loaded.actions,
        loaded.rewards,
        loaded.terminals,
        loaded.episode_ends & ~loaded.terminals,
        loaded.next_observations,
    )
    logged, notes = loaded.behaviour_return_mean(), loaded.info.notes
    return source_of(rows, replace(metadata, notes=notes, logged_return_mean=logged))


def _with_preference(opened: RowSource, prefer_file: bool) -> RowSource:
    return replace(opened, metadata=replace(opened.metadata, prefer_file=prefer_file))


def _bounded(opened: RowSource, clip: bool) -> Iterator[Rows]:
    metadata = opened.metadata
    start = 0
    for block in opened.blocks(BLOCK):
        if clip:
            low, high = metadata.action_low, metadata.action_high
            block = bound_actions(f"'{metadata.source}'", block, low, high, True, start)
        yield block
        start += len(block)
