"""A generative model of the data's actions, which BEAR and UWAC stay near.

Shapes: B rows, S observation and A action dimensions, n actions a state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pbrl.nn.init import fan_in_bound
from pbrl.nn.policy import MLP


class BehaviourVAE(nn.Module):
    """A conditional VAE of the data's actions, with a latent of size 2A."""

    log_std_range = (-4.0, 15.0)

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: tuple[int, ...],
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.latent_dim = 2 * action_dim
        bound = fan_in_bound(hidden[-1])
        self.encoder = MLP(
            observation_dim + action_dim,
            hidden,
            2 * self.latent_dim,
            head_bound=bound,
            generator=generator,
        )
        self.decoder = MLP(
            observation_dim + self.latent_dim,
            hidden,
            action_dim,
            head_bound=bound,
            generator=generator,
        )

    def encode(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std of the latent, ``[B, S], [B, A] -> [B, 2A], [B, 2A]``."""
        mean, log_std = self.encoder(torch.cat([observations, actions], -1)).chunk(2, -1)
        return mean, log_std.clamp(*self.log_std_range)

    def decode(self, observations: Tensor, latent: Tensor) -> Tensor:
        """Actions before the tanh, ``[..., S], [..., 2A] -> [..., A]``."""
        out: Tensor = self.decoder(torch.cat([observations, latent], -1))
        return out

    def loss(
        self,
        observations: Tensor,
        actions: Tensor,
        kl_weight: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Squared reconstruction error + weight * KL, both averaged over rows *and* dimensions."""
        mean, log_std = self.encode(observations, actions)
        noise = torch.empty_like(mean).normal_(generator=generator)
        rebuilt = torch.tanh(self.decode(observations, mean + log_std.exp() * noise))
        kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp()).mean()
        return (rebuilt - actions).square().mean() + kl_weight * kl

    def draw(self, observations: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """n actions a state, before the tanh, ``[B, S] -> [B, n, A]``.

        As in the authors' code (and BCQ's) the latent is clamped to [-0.5, 0.5]: likely actions.
        """
        s = observations.unsqueeze(1).expand(-1, n, -1)
        latent = s.new_empty(len(s), n, self.latent_dim).normal_(generator=generator)
        return self.decode(s, latent.clamp(-0.5, 0.5))
