"""From raw rows to transitions: which rows are kept, and where the next observation comes from.

Three views of the same log:

``d4rl``
    D4RL's ``qlearning_dataset``, row for row: the next observation is the following row's, rows
    that time out and the very last row are dropped. A terminal row's next observation then
    belongs to the next episode; the value target masks it.
``episode``
    The following row's, but never across an episode's end: a terminal row, which needs none, gets
    its own observation, and the last row of an episode that was cut is dropped.
``file``
    The log's own next observations; no row is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import Bools, DatasetInfo, TransitionDataset
from pbrl.data.rows import Metadata, Rows
from pbrl.errors import PbrlError

NextObservations = Literal["auto", "file", "shift"]
View = Literal["d4rl", "episode", "file"]

_SHIFT_NOTE = {
    "d4rl": "next observations are the following row's, as in D4RL's qlearning_dataset",
    "episode": "next observations are the following row's within the same episode",
}


@dataclass(frozen=True)
class ViewChoice:
    """The view taken, and the sentence that tells the user."""

    view: View
    note: str


def choose_view(metadata: Metadata, first: Rows, wanted: NextObservations = "auto") -> ViewChoice:
    """Decides between the file's next observations and the following row's.

    ``auto`` takes the log's own where it has them, except for D4RL files, which are read as
    ``qlearning_dataset`` reads them so that results compare; and even there the file's own when
    its rows are not in order of time, where shifting would pair unrelated states.

    Args:
        metadata: of the log.
        first: its first block of rows.
        wanted: the user's word.
    """
    has_next = first.next_observations is not None
    shift = metadata.shift
    if wanted not in ("auto", "file", "shift"):
        raise PbrlError(f"Unknown next_observations '{wanted}'; use auto, file or shift.")
    if wanted == "file":
        if not has_next:
            raise PbrlError(
                f"{metadata.source or metadata.name} has no next_observations of its own; use "
                "next_observations = shift (or auto), which derives them."
            )
        return ViewChoice("file", "Using the file's own next_observations, as asked.")
    if wanted == "shift":
        return ViewChoice(shift, f"As asked, {_SHIFT_NOTE[shift]}.")
    if not has_next:
        return ViewChoice(shift, f"The file has no next_observations: {_SHIFT_NOTE[shift]}.")
    if metadata.prefer_file:
        return ViewChoice("file", "Using the file's own next_observations.")
    out_of_order = _share_out_of_order(first)
    if out_of_order > 0.1:
        return ViewChoice(
            "file",
            "Using the file's own next_observations: "
            f"{out_of_order:.0%} of them differ from the following row, so the rows are not in "
            "order of time (next_observations = shift overrides).",
        )
    if first.timeouts is None and metadata.horizon is None:
        return ViewChoice(
            "file",
            "Using the file's own next_observations: without timeouts and a known environment "
            "the following row may belong to another episode.",
        )
    return ViewChoice(
        shift,
        f"Read row for row like D4RL: {_SHIFT_NOTE[shift]}, though the file has its own (a "
        "terminal row's is then the next episode's first; next_observations = file uses the "
        "file's).",
    )


def _share_out_of_order(rows: Rows) -> float:
    """Share of rows inside episodes whose next observation is not the following row's."""
    if rows.next_observations is None or len(rows) < 2:
        return 0.0
    inside = ~rows.terminals[:-1]
    if rows.timeouts is not None:
        inside &= ~rows.timeouts[:-1]
    if not inside.any():
        return 0.0
    near: Bools = np.isclose(
        rows.next_observations[:-1], rows.observations[1:], rtol=1e-3, atol=1e-3
    )
    same = np.logical_and.reduce(near, axis=1)
    return float(1 - np.mean(same[inside]))


def kept_rows(
    view: View,
    terminals: Bools,
    timeouts: Bools | None,
    horizon: int | None = None,
) -> Bools:
    """Which raw rows become transitions, ``[N]`` bool.

    Args:
        view: one of the three views.
        terminals: ``[N]``.
        timeouts: ``[N]`` or None.
        horizon: the environment's step limit, which D4RL counts where the file has no timeouts.
    """
    keep = np.ones(len(terminals), np.bool_)
    if view == "file":
        return keep
    if timeouts is not None:
        # A row that is both terminal and timed out: D4RL drops it, within an episode it counts.
        keep &= ~timeouts if view == "d4rl" else ~timeouts | terminals
    elif view == "d4rl" and horizon is not None:
        keep[_counted_out(terminals, horizon)] = False
    if len(keep):
        keep[-1] = view == "episode" and bool(terminals[-1])
    return keep


def _counted_out(terminals: Bools, horizon: int) -> NDArray[np.int64]:
    """Rows that D4RL takes for timeouts by counting steps, in files without ``timeouts``.

    Its counter is set to 0 at a terminal row and then raised for that same row, so an episode
    after a terminal starts at 1 and one after a timeout at 0; we follow it to the row.
    """
    out: list[int] = []
    ends = [*np.flatnonzero(terminals).tolist(), len(terminals)]
    start, counter = 0, 0
    for end in ends:
        # Counter at row i of this stretch is counter + i - start until a timeout resets it.
        row = start + horizon - 1 - counter
        while row < min(end + 1, len(terminals)):
            out.append(row)
            row += horizon
        # A timeout on the terminal row itself skips it and leaves the counter at 0.
        counter = 0 if out and out[-1] == end else 1
        start = end + 1
    return np.array(out, np.int64)


def training_view(
    rows: Rows, view: View, info: DatasetInfo, horizon: int | None = None
) -> TransitionDataset:
    """The transitions of ``rows`` under ``view``, in file order."""
    keep = kept_rows(view, rows.terminals, rows.timeouts, horizon)
    ends = rows.terminals.copy() if rows.timeouts is None else rows.terminals | rows.timeouts
    if view == "d4rl" and rows.timeouts is None and horizon is not None:
        ends[_counted_out(rows.terminals, horizon)] = True
    if len(ends):
        ends[-1] = True
    if view == "file":
        assert rows.next_observations is not None
        following = rows.next_observations
    else:
        following = np.empty_like(rows.observations)
        following[:-1] = rows.observations[1:]
        following[-1:] = rows.observations[-1:]
        if view == "episode":
            following[rows.terminals] = rows.observations[rows.terminals]
    if not keep.any():
        raise PbrlError(
            f"{info.source or info.name} has {len(rows)} row(s) but no transition: every row ends "
            "an episode without saying what follows. Log at least two steps an episode, or "
            "next_observations."
        )
    episode_ends = _ends_of_kept(keep, ends)
    if keep.all():
        return TransitionDataset(
            rows.observations,
            rows.actions,
            rows.rewards,
            following,
            rows.terminals,
            episode_ends,
            info,
        )
    return TransitionDataset(
        rows.observations[keep],
        rows.actions[keep],
        rows.rewards[keep],
        following[keep],
        rows.terminals[keep],
        episode_ends,
        info,
    )


def _ends_of_kept(keep: Bools, ends: Bools) -> Bools:
    """Episode ends among the kept rows: the last kept row of every raw episode."""
    episode: NDArray[np.int64] = np.cumsum(ends) - ends
    kept: NDArray[np.int64] = episode[keep]
    last = np.ones(len(kept), np.bool_)
    last[:-1] = kept[1:] != kept[:-1]
    return last
