"""An ensemble of Q functions, with or without random priors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pbrl.nn.ensemble import ChunkLoss, EnsembleMLP
from pbrl.nn.init import CRITIC_HEAD_BOUND


class Critics(nn.Module):
    """K Q functions Q^k(s, a) = Q_theta^k(s, a) + scale * p_k(s, a), Eq. 8 of the paper.

    Without a prior, p_k is absent and costs nothing. The priors are fixed random networks of the
    same shape; a target copy shares them.

    Args:
        members: K.
        observation_dim: S.
        action_dim: A.
        hidden: units of the hidden layers.
        prior_scale: weight of the priors; None for none.
        prior_head_bound: initial range of the priors' last layer; None: like a hidden layer.
        prior_has_slope: whether gradients of Q in the action run through the priors as well.
        generator: source of the initial weights.
        options: further options of ``EnsembleMLP``.
    """

    def __init__(
        self,
        members: int,
        observation_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (256, 256, 256),
        *,
        prior_scale: float | None = None,
        prior_head_bound: float | None = None,
        prior_has_slope: bool = True,
        head_bound: float | None = CRITIC_HEAD_BOUND,
        generator: torch.Generator,
        **options: Any,
    ) -> None:
        super().__init__()
        in_dim = observation_dim + action_dim
        self.members = members
        self.main = EnsembleMLP(
            members, in_dim, hidden, head_bound=head_bound, generator=generator, **options
        )
        self.prior_scale, self.prior_has_slope = prior_scale, prior_has_slope
        self.prior: EnsembleMLP | None = None
        if prior_scale is not None:
            self.prior = EnsembleMLP(
                members, in_dim, hidden, head_bound=prior_head_bound, generator=generator
            ).requires_grad_(False)

    def forward(self, observations: Tensor, actions: Tensor, *, frozen: bool = False) -> Tensor:
        """Q of all members, ``[B, S], [B, A] -> [K, B]``, differentiable.

        ``frozen`` passes gradients to the actions only, not to the weights.
        """
        x = torch.cat([observations, actions], dim=1)
        values: Tensor = self.main(x, frozen=frozen)
        if self.prior is not None:
            assert self.prior_scale is not None
            seen = x if self.prior_has_slope else x.detach()
            values = values + self.prior_scale * self.prior(seen)
        return values

    def values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q of all members without gradients, ``[K, B]``."""
        return self._values(torch.cat([observations, actions], dim=1))

    def regress(
        self, observations: Tensor, actions: Tensor, loss: ChunkLoss, *, group: int = 1
    ) -> Tensor:
        """Add the gradient of a row-wise ``loss(Q [K, n], rows)`` to the weights' ``.grad``."""
        x = torch.cat([observations, actions], dim=1)
        return self.main.regress(x, loss, offset=self._prior_values(x), group=group)

    def extreme(self, observations: Tensor, actions: Tensor, largest: bool = False) -> Tensor:
        """Lowest (highest) member of every row, ``[B]``; gradients reach the actions only."""
        x = torch.cat([observations, actions], dim=1)
        if x.device.type != "cpu" or not self.main.deterministic:
            # Grouping rows by member needs their number on the host: not on a GPU.
            every: Tensor = self(observations, actions, frozen=True)
            return every.amax(0) if largest else every.amin(0)
        values, follow = self.main.pickable(x)
        if self.prior is None:
            return follow(values.argmax(0) if largest else values.argmin(0))
        assert self.prior_scale is not None
        prior_values, follow_prior = self.prior.pickable(x)
        values = values + self.prior_scale * prior_values
        chosen = values.argmax(0) if largest else values.argmin(0)  # [B]
        if not self.prior_has_slope:
            return follow(chosen) + self.prior_scale * prior_values.gather(0, chosen[None])[0]
        return follow(chosen) + self.prior_scale * follow_prior(chosen)

    def _values(self, x: Tensor) -> Tensor:
        values = self.main.values(x)
        prior = self._prior_values(x)
        return values if prior is None else values + prior

    def _prior_values(self, x: Tensor) -> Tensor | None:
        if self.prior is None:
            return None
        assert self.prior_scale is not None
        return self.prior_scale * self.prior.values(x)

    def trained_parameters(self) -> list[nn.Parameter]:
        """The parameters an optimiser should see: all but the priors'."""
        return list(self.main.parameters())

    def move_towards(self, other: Critics, rate: float, *, priors: bool = False) -> None:
        """Target update: this <- (1 - rate) * this + rate * other; of ``priors``, too, if asked."""
        move_towards(self.main, other.main, rate)
        if priors and self.prior is not None and other.prior is not None:
            move_towards(self.prior, other.prior, rate)


@torch.no_grad()
def move_towards(mine: nn.Module, theirs: nn.Module, rate: float) -> None:
    """Target update: mine <- (1 - rate) * mine + rate * theirs; buffers are copied."""
    weights: list[Tensor] = list(mine.parameters())
    torch._foreach_lerp_(weights, list(theirs.parameters()), rate)
    for kept, new in zip(mine.buffers(), theirs.buffers(), strict=True):
        kept.copy_(new)
