"""Minibatches from a dataset: one gather a batch, from memory or from mapped files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.errors import PbrlError

Matrix = NDArray[np.float32]


class Batch(NamedTuple):
    """A minibatch in network units.

    Attributes:
        observations: ``[B, S]``.
        actions: ``[B, A]`` in ``[-1, 1]``.
        rewards: ``[B]``.
        next_observations: ``[B, S]``.
        terminals: ``[B]``, 1.0 where bootstrapping ends.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminals: Tensor

    @property
    def next_actions(self) -> Tensor:
        """The actions logged at the next observations, ``[B, A]``; NaN where there is none."""
        raise PbrlError(
            "This minibatch does not know which rows of a log it is, so it has no next actions; "
            "draw it from TrainingData."
        )


class LoggedBatch(Batch):
    """A minibatch that can look up what the log did next; costs nothing unless it is asked."""

    look_up: Callable[[], Tensor]

    @property
    def next_actions(self) -> Tensor:
        """The actions logged at the next observations, ``[B, A]``; NaN where there is none."""
        return self.look_up()


class RewardStatistics(NamedTuple):
    """Rewards of a dataset in network units."""

    low: float
    high: float
    mean: float
    mean_size: float  # of absolute values
    share_not_negative: float


class TrainingData:
    """A preprocessed dataset to draw minibatches from.

    Data in memory are packed into one float32 matrix on the training device, so that a batch is a
    single ``index_select``. Memory-mapped data stay in their files, where a store keeps each row in
    one place, and are preprocessed batch by batch.

    Args:
        dataset: the transitions, in the units of the log.
        preprocessing: maps to network units; identity when omitted.
        device: where batches live.
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        preprocessing: Preprocessing | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.dataset = dataset
        self.preprocessing = preprocessing or Preprocessing.identity(
            dataset.observation_dim, dataset.action_dim
        )
        self.device = torch.device(device)
        s, a = dataset.observation_dim, dataset.action_dim
        self._widths = [s, a, 1, s, 1]
        self._packed: Tensor | None = None
        self._after: Tensor | None = None  # [N, A] next actions, once asked for
        self._mapped: Matrix | None = None
        if not dataset.memory_mapped:
            self._packed = torch.from_numpy(self._pack(dataset)).to(self.device)
        elif dataset.side_by_side is not None:
            # A plain view: indexing np.memmap itself costs more than the rows.
            self._mapped = np.asarray(dataset.side_by_side)

    def __len__(self) -> int:
        return len(self.dataset)

    def gather(self, index: Tensor) -> Batch:
        """The rows ``index`` (``[B]`` int64, on the CPU for mapped data) as a batch."""
        if self._packed is not None:
            rows = self._packed.index_select(0, index)
        elif self._mapped is not None:
            taken = self._mapped.take(index.cpu().numpy(), axis=0)
            rows = torch.from_numpy(self._map(taken)).to(self.device)
        else:
            picked = self.dataset.rows(index.cpu().numpy())
            rows = torch.from_numpy(self._pack(picked)).to(self.device)
        s, a, r, s2, t = torch.split(rows, self._widths, dim=1)
        batch = LoggedBatch(s, a, r.squeeze(1), s2, t.squeeze(1))
        batch.look_up = lambda: self.next_actions(index)
        return batch

    def next_actions(self, index: Tensor) -> Tensor:
        """The actions logged after the rows ``index``, ``[B] -> [B, A]``; NaN without one."""
        if self._packed is None:
            return self._next_actions(index.cpu().numpy())
        if self._after is None:  # few algorithms ask
            rows = np.array_split(np.arange(len(self)), 1 + len(self) // (1 << 18))
            self._after = torch.cat([self._next_actions(part) for part in rows])
        return self._after.index_select(0, index)

    def _next_actions(self, index: NDArray[np.int64]) -> Tensor:
        unit = self.preprocessing.actions(self.dataset.next_actions(index))
        # A dropped row may lie outside the bounds that the transitions keep.
        return torch.from_numpy(unit.clip(-1, 1)).to(self.device)

    def reward_statistics(self) -> RewardStatistics:
        """Range, mean and share of non-negative rewards in network units, in pieces."""
        low, high, total, size, positive = np.inf, -np.inf, 0.0, 0.0, 0
        for start in range(0, len(self), 1 << 18):
            rewards = self.preprocessing.rewards(self.dataset.rewards[start : start + (1 << 18)])
            low, high = min(low, float(rewards.min())), max(high, float(rewards.max()))
            total += float(rewards.sum(dtype=np.float64))
            size += float(np.abs(rewards).sum(dtype=np.float64))
            positive += int((rewards >= 0).sum())
        rows = len(self)
        return RewardStatistics(low, high, total / rows, size / rows, positive / rows)

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """``size`` rows drawn uniformly with replacement."""
        on = self.device if self._packed is not None else torch.device("cpu")
        index = torch.randint(len(self), (size,), generator=generator, device=on)
        return self.gather(index)

    def _pack(self, rows: TransitionDataset) -> Matrix:
        packed = np.empty((len(rows), sum(self._widths)), np.float32)
        s, a = self._widths[:2]
        packed[:, :s] = rows.observations
        packed[:, s : s + a] = rows.actions
        packed[:, s + a] = rows.rewards
        packed[:, s + a + 1 : -1] = rows.next_observations
        packed[:, -1] = rows.terminals
        return self._map(packed)

    def _map(self, packed: Matrix) -> Matrix:
        """Raw rows side by side, in place to network units."""
        maps = self.preprocessing
        s, a = self._widths[:2]
        if maps.changes_observations:
            packed[:, :s] = maps.observations(packed[:, :s])
            packed[:, s + a + 1 : -1] = maps.observations(packed[:, s + a + 1 : -1])
        if maps.changes_actions:
            packed[:, s : s + a] = maps.actions(packed[:, s : s + a])
        if maps.changes_rewards:
            packed[:, s + a] = maps.rewards(packed[:, s + a])
        return packed
