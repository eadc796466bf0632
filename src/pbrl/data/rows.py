"""Logged rows exactly as a file holds them: what readers yield and writers accept.

Raw rows know nothing of training. Which of them become transitions, and with which next
observation, is decided in ``pbrl.data.view``; converting between formats happens on raw rows, so
that nothing is lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pbrl.data.dataset import Bools, Floats
from pbrl.errors import PbrlError, printable

if TYPE_CHECKING:
    from pbrl.data.store import Store

Shift = Literal["d4rl", "episode"]
View = Literal["d4rl", "episode", "file"]

BLOCK = 1 << 16
"""Rows read at a time; bounds the memory of every streaming reader and writer."""


@dataclass(frozen=True)
class Rows:
    """A block of consecutive logged rows.

    Attributes:
        observations: ``[N, S]`` float32.
        actions: ``[N, A]`` float32.
        rewards: ``[N]`` float32.
        terminals: ``[N]`` bool, the episode ended for good.
        timeouts: ``[N]`` bool, the episode was cut here; None where the log does not say.
        next_observations: ``[N, S]`` float32; None where the log has none.
    """

    observations: Floats
    actions: Floats
    rewards: Floats
    terminals: Bools
    timeouts: Bools | None = None
    next_observations: Floats | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    def __getitem__(self, index: Any) -> Rows:
        """The rows picked by a slice, mask or index array."""
        picked: dict[str, Any] = {}
        for entry in fields(self):
            column = getattr(self, entry.name)
            picked[entry.name] = None if column is None else column[index]
        return Rows(**picked)

    @staticmethod
    def concatenate(blocks: list[Rows]) -> Rows:
        """Blocks one after the other; all must have the same optional columns."""
        if len(blocks) == 1:
            return blocks[0]
        joined: dict[str, Any] = {}
        for entry in fields(Rows):
            parts = [getattr(block, entry.name) for block in blocks]
            joined[entry.name] = None if parts[0] is None else np.concatenate(parts)
        return Rows(**joined)


@dataclass(frozen=True)
class Metadata:
    """What a file says about its rows besides the rows themselves.

    Attributes:
        name: short name for tables and run directories.
        source: path, D4RL name or Minari id.
        env_id: Gymnasium environment, if the file or its name tells.
        reference_scores: returns that count as 0 and 100, if known.
        score_source: who defines these returns.
        action_low: declared lower bounds, ``[A]``.
        action_high: declared upper bounds, ``[A]``.
        horizon: steps after which the environment cuts an episode, if known.
        shift: how next observations are derived from the following row: ``d4rl`` as
            ``qlearning_dataset`` does, ``episode`` never across an episode's end.
        prefer_file: whether the file's own next observations are used when nobody says otherwise.
        recipe: how the data were made, as recorded in the file; JSON values only.
        notes: sentences a user should see.
        observation_names: what the log calls its observations, S names; empty when it does not say.
        action_names: what it calls its actions, A names.
        logged_return_mean: mean return of the episodes as they were logged, where the rows no
            longer tell.
    """

    name: str
    source: str = ""
    env_id: str | None = None
    reference_scores: tuple[float, float] | None = None
    score_source: str | None = None
    action_low: Floats | None = None
    action_high: Floats | None = None
    horizon: int | None = None
    shift: Shift = "episode"
    prefer_file: bool = True
    recipe: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    observation_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    logged_return_mean: float | None = None

    def __post_init__(self) -> None:
        # Notes quote what files say, and are shown as sentences: on one line each.
        lines = tuple(printable(" ".join(note.split())) for note in self.notes)
        object.__setattr__(self, "notes", lines)

    def to_json(self) -> dict[str, Any]:
        """What is kept with the rows when they are written to another file."""
        listed = [None if x is None else x.tolist() for x in (self.action_low, self.action_high)]
        values = {
            "env_id": self.env_id,
            "reference_scores": None if (r := self.reference_scores) is None else list(r),
            "score_source": self.score_source,
            "action_low": listed[0],
            "action_high": listed[1],
            "horizon": self.horizon,
            "shift": self.shift,
            "prefer_file": self.prefer_file,
            "recipe": self.recipe,
            "observation_names": list(self.observation_names),
            "action_names": list(self.action_names),
            "logged_return_mean": self.logged_return_mean,
        }
        return {key: value for key, value in values.items() if value not in (None, {}, [])}

    def updated(self, where: str, values: object) -> Metadata:
        """The same with the entries of ``to_json`` that ``values`` has, checked.

        Args:
            where: the file, for messages.
            values: a JSON object.
        """
        if not isinstance(values, dict):
            raise PbrlError(f"{where}: the metadata must be a JSON object.")
        known: dict[str, Any] = {}
        for key, value in values.items():
            if key not in _READERS or value is None:
                continue
            try:
                known[key] = _READERS[key](value)
            except (TypeError, ValueError, OverflowError) as error:
                raise PbrlError(
                    f"{where}: '{key}' in the metadata cannot be {str(value)[:60]!r}; repair or "
                    "remove it."
                ) from error
        return replace(self, **known)

    def with_notes(self, *notes: str) -> Metadata:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _bound(value: Any) -> Floats:
    bound = np.asarray(value, np.float32)
    if bound.ndim != 1 or not np.isfinite(bound).all():
        raise ValueError
    return bound


def _pair(value: Any) -> tuple[float, float]:
    low, high = (float(x) for x in value)
    if not (np.isfinite(low) and np.isfinite(high) and low != high):
        raise ValueError
    return low, high


def _choice(value: object) -> str:
    if value not in ("d4rl", "episode"):
        raise ValueError
    return str(value)


def _horizon(value: Any) -> int:
    if not isinstance(value, int) or value < 2:
        raise ValueError
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError
    if len(set(value)) < len(value):
        raise ValueError
    return tuple(value)


def _finite(value: Any) -> float:
    if not np.isfinite(value):
        raise ValueError
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "env_id": _text,
    "reference_scores": _pair,
    "score_source": _text,
    "action_low": _bound,
    "action_high": _bound,
    "horizon": _horizon,
    "shift": _choice,
    "prefer_file": _truth,
    "recipe": dict,
    "observation_names": _names,
    "action_names": _names,
    "logged_return_mean": _finite,
}


@dataclass(frozen=True)
class ViewChoice:
    """The training view taken (``pbrl.data.view``), and the sentence that tells the user."""

    view: View
    note: str


@dataclass(frozen=True)
class RowSource:
    """An opened log: its shape, what is known about it, and its rows in blocks.

    Attributes:
        metadata: what the file says besides its rows.
        observation_dim: S.
        action_dim: A.
        has_timeouts: whether blocks carry ``timeouts``.
        has_next: whether blocks carry ``next_observations``.
        blocks: a function of the block size that iterates over the rows in order, from the start.
        length: number of rows; None where only reading to the end tells (CSV).
        choice: the training view, where it is chosen already.
        store: the store that they lie in, which has its training view mapped.
    """

    metadata: Metadata
    observation_dim: int
    action_dim: int
    has_timeouts: bool
    has_next: bool
    blocks: Callable[[int], Iterator[Rows]]
    length: int | None = None
    choice: ViewChoice | None = None
    store: Store | None = None

    def columns(self) -> list[str]:
        """D4RL's keys of the arrays that the rows have."""
        keys = ["observations", "actions", "rewards", "terminals"]
        keys += ["timeouts"] if self.has_timeouts else []
        keys += ["next_observations"] if self.has_next else []
        return keys

    def read(self) -> Rows:
        """All rows in memory, in float32 and without a second copy where the length is known."""
        if self.length is None:
            return Rows.concatenate(list(self.blocks(BLOCK)) or [self.empty(0)])
        whole = self.empty(self.length)
        start = 0
        for block in self.blocks(BLOCK):
            for entry in fields(Rows):
                column = getattr(whole, entry.name)
                if column is not None:
                    column[start : start + len(block)] = getattr(block, entry.name)
            start += len(block)
        return whole

    def empty(self, length: int) -> Rows:
        """Uninitialised rows of this source's shape."""
        s, a = self.observation_dim, self.action_dim
        return Rows(
            np.empty((length, s), np.float32),
            np.empty((length, a), np.float32),
            np.empty(length, np.float32),
            np.empty(length, np.bool_),
            np.empty(length, np.bool_) if self.has_timeouts else None,
            np.empty((length, s), np.float32) if self.has_next else None,
        )


def source_of(rows: Rows, metadata: Metadata) -> RowSource:
    """Rows in memory as a source."""

    def blocks(size: int) -> Iterator[Rows]:
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    return RowSource(
        metadata,
        rows.observations.shape[1],
        rows.actions.shape[1],
        rows.timeouts is not None,
        rows.next_observations is not None,
        blocks,
        len(rows),
    )
