"""The entropy weight alpha of SAC and of what is built on it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pbrl.algorithms.base import descend


class EntropyWeight(nn.Module):
    """alpha = exp(log_alpha), tuned so that the policy keeps a target entropy.

    Args:
        action_dim: A.
        initial_log_alpha: where log_alpha starts.
        target_entropy: what the policy's entropy is held at; None: -A.
    """

    def __init__(
        self, action_dim: int, initial_log_alpha: float, target_entropy: float | None
    ) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(initial_log_alpha))
        self.target_entropy = -action_dim if target_entropy is None else target_entropy

    def forward(self) -> Tensor:
        """alpha, without gradient."""
        return self.log_alpha.detach().exp()

    def tune(self, log_pi: Tensor, optimizer: Optimizer) -> Tensor:
        """One step for the log densities ``[B]`` of the policy's actions; returns the loss."""
        loss = -(self.log_alpha * (log_pi + self.target_entropy).detach()).mean()
        return descend(optimizer, loss)
