"""The one replay buffer: the newest transitions in a ring, in memory or in a mapped file."""

from __future__ import annotations

import torch
from torch import Tensor

from pbrl.data.training_data import Batch, LoggedBatch


class ReplayBuffer:
    """The newest transitions, side by side in one table; the oldest go first.

    Args:
        capacity: rows kept.
        observation_dim: S.
        action_dim: A.
        device: where they live.
        rows: a table to keep them in, ``[capacity, at least 2S + A + 2]`` float32; columns beyond
            these are the owner's. Made when omitted.

    Attributes:
        rows: the table.
        widths: columns of observations, actions, rewards, next observations and terminals.
        total: rows ever written.
    """

    def __init__(
        self,
        capacity: int,
        observation_dim: int,
        action_dim: int,
        device: str | torch.device = "cpu",
        rows: Tensor | None = None,
    ) -> None:
        self.widths = [observation_dim, action_dim, 1, observation_dim, 1]
        if rows is None:
            # Not zeros: pages are only touched when rows are written.
            rows = torch.empty(capacity, sum(self.widths), device=device)
        self.rows = rows
        self.total = 0

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return len(self.rows)

    @property
    def size(self) -> int:
        """Rows held."""
        return min(self.total, self.capacity)

    @property
    def newest(self) -> int:
        """Where the newest row lies."""
        return (self.total - 1) % self.capacity

    def add(self, batch: Batch) -> None:
        """Write rows over the oldest."""
        columns = [x.unsqueeze(1) if x.ndim == 1 else x for x in batch]
        new = torch.cat(columns, 1)[-self.capacity :].to(self.rows)
        place = (self.total + torch.arange(len(new), device=self.rows.device)) % self.capacity
        self.rows[place, : new.shape[1]] = new
        self.total += len(new)

    def gather(self, index: Tensor) -> Batch:
        """The rows ``index``, ``[B]``, as a batch."""
        s, a, r, s2, terminals, *_ = self._columns(index)
        batch = LoggedBatch(s, a, r.squeeze(1), s2, terminals.squeeze(1))
        batch.look_up = lambda: self.next_actions(index)
        return batch

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """Rows drawn uniformly with replacement."""
        device = self.rows.device
        return self.gather(torch.randint(self.size, (size,), generator=generator, device=device))

    def next_actions(self, index: Tensor) -> Tensor:
        """The actions taken after the rows ``index``, ``[B, A]``; NaN where nothing followed."""
        reached = self._columns(index)[3]
        observations, actions, *_ = self._columns((index + 1) % self.capacity)
        goes_on = (observations == reached).all(1) & (index != self.newest)
        return torch.where(goes_on[:, None], actions, torch.nan)

    def _columns(self, index: Tensor) -> tuple[Tensor, ...]:
        rows = self.rows.index_select(0, index)
        return torch.split(rows, [*self.widths, rows.shape[1] - sum(self.widths)], dim=1)

    def held(self) -> Tensor:
        """A copy of the rows held, for a checkpoint."""
        return self.rows[: self.size].clone()

    def restore(self, rows: Tensor, total: int) -> None:
        """Go on from what ``held`` gave after ``total`` rows were written."""
        self.rows[: len(rows)] = rows.to(self.rows.device)
        self.total = total
