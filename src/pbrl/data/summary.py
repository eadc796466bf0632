"""What a log holds, in numbers: one pass over its raw rows, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.column_stats import ColumnStats, Vector, quantiles
from pbrl.data.dataset import numbered_names
from pbrl.data.missing import CHOICES, Gaps, count_gaps
from pbrl.data.resolve import describe
from pbrl.data.rows import BLOCK, Metadata, Rows, RowSource, ViewChoice
from pbrl.data.view import Laid, NextObservations, TrainingView, choose_view
from pbrl.errors import PbrlError

HASHED_ROWS = 5_000_000
"""Duplicates are counted among this many first rows, at 8 bytes of memory each."""
SAMPLE_ROWS = 4_000
BINS = 20


@dataclass(frozen=True)
class Summary:
    """Everything ``pbrl data inspect`` shows.

    Attributes:
        metadata: what is known besides the rows, with notes on how it was read.
        rows: raw rows.
        transitions: rows that the training view keeps.
        view: the training view.
        terminals: rows that end an episode for good.
        timeouts: rows at which an episode was cut; None where the log does not say.
        returns: ``[E]`` return of every episode; the last may be unfinished.
        lengths: ``[E]``.
        observations: statistics by dimension.
        actions: statistics by dimension.
        rewards: statistics.
        gaps: cells that hold no number.
        negative_share: share of rewards below zero.
        duplicates: rows that repeat an earlier (observation, action, reward).
        hashed: rows among which duplicates were counted.
        coverage: ``[A]`` share of the action range's 20 bins that the data visit.
        effective_dims: principal directions that hold 95 % of the observations' variance.
        sample_observations: a uniform sample of rows, for pictures.
        sample_actions: the same rows' actions.
        sample_rewards: the same rows' rewards.
        sample_episodes: the same rows' episode numbers.
    """

    metadata: Metadata
    rows: int
    transitions: int
    view: str
    terminals: int
    timeouts: int | None
    returns: Vector
    lengths: NDArray[np.int64]
    observations: ColumnStats
    actions: ColumnStats
    rewards: ColumnStats
    gaps: Gaps
    negative_share: float
    duplicates: int
    hashed: int
    coverage: Vector
    effective_dims: int
    sample_observations: NDArray[np.float32]
    sample_actions: NDArray[np.float32]
    sample_rewards: NDArray[np.float32]
    sample_episodes: NDArray[np.int64]

    def findings(self) -> list[str]:
        """Sentences on what deserves attention; the reward sign always comes first."""
        found = [self.reward_sentence()]
        if self.gaps.cells:
            found.append(f"{self.gaps.sentence()} {CHOICES}")
        for what, stats in (
            ("Observations", self.observations),
            ("Actions", self.actions),
            ("Rewards", self.rewards),
        ):
            if stats.constant:
                found.append(f"{what} that never change: {', '.join(stats.constant)}.")
        if self.duplicates:
            share = self.duplicates / self.hashed
            found.append(f"{self.duplicates:,} rows ({share:.1%}) repeat an earlier one exactly.")
        if self.terminals == 0:
            found.append("No row is terminal: every value target looks ahead.")
        if not self.timeouts and not self.terminals and self.rows > 1:
            found.append("No episode ends before the last row: all rows count as one episode.")
        low = [i for i, share in enumerate(self.coverage) if share < 0.25]
        if low:
            found.append(
                f"Actions visit less than a quarter of their range in dimensions {low}: a policy "
                "that leaves it is on its own."
            )
        return found

    def reward_sentence(self) -> str:
        """What the sign of the rewards means for PBRL's truncation at zero."""
        mean = float(self.rewards.mean[0])
        if self.negative_share == 0:
            return (
                "No reward is negative, so returns are not either: PBRL's floor of OOD targets at "
                "zero is sound."
            )
        some = "All" if self.negative_share == 1 else f"{self.negative_share:.1%} of the"
        share = f"{some} rewards are negative (mean {mean:.4g})"
        if self.negative_share <= 0.5 and mean >= 0:
            return f"{share}: PBRL's ood_floor = auto keeps its floor of OOD targets at zero."
        return (
            f"{share}: a floor of OOD targets at zero would make unseen actions attractive, so "
            "PBRL's ood_floor = auto takes the lowest discounted return the data allow; "
            "normalize_rewards = min-zero makes the floor at zero sound."
        )

    def to_json(self) -> dict[str, Any]:
        """The numbers without the sample."""
        return {
            "name": self.metadata.name,
            "source": self.metadata.source,
            "metadata": self.metadata.to_json(),
            "rows": self.rows,
            "transitions": self.transitions,
            "view": self.view,
            "episodes": len(self.lengths),
            "terminals": self.terminals,
            "timeouts": self.timeouts,
            "returns": quantiles(self.returns),
            "lengths": quantiles(self.lengths),
            "observations": self.observations.to_json(),
            "actions": self.actions.to_json(),
            "rewards": self.rewards.to_json()[0],
            "missing_cells": self.gaps.cells,
            "rows_with_missing_cells": self.gaps.rows,
            "negative_reward_share": self.negative_share,
            "duplicates": self.duplicates,
            "action_coverage": self.coverage.tolist(),
            "effective_observation_dims": self.effective_dims,
            "notes": list(self.metadata.notes),
            "findings": self.findings(),
        }


def summarize(
    opened: RowSource,
    *,
    next_observations: NextObservations = "auto",
    env_id: str | None = None,
    seed: int = 0,
) -> Summary:
    """Reads a log once and describes it.

    Args:
        opened: from ``open_source(..., strict=False)``, so that NaN are counted and not refused.
        next_observations: the training view asked for.
        env_id: as in ``load_dataset``.
        seed: of the sample for pictures.
    """
    source = describe(opened, env_id)
    pass_ = _Pass(source, seed)
    layout, choice = None, None
    for block in source.blocks(BLOCK):
        if layout is None:
            choice = opened.store.choice if opened.store is not None else None
            choice = choice or choose_view(source.metadata, block, next_observations)
            layout = TrainingView(choice.view, source.has_timeouts, source.metadata.horizon)
        pass_.add(layout.append(block))
    last = None if layout is None else layout.close()
    if last is None or choice is None:
        raise PbrlError(f"'{source.metadata.source}' has no rows.")
    pass_.add(last)
    return pass_.finish(choice)


class _Pass:
    """The state of one reading."""

    def __init__(self, source: RowSource, seed: int) -> None:
        self.metadata = metadata = source.metadata
        s, a = source.observation_dim, source.action_dim
        self.observations = ColumnStats(metadata.observation_names or numbered_names("obs", s))
        self.actions = ColumnStats(metadata.action_names or numbered_names("action", a))
        self.rewards = ColumnStats(("reward",))
        self.rows = self.kept = self.terminals = self.negative = 0
        self.timeouts: int | None = None
        self.gaps = Gaps({}, 0, 0)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.open_return, self.open_length = 0.0, 0
        self.hashes: list[NDArray[np.uint64]] = []
        self.hashed = 0
        self.rng = np.random.default_rng(seed)
        odd = self.rng.integers(1, 1 << 63, s + a + 1, dtype=np.uint64)
        self.multipliers = odd * np.uint64(2) + np.uint64(1)
        self.keys = np.empty(0)
        self.sample: Rows | None = None
        self.sample_episodes = np.empty(0, np.int64)

    def add(self, laid: Laid) -> None:
        rows, ends = laid.rows, laid.logged_ends()
        if len(rows) == 0:
            return
        self.observations.add(rows.observations)
        self.actions.add(rows.actions)
        self.rewards.add(rows.rewards[:, None])
        self.gaps = self.gaps.plus(count_gaps(self.metadata, [rows]))
        self.negative += int((rows.rewards < 0).sum())
        self.terminals += int(rows.terminals.sum())
        if laid.timeouts is not None:
            self.timeouts = (self.timeouts or 0) + int(laid.timeouts.sum())
        self.kept += int(laid.keep.sum())
        self._hash(rows)
        self._sample(rows, len(self.lengths) + np.cumsum(ends) - ends)
        self._episodes(rows, ends)
        self.rows += len(rows)

    def _episodes(self, rows: Rows, ends: NDArray[np.bool_]) -> None:
        stops = np.flatnonzero(ends) + 1
        starts = np.concatenate([[0], stops])
        starts = starts[starts < len(rows)]
        sums = np.add.reduceat(rows.rewards, starts, dtype=np.float64)
        stops = np.append(starts[1:], len(rows))
        for start, stop, total in zip(starts.tolist(), stops.tolist(), sums.tolist(), strict=True):
            self.open_return += total
            self.open_length += stop - start
            if ends[stop - 1]:
                self.returns.append(self.open_return)
                self.lengths.append(self.open_length)
                self.open_return, self.open_length = 0.0, 0

    def _hash(self, rows: Rows) -> None:
        room = HASHED_ROWS - self.hashed
        if room <= 0:
            return
        matrix = np.concatenate([rows.observations, rows.actions, rows.rewards[:, None]], axis=1)
        words = matrix[:room].view(np.uint32).astype(np.uint64)
        # Multiply-and-add with wrap-around: equal rows always meet, others practically never.
        mixed = (words ^ (words << np.uint64(17))) * self.multipliers
        self.hashes.append(mixed.sum(1, dtype=np.uint64))
        self.hashed += len(words)

    def _sample(self, rows: Rows, episodes: NDArray[Any]) -> None:
        """A uniform sample: every row draws a number, the smallest stay."""
        keys = self.rng.random(len(rows))
        new = Rows(rows.observations, rows.actions, rows.rewards, rows.terminals)
        if self.sample is not None:
            new = Rows.concatenate([self.sample, new])
            keys = np.concatenate([self.keys, keys])
            episodes = np.concatenate([self.sample_episodes, episodes])
        best = np.sort(np.argsort(keys)[:SAMPLE_ROWS])
        self.sample, self.keys, self.sample_episodes = new[best], keys[best], episodes[best]

    def finish(self, choice: ViewChoice) -> Summary:
        if self.open_length:
            self.returns.append(self.open_return)
            self.lengths.append(self.open_length)
        assert self.sample is not None
        hashes = np.concatenate(self.hashes)
        return Summary(
            self.metadata.with_notes(choice.note),
            self.rows,
            self.kept,
            choice.view,
            self.terminals,
            self.timeouts,
            np.array(self.returns),
            np.array(self.lengths, np.int64),
            self.observations,
            self.actions,
            self.rewards,
            self.gaps,
            self.negative / self.rows,
            len(hashes) - len(np.unique(hashes)),
            self.hashed,
            self._coverage(),
            _effective_dims(self.sample.observations),
            self.sample.observations,
            self.sample.actions,
            self.sample.rewards,
            self.sample_episodes,
        )

    def _coverage(self) -> Vector:
        """Share of the bins of each action's range that the sample visits."""
        assert self.sample is not None
        low: Any = self.metadata.action_low
        high: Any = self.metadata.action_high
        if low is None or high is None:
            low, high = self.actions.low, self.actions.high
            if np.all(low >= -1) and np.all(high <= 1):
                low, high = -1.0, 1.0
        with np.errstate(invalid="ignore", divide="ignore"):
            place = (self.sample.actions - low) / (high - low) * BINS
        place = np.clip(np.nan_to_num(place, nan=0.0), 0, BINS - 1).astype(np.int64)
        return np.array([len(np.unique(column)) / BINS for column in place.T])


def _effective_dims(observations: NDArray[np.float32]) -> int:
    finite = observations[np.isfinite(observations).all(1)].astype(np.float64)
    if len(finite) < 2:
        return 0
    variances = np.linalg.svd(finite - finite.mean(0), compute_uv=False) ** 2
    if variances.sum() == 0:
        return 0
    return int(np.searchsorted(np.cumsum(variances) / variances.sum(), 0.95) + 1)
