"""What CSV and Parquet share: one row a step, one column a dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import numbered_names
from pbrl.data.formats.table_columns import TableLayout
from pbrl.data.rows import Metadata, Rows, RowSource
from pbrl.data.validate import to_rows
from pbrl.errors import PbrlError

Matrix = NDArray[np.float64]
Keys = list[Any] | None


def described(path: Path, layout: TableLayout, where: str, carried: object) -> Metadata:
    """What is known of a table; ``carried`` is what our own writer kept with it."""
    metadata = Metadata(path.stem, str(path)).updated(where, carried)
    return described_table(metadata, layout)


def described_table(metadata: Metadata, layout: TableLayout) -> Metadata:
    """``metadata`` with what the columns of a table tell."""
    notes = []
    if layout.ignored:
        listed = ", ".join(layout.ignored[:8]) + (", …" if len(layout.ignored) > 8 else "")
        notes.append(f"Ignored what training does not use: {listed}.")
    if layout.timeouts is None and layout.episode is None:
        notes.append(
            "No timeout and no episode column: episodes end at terminals only, and a row before a "
            "cut would be joined to the next episode."
        )
    metadata = metadata.with_notes(*notes)
    # Our writer calls the columns obs_0, … and keeps their names apart; other tables' names stand.
    if layout.observations != numbered_names("obs", len(layout.observations)):
        metadata = replace(metadata, observation_names=layout.observations)
    if layout.actions != numbered_names("action", len(layout.actions)):
        metadata = replace(metadata, action_names=layout.actions)
    return metadata


def table_source(
    where: str,
    layout: TableLayout,
    metadata: Metadata,
    pieces: Callable[[int], Iterator[tuple[Matrix, Keys]]],
    strict: bool,
) -> RowSource:
    """A table as a source of rows, from ``pieces`` of a wanted size: numbers and episodes."""
    s, a = len(layout.observations), len(layout.actions)
    has_timeouts = layout.timeouts is not None or layout.episode is not None
    has_next = layout.next_observations is not None

    def blocks(size: int) -> Iterator[Rows]:
        """Rows with timeouts where the episode changes; one row waits for its successor."""
        start = 0
        held: Rows | None = None
        held_key: Any = None
        finished: set[Any] = set()
        for matrix, keys in pieces(size):
            arrays = {
                "observations": matrix[:, :s],
                "actions": matrix[:, s : s + a],
                "rewards": matrix[:, s + a],
                "terminals": matrix[:, s + a + 1],
            }
            if layout.timeouts is not None:
                arrays["timeouts"] = matrix[:, s + a + 2]
            elif has_timeouts:
                arrays["timeouts"] = np.zeros(len(matrix))
            if has_next:
                arrays["next_observations"] = matrix[:, -s:]
            rows = to_rows(where, arrays, start, strict)
            if keys is None:
                yield rows
                start += len(rows)
                continue
            if held is not None:
                rows = Rows.concatenate([held, rows])
                keys = [held_key, *keys]
            offset = start - (0 if held is None else 1)
            changes = [i for i in range(len(keys) - 1) if keys[i] != keys[i + 1]]
            for i in changes:
                finished.add(keys[i])
                if keys[i + 1] in finished:
                    raise PbrlError(
                        f"{where}: episode {keys[i + 1]} goes on at row {offset + i + 1} after "
                        "another one; sort the rows by episode and time."
                    )
            assert rows.timeouts is not None
            rows.timeouts[changes] |= ~rows.terminals[changes]
            start += len(matrix)
            held, held_key = rows[-1:], keys[-1]
            if len(rows) > 1:
                yield rows[:-1]
        if held is not None:
            yield held

    return RowSource(metadata, s, a, has_timeouts, has_next, blocks)


def table_columns(source: RowSource) -> list[str]:
    """The default column names of CSV and Parquet."""
    names = [f"obs_{i}" for i in range(source.observation_dim)]
    names += [f"action_{i}" for i in range(source.action_dim)]
    names += ["reward", "terminal"]
    names += ["timeout"] if source.has_timeouts else []
    if source.has_next:
        names += [f"next_obs_{i}" for i in range(source.observation_dim)]
    # Without timeouts, episodes are told by terminals alone; an episode column would claim more.
    return [*names, "episode"] if source.has_timeouts else names


class EpisodeNumbers:
    """Numbers episodes for the ``episode`` column of tables."""

    def __init__(self) -> None:
        self.current = 0

    def of(self, rows: Rows) -> Any:
        """Of the next rows, ``[N]``."""
        ends = rows.terminals if rows.timeouts is None else rows.terminals | rows.timeouts
        passed = np.cumsum(ends)
        numbers = self.current + passed - ends
        self.current += int(passed[-1]) if len(passed) else 0
        return numbers
