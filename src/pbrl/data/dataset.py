"""The one canonical form of logged data; everything downstream of the readers sees only this."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a dataset besides its rows.

    Attributes:
        name: short name for tables and run directories.
        source: where it came from: a path, a D4RL name or a Minari id.
        env_id: the Gymnasium environment its policies are scored in, if known.
        reference_scores: returns that count as 0 and 100 in normalised scores, if known.
        score_source: who defines these returns, e.g. ``"D4RL"``.
        action_low: declared lower bounds of the actions, ``[A]``; None when unknown.
        action_high: declared upper bounds of the actions, ``[A]``; None when unknown.
        notes: sentences a user should see about how the file was read.
        observation_names: what the log calls its S observations; empty when it does not say.
        action_names: what it calls its A actions.
        logged_return_mean: mean return of all logged episodes, where the rows no longer tell.
        held_out: numbers of the source's episodes that are not among these rows, because they are
            kept to judge by.
    """

    name: str
    source: str = ""
    env_id: str | None = None
    reference_scores: tuple[float, float] | None = None
    score_source: str | None = None
    action_low: Floats | None = None
    action_high: Floats | None = None
    notes: tuple[str, ...] = ()
    observation_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    logged_return_mean: float | None = None
    held_out: tuple[int, ...] = ()


class Cuts(NamedTuple):
    """Where the log goes on although no transition does: an episode's last row has no s', so it is
    dropped, but it holds the action that was taken at the s' of the row before.

    Attributes:
        rows: ``[E]`` int64, ascending: the transitions before a dropped row.
        actions: ``[E, A]`` float32, the dropped rows'.
    """

    rows: NDArray[np.int64]
    actions: Floats


@dataclass(frozen=True)
class TransitionDataset:
    """Logged transitions, in memory or memory-mapped.

    ``terminals`` end bootstrapping; ``episode_ends`` mark the last row of every episode, whether it
    terminated, timed out or the log simply stops.

    Attributes:
        observations: ``[N, S]`` float32.
        actions: ``[N, A]`` float32, in the units of the log.
        rewards: ``[N]`` float32.
        next_observations: ``[N, S]`` float32.
        terminals: ``[N]`` bool.
        episode_ends: ``[N]`` bool.
        info: what is known besides the rows.
        known_fingerprint: the fingerprint where it is already recorded (the store's manifest).
        side_by_side: ``[N, 2S + A + 2]`` float32, the same observations, actions, rewards, next
            observations and terminals in one array, where a store keeps them so.
        cuts: actions of rows that are no transitions, see ``next_actions``.
        logged_returns: ``[E]`` float64, returns of the episodes as they were logged, rewards of
            rows that are no transitions among them; NaN where a reward is not known.
    """

    observations: Floats
    actions: Floats
    rewards: Floats
    next_observations: Floats
    terminals: Bools
    episode_ends: Bools
    info: DatasetInfo = field(default_factory=lambda: DatasetInfo("unnamed"))
    known_fingerprint: str | None = field(default=None, repr=False)
    side_by_side: Floats | None = field(default=None, repr=False)
    cuts: Cuts | None = field(default=None, repr=False)
    logged_returns: NDArray[np.float64] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def observation_dim(self) -> int:
        """S, the size of an observation."""
        return int(self.observations.shape[1])

    @property
    def action_dim(self) -> int:
        """A, the size of an action."""
        return int(self.actions.shape[1])

    @property
    def observation_names(self) -> tuple[str, ...]:
        """What the S observations are called: by the log, else ``obs_0, obs_1, …``."""
        return self.info.observation_names or numbered_names("obs", self.observation_dim)

    @property
    def action_names(self) -> tuple[str, ...]:
        """What the A actions are called: by the log, else ``action_0, action_1, …``."""
        return self.info.action_names or numbered_names("action", self.action_dim)

    @property
    def memory_mapped(self) -> bool:
        """Whether the rows live in files rather than in memory."""
        return isinstance(self.observations, np.memmap)

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """The six arrays by name, in a fixed order."""
        return {
            "observations": self.observations,
            "actions": self.actions,
            "rewards": self.rewards,
            "next_observations": self.next_observations,
            "terminals": self.terminals,
            "episode_ends": self.episode_ends,
        }

    def episodes(self) -> Iterator[slice]:
        """Row ranges of the episodes, in file order."""
        start = 0
        for end in np.flatnonzero(self.episode_ends):
            yield slice(start, int(end) + 1)
            start = int(end) + 1
        if start < len(self):
            yield slice(start, len(self))

    def episode_returns(self) -> NDArray[np.float64]:
        """Undiscounted return of every episode, ``[E]``, summed in pieces of the data."""
        returns: list[NDArray[np.float64]] = []
        unfinished = 0.0
        for start in range(0, len(self), 1 << 18):
            piece = slice(start, start + (1 << 18))
            ends = np.asarray(self.episode_ends[piece])
            number: NDArray[np.int64] = np.cumsum(ends) - ends  # of the episode in the piece, [n]
            weights = np.asarray(self.rewards[piece], np.float64)
            sums = np.bincount(number, weights, int(ends.sum()) + 1).astype(np.float64)
            sums[0] += unfinished
            returns.append(sums[:-1])
            unfinished = float(sums[-1])
        if len(self) and not self.episode_ends[-1]:
            returns.append(np.array([unfinished]))
        return np.concatenate([np.zeros(0), *returns])

    def behaviour_return_mean(self) -> float:
        """Mean undiscounted return of the logged episodes."""
        if self.info.logged_return_mean is not None:
            return self.info.logged_return_mean
        if self.logged_returns is not None and np.isfinite(self.logged_returns).any():
            return float(self.logged_returns[np.isfinite(self.logged_returns)].mean())
        return float(self.episode_returns().mean())

    def rows(self, index: NDArray[np.integer] | slice) -> TransitionDataset:
        """The rows picked by ``index`` as a dataset of their own."""
        picked = {name: column[index] for name, column in self.columns().items()}
        info = self.info
        if info.logged_return_mean is not None:  # it is of all episodes
            info = replace(info, logged_return_mean=None)
        return TransitionDataset(**picked, info=info)  # type: ignore[arg-type]

    def next_actions(self, index: NDArray[np.int64]) -> Floats:
        """The actions logged at s' of the rows ``index``, ``[B] -> [B, A]``; NaN without one.

        It is the following row's inside an episode, and the dropped row's where an episode was cut.
        There is none after a terminal, at the end of a log without dropped rows, and where rows are
        not in order of time.
        """
        following = np.minimum(index + 1, len(self) - 1)
        inside = ~np.asarray(self.episode_ends[index])
        inside &= same_states(self.next_observations[index], self.observations[following])
        actions = np.full((len(index), self.action_dim), np.nan, np.float32)
        actions[inside] = self.actions[following[inside]]
        if self.cuts is not None and len(self.cuts.rows):
            place = np.searchsorted(self.cuts.rows, index).clip(max=len(self.cuts.rows) - 1)
            cut = self.cuts.rows[place] == index
            actions[cut] = self.cuts.actions[place[cut]]
        return actions

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the rows: datasets that hold the same transitions have the same one."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        digests = {name: column_digest(column) for name, column in self.columns().items()}
        return combine_digests(digests)


def numbered_names(stem: str, size: int) -> tuple[str, ...]:
    """``stem_0, stem_1, …``: names for columns whose log has none."""
    return tuple(f"{stem}_{i}" for i in range(size))


def same_states(one: NDArray[Any], other: NDArray[Any]) -> Bools:
    """Whether two observations are the same but for rounding, ``[N, S], [N, S] -> [N]``."""
    near: Bools = np.isclose(one, other, rtol=1e-3, atol=1e-3)
    return np.logical_and.reduce(near, axis=1)  # type: ignore[no-any-return]


def column_digest(column: NDArray[np.generic]) -> str:
    """SHA-256 of one column's bytes, read in pieces so that mapped files stay on disk."""
    digest = hashlib.sha256()
    for start in range(0, len(column), 1 << 18):
        digest.update(np.ascontiguousarray(column[start : start + (1 << 18)]).data)
    return digest.hexdigest()


def combine_digests(digests: Mapping[str, str]) -> str:
    """A dataset's fingerprint from the digests of its columns."""
    text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
    return hashlib.sha256(text.encode()).hexdigest()
