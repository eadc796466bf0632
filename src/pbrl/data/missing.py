"""Cells that hold no number: refused with their count, or read as the user says.

A gap in a log is a place where nothing is known, and no transition may reach across it: the row
before a gap has no next observation, and the row after it is nobody's next observation. What a
logged episode earned does not change by it, so the episodes of the log stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import Bools, Cuts, Floats, TransitionDataset, numbered_names
from pbrl.data.rows import BLOCK, Metadata, Rows, RowSource
from pbrl.errors import PbrlError, unknown_name

Missing = Literal["refuse", "split", "drop-episode", "forward-fill"]

CHOICES = (
    "Say how to read them with --missing: split (nothing is learned from a row with a gap, and no "
    "transition reaches across one), drop-episode (nor from any other row of its episode) or "
    "forward-fill (sensors and actions keep their last reading, the rest as split)."
)


class MissingCell(PbrlError):
    """A cell of the data holds no finite number; the sentence says which."""


@dataclass
class Gaps:
    """How many cells of a log hold no finite number.

    Attributes:
        cells: by name of the column, those with any, in the order of the columns.
        rows: rows with such a cell.
        total: rows in all.
    """

    cells: dict[str, int]
    rows: int
    total: int

    def plus(self, more: Gaps) -> Gaps:
        """Of these rows and of ``more``."""
        cells = {**self.cells}
        for name, count in more.cells.items():
            cells[name] = cells.get(name, 0) + count
        return Gaps(cells, self.rows + more.rows, self.total + more.total)

    def sentence(self) -> str:
        """``133 cells in 120 of 47,392 rows hold no number: valve_pct 40, …``."""
        count = sum(self.cells.values())
        listed = ", ".join(f"{name} {cells:,}" for name, cells in self.cells.items())
        some = "1 cell holds" if count == 1 else f"{count:,} cells hold"
        return f"{some} no number, in {self.rows:,} of {self.total:,} rows: {listed}."


def check_missing(missing: str) -> None:
    """Refuses words that are no choice."""
    if missing not in get_args(Missing):
        raise unknown_name("way to read missing cells (--missing)", missing, get_args(Missing))


def count_gaps(metadata: Metadata, blocks: Iterable[Rows]) -> Gaps:
    """The gaps of rows that were read without refusing them."""
    found = Gaps({}, 0, 0)
    for block in blocks:
        cells, touched = {}, np.zeros(len(block), np.bool_)
        for name, column in _columns(metadata, block):
            bad = ~np.isfinite(column)
            if bad.any():
                cells[name] = int(bad.sum())
                touched |= bad
        found = found.plus(Gaps(cells, int(touched.sum()), len(block)))
    return found


def refused(error: MissingCell, opened: RowSource) -> PbrlError:
    """``error`` with the count of all such cells and what can be done about them.

    Args:
        error: about the first one.
        opened: the same log, opened so that gaps are not refused.
    """
    gaps = count_gaps(opened.metadata, opened.blocks(BLOCK))
    return PbrlError(f"{error} {gaps.sentence()} {CHOICES}")


def forward_filled(rows: Rows) -> Rows:
    """Observations and actions that keep their last reading within an episode."""
    ends = rows.terminals if rows.timeouts is None else rows.terminals | rows.timeouts
    starts = np.concatenate([[True], ends[:-1]])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(rows)), 0))  # of the episode, [N]
    return replace(
        rows,
        observations=_held(rows.observations, first),
        actions=_held(rows.actions, first),
    )


def without_gaps(dataset: TransitionDataset, gaps: Gaps, missing: Missing) -> TransitionDataset:
    """The transitions that touch no gap; the rest of their episodes stays theirs.

    Args:
        dataset: all transitions, gaps among them; forward-filled if that was asked for.
        gaps: of the raw rows as they were.
        missing: what was asked for.
    """
    whole = (dataset.observations, dataset.actions, dataset.rewards[:, None])
    keep = _finite_rows(np.concatenate(whole, axis=1))
    known_next = _finite_rows(dataset.next_observations)
    keep &= known_next | dataset.terminals
    ends = np.asarray(dataset.episode_ends)
    owner: NDArray[np.int64] = np.cumsum(ends) - ends  # the episode of each transition
    episodes = int(owner[-1]) + 1
    if missing == "drop-episode":
        bad = np.bincount(owner, ~keep, episodes) > 0
        keep &= ~bad[owner]
    if not keep.any():
        raise PbrlError(
            f"'{dataset.info.source or dataset.info.name}': with --missing {missing} no transition "
            f"is left. {gaps.sentence()} Take a column out that is hardly ever there, or another "
            "--missing."
        )
    index = np.flatnonzero(keep)
    picked = dataset.rows(index)
    # A terminal's next observation is never looked at, but must be a number.
    following = np.where(known_next[index, None], picked.next_observations, picked.observations)
    last = np.append(owner[index][1:] != owner[index][:-1], True)
    note = (
        f"{gaps.sentence()} Read with --missing {missing}: {len(index):,} of {len(dataset):,} "
        f"transitions in {int(last.sum()):,} of {episodes:,} episodes; none reaches across a gap, "
        "and returns are the logged episodes'."
    )
    info = replace(
        dataset.info,
        notes=(*dataset.info.notes, note),
        # Of all that were logged, also where episodes are left out.
        logged_return_mean=dataset.behaviour_return_mean() if int(last.sum()) < episodes else None,
    )
    assert dataset.logged_returns is not None
    return replace(
        picked,
        next_observations=following,
        episode_ends=last,
        info=info,
        cuts=_cuts(dataset, index, ends),
        logged_returns=dataset.logged_returns[owner[index][last]],
    )


def _finite_rows(values: Floats) -> Bools:
    """Which rows hold numbers only, ``[N, D] -> [N]``."""
    finite: Bools = np.logical_and.reduce(np.isfinite(values), axis=1)
    return finite


def _cuts(dataset: TransitionDataset, index: NDArray[np.int64], ends: Bools) -> Cuts:
    """Before a gap the log goes on: with the action of the next row where it is known, else NaN."""
    gap_follows = ~ends[index] & (np.append(index[1:], -1) != index + 1)
    if dataset.cuts is not None:
        gap_follows |= np.isin(index, dataset.cuts.rows)
    places = np.flatnonzero(gap_follows)
    return Cuts(places, dataset.next_actions(index[places]))


def _held(values: Floats, first: NDArray[np.int64]) -> Floats:
    """Every column with its last finite value since row ``first`` of the episode, if any."""
    here = np.arange(len(values))[:, None]
    latest = np.maximum.accumulate(np.where(np.isfinite(values), here, -1))
    usable = latest >= first[:, None]
    source = np.where(usable, latest, here)
    held: Floats = np.take_along_axis(values, source, 0)
    return held


def _columns(metadata: Metadata, rows: Rows) -> Iterable[tuple[str, Floats]]:
    s, a = rows.observations.shape[1], rows.actions.shape[1]
    observations = metadata.observation_names or numbered_names("obs", s)
    yield from zip(observations, rows.observations.T, strict=True)
    yield from zip(
        metadata.action_names or numbered_names("action", a), rows.actions.T, strict=True
    )
    yield "reward", rows.rewards
    if rows.next_observations is not None:
        following = (f"next {name}" for name in observations)
        yield from zip(following, rows.next_observations.T, strict=True)
