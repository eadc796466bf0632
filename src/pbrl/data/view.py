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

from pbrl.data.dataset import Bools, Cuts, DatasetInfo, Floats, TransitionDataset, same_states
from pbrl.data.rows import Metadata, Rows, View, ViewChoice
from pbrl.errors import PbrlError

NextObservations = Literal["auto", "file", "shift"]

_SHIFT_NOTE = {
    "d4rl": "next observations are the following row's, as in D4RL's qlearning_dataset",
    "episode": "next observations are the following row's within the same episode",
}


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
    same = same_states(rows.next_observations[:-1], rows.observations[1:])
    return float(1 - np.mean(same[inside]))


class StepCounter:
    """D4RL's way to find timeouts in files that do not record them: counting steps.

    Its counter is set to 0 at a terminal row and then raised for that same row, so an episode
    after a terminal starts at 1 and one after a timeout at 0; we follow it to the row.

    Args:
        horizon: the environment's step limit, at least 2.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.counter = 0

    def timeouts(self, terminals: Bools) -> Bools:
        """Timeouts of the next ``[N]`` rows, ``[N]`` bool."""
        out = np.zeros(len(terminals), np.bool_)
        start = 0
        for end in [*np.flatnonzero(terminals).tolist(), len(terminals)]:
            last = min(end, len(terminals) - 1)
            first = start + self.horizon - 1 - self.counter
            out[first : last + 1 : self.horizon] = True
            if end == len(terminals):
                found = np.flatnonzero(out[start:])
                passed = end - start
                self.counter = passed - 1 - int(found[-1]) if len(found) else self.counter + passed
            else:
                self.counter = 0 if out[end] else 1
            start = end + 1
        return out


@dataclass(frozen=True)
class Laid:
    """Consecutive raw rows and what the training view makes of them.

    Attributes:
        rows: the rows as logged, N of them.
        timeouts: ``[N]`` bool, the log's or those found by counting steps; None: nobody knows.
        keep: ``[N]`` bool, the rows that become transitions.
        ends: ``[N]`` bool, where the transitions of an episode end.
        following: ``[N, S]``, their next observations.
    """

    rows: Rows
    timeouts: Bools | None
    keep: Bools
    ends: Bools
    following: Floats

    def logged_ends(self) -> Bools:
        """Where the log's own episodes end, dropped rows included, ``[N]`` bool."""
        terminals = self.rows.terminals
        return terminals if self.timeouts is None else terminals | self.timeouts


class TrainingView:
    """The one definition of a view; rows come whole or in blocks.

    Args:
        view: one of the three.
        has_timeouts: whether the rows carry timeouts.
        horizon: the environment's step limit, by which D4RL finds timeouts that a file lacks.
    """

    def __init__(self, view: View, has_timeouts: bool, horizon: int | None) -> None:
        self.view = view
        counts = view == "d4rl" and not has_timeouts and horizon is not None
        self._counter = StepCounter(horizon) if counts and horizon is not None else None
        self._held: tuple[Rows, Bools | None] | None = None

    def append(self, rows: Rows) -> Laid:
        """The next block; what can be told by now, two rows behind.

        An episode's end depends on whether the following row is kept, and for the last row that is
        known only at the end.
        """
        timeouts = self._timeouts(rows)
        if self._held is not None:
            held, before = self._held
            rows = Rows.concatenate([held, rows])
            if before is not None and timeouts is not None:
                timeouts = np.concatenate([before, timeouts])
        laid = self._lay(rows, timeouts, last=False)
        self._held = (rows[-2:], None if timeouts is None else timeouts[-2:])
        return Laid(
            rows[:-2],
            None if timeouts is None else timeouts[:-2],
            laid.keep[:-2],
            laid.ends[:-2],
            laid.following[:-2],
        )

    def close(self) -> Laid | None:
        """The rows held back; None when there were none at all."""
        return None if self._held is None else self._lay(*self._held, last=True)

    def whole(self, rows: Rows) -> Laid:
        """All rows of a log at once."""
        return self._lay(rows, self._timeouts(rows), last=True)

    def _timeouts(self, rows: Rows) -> Bools | None:
        return rows.timeouts if self._counter is None else self._counter.timeouts(rows.terminals)

    def _lay(self, rows: Rows, timeouts: Bools | None, last: bool) -> Laid:
        """The view of ``rows``; its last is the log's last, or may not be relied on."""
        terminals = rows.terminals
        if self.view == "file" or timeouts is None:
            keep = np.ones(len(rows), np.bool_)
        else:
            # A row that is both terminal and timed out: D4RL drops it; in an episode it counts.
            keep = ~timeouts if self.view == "d4rl" else ~timeouts | terminals
        ends = terminals.copy() if timeouts is None else terminals | timeouts
        if last:
            keep[-1:] = self.view == "file" or (self.view == "episode" and bool(terminals[-1]))
            ends[-1:] = True
        # A dropped row ends its episode, so the row before it is the last one kept.
        ends[:-1] |= ~keep[1:]
        return Laid(rows, timeouts, keep, ends, self._following(rows))

    def _following(self, rows: Rows) -> Floats:
        """Next observations, ``[N, S]``; the last row's are its own where they are not logged."""
        if self.view == "file":
            assert rows.next_observations is not None
            return rows.next_observations
        following = np.concatenate([rows.observations[1:], rows.observations[-1:]])
        if self.view == "episode":
            following[rows.terminals] = rows.observations[rows.terminals]
        return following


LONG_EPISODE = 5_000


def doubtful_episodes(rows: Rows) -> list[str]:
    """Sentences on rows whose episodes were probably cut without the log saying where."""
    if rows.timeouts is not None:
        return []
    said = []
    advice = "Mark where episodes were cut with timeouts (or an episode column of a table)."
    if rows.next_observations is not None and len(rows) > 1:
        apart = ~rows.terminals[:-1]
        apart &= ~same_states(rows.next_observations[:-1], rows.observations[1:])
        if apart.any():
            said.append(
                f"{int(apart.sum()):,} next observations do not fit the following row though no "
                f"episode ends there: these may be ends that the log does not tell. {advice}"
            )
    ends = np.append(np.flatnonzero(rows.terminals), len(rows) - 1)
    longest = int(np.diff(ends, prepend=-1).max())
    if longest >= LONG_EPISODE and not said:
        said.append(f"One episode has {longest:,} of {len(rows):,} rows. {advice}")
    return said


def training_view(
    rows: Rows, view: View, info: DatasetInfo, horizon: int | None = None
) -> TransitionDataset:
    """The transitions of ``rows`` under ``view``, in file order."""
    laid = TrainingView(view, rows.timeouts is not None, horizon).whole(rows)
    keep = laid.keep
    if not keep.any():
        raise no_transition(info.source or info.name, len(rows))
    columns = (
        rows.observations,
        rows.actions,
        rows.rewards,
        laid.following,
        rows.terminals,
        laid.ends,
    )
    if not keep.all():
        columns = tuple(column[keep] for column in columns)  # type: ignore[assignment]
    dropped = np.flatnonzero(~keep)
    logged_ends = laid.logged_ends()
    owner: NDArray[np.int64] = np.cumsum(logged_ends) - logged_ends
    returns = np.bincount(owner, rows.rewards.astype(np.float64)).astype(np.float64)
    return TransitionDataset(
        *columns,
        info,
        cuts=cuts_before(dropped, rows.actions[dropped]),
        logged_returns=returns[owner[keep & laid.ends]],
    )


def cuts_before(dropped: NDArray[np.int64], actions: Floats) -> Cuts:
    """The transitions right before the raw rows ``dropped [D]``, with those rows' actions."""
    after_kept = np.diff(dropped, prepend=-1) > 1
    # Raw row d - 1 is the transition of that number less the rows dropped before it.
    before = dropped - 1 - np.arange(len(dropped))
    return Cuts(before[after_kept], actions[after_kept])


def no_transition(source: str, rows: int) -> PbrlError:
    """The error for a log of which nothing can be trained on."""
    return PbrlError(
        f"'{source}' has {rows} row(s) but no transition: every row ends an episode without saying "
        "what follows. Log at least two steps an episode, or next_observations."
    )
