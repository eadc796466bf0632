"""Minibatches from a dataset: one gather a batch, from memory or from mapped files."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing


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


class TrainingData:
    """A preprocessed dataset to draw minibatches from.

    Data in memory are packed into one float32 matrix on the training device, so that a batch is a
    single ``index_select``. Memory-mapped data stay in their files and are preprocessed row by row.

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
        if not dataset.memory_mapped:
            self._packed = torch.from_numpy(self._pack(dataset)).to(self.device)

    def __len__(self) -> int:
        return len(self.dataset)

    def gather(self, index: Tensor) -> Batch:
        """The rows ``index`` (``[B]`` int64, on the CPU for mapped data) as a batch."""
        if self._packed is not None:
            rows = self._packed.index_select(0, index)
        else:
            picked = self.dataset.rows(index.cpu().numpy())
            rows = torch.from_numpy(self._pack(picked)).to(self.device)
        s, a, r, s2, t = torch.split(rows, self._widths, dim=1)
        return Batch(s, a, r.squeeze(1), s2, t.squeeze(1))

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """``size`` rows drawn uniformly with replacement."""
        on = self.device if self._packed is not None else torch.device("cpu")
        index = torch.randint(len(self), (size,), generator=generator, device=on)
        return self.gather(index)

    def _pack(self, rows: TransitionDataset) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        maps = self.preprocessing
        packed = np.empty((len(rows), sum(self._widths)), np.float32)
        s, a = self._widths[:2]
        packed[:, :s] = maps.observations(rows.observations)
        packed[:, s : s + a] = maps.actions(rows.actions)
        packed[:, s + a] = maps.rewards(rows.rewards)
        packed[:, s + a + 1 : -1] = maps.observations(rows.next_observations)
        packed[:, -1] = rows.terminals
        return packed
