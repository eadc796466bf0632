"""Policies: SAC's tanh-Gaussian as rlkit and the authors have it, TD3's, and IQL's."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pbrl.nn.init import POLICY_HEAD_BOUND, Init, hidden_bias_, hidden_bound, uniform_
from pbrl.nn.relu_network import relu_network

LOG_STD_RANGE = (-5.0, 2.0)
EDGE = 1 - 1e-6


class MLP(nn.Module):
    """A plain ReLU network, ``[..., in] -> [..., out]``.

    Args:
        in_dim: input features.
        hidden: units of the hidden layers.
        out_dim: outputs.
        head_bound: the last layer starts in Unif(-bound, bound); None: like torch's default.
        init: of the hidden layers, see ``pbrl.nn.init``.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        in_dim: int,
        hidden: tuple[int, ...],
        out_dim: int,
        *,
        head_bound: float | None = POLICY_HEAD_BOUND,
        init: Init = "rlkit",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [in_dim, *hidden]
        layers = [nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(widths)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(widths[-1], out_dim)
        for layer in layers:
            fan_out, fan_in = layer.weight.shape
            uniform_(layer.weight, hidden_bound(init, fan_in, fan_out), generator)
            hidden_bias_(layer.bias, init, fan_in, generator)
        if head_bound is None:
            head_bound = hidden_bound("torch", widths[-1], out_dim)
        uniform_(self.head.weight, head_bound, generator)
        uniform_(self.head.bias, head_bound, generator)

    def forward(
        self, x: Tensor, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """``[..., in] -> [..., out]``; hidden units are dropped with probability ``dropout``."""
        if not dropout:
            layers = (*self.layers, self.head)
            return relu_network(x, [p for layer in layers for p in (layer.weight, layer.bias)])
        for layer in self.layers:
            x = torch.relu(layer(x))
            kept = torch.empty_like(x).bernoulli_(1 - dropout, generator=generator)
            x = x * kept / (1 - dropout)
        out: Tensor = self.head(x)
        return out


class TanhGaussianPolicy(nn.Module):
    """pi(a|s): tanh of a diagonal Gaussian whose mean and log-std are two heads of one MLP.

    Args:
        observation_dim: S.
        action_dim: A.
        hidden: units of the hidden layers.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (256, 256, 256),
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.action_dim = action_dim
        # Both heads are one matrix; rlkit draws them alike.
        self.network = MLP(observation_dim, hidden, 2 * action_dim, generator=generator)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std before the tanh, ``[B, S] -> [B, A], [B, A]``."""
        mean, log_std = self.network(observations).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    @torch.no_grad()
    def hold_std(self, std: float) -> None:
        """Set the deviation to ``std`` everywhere; without a gradient it stays there."""
        self.network.head.weight[self.action_dim :] = 0
        self.network.head.bias[self.action_dim :] = math.log(std)

    def act(
        self,
        observations: Tensor,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The mode, or a draw, ``[B, S] -> [B, A]``."""
        mean, log_std = self(observations)
        if not deterministic:
            mean = self.sample(mean, log_std, generator)
        return torch.tanh(mean)

    @staticmethod
    def sample(mean: Tensor, log_std: Tensor, generator: torch.Generator | None) -> Tensor:
        """A reparametrised draw before the tanh, ``[..., A]``."""
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + log_std.exp() * noise

    @staticmethod
    def log_prob(mean: Tensor, log_std: Tensor, before_tanh: Tensor) -> Tensor:
        """log pi of tanh(``before_tanh``), ``[..., A] -> [...]``.

        The tanh's correction log(1 - a^2) is written as 2 (log 2 - u - softplus(-2u)), which is
        equal and does not underflow; rlkit adds 1e-6 inside the logarithm instead.
        """
        z = (before_tanh - mean) * (-log_std).exp()
        gaussian = -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)
        correction = 2 * (math.log(2) - before_tanh - functional.softplus(-2 * before_tanh))
        return (gaussian - correction).sum(-1)

    @staticmethod
    def action_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        """log pi of logged ``actions``, ``[..., A] -> [...]``.

        Actions at the edge of the box have no finite pre-image under tanh; they are drawn in.
        """
        before_tanh = actions.clamp(-EDGE, EDGE).atanh()
        return TanhGaussianPolicy.log_prob(mean, log_std, before_tanh)


class DeterministicPolicy(nn.Module):
    """a = tanh(MLP(s)), the policy of TD3 and of plain behaviour cloning."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (256, 256),
        *,
        head_bound: float | None = POLICY_HEAD_BOUND,
        init: Init = "rlkit",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.network = MLP(
            observation_dim,
            hidden,
            action_dim,
            head_bound=head_bound,
            init=init,
            generator=generator,
        )

    def forward(
        self,
        observations: Tensor,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``[B, S] -> [B, A]``; for ``dropout`` see ``MLP``."""
        return torch.tanh(self.network(observations, dropout, generator))

    def act(
        self,
        observations: Tensor,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """There is one action only, ``[B, S] -> [B, A]``."""
        action: Tensor = self(observations)
        return action


class GaussianPolicy(DeterministicPolicy):
    """Normal(tanh(MLP(s)), std) with one deviation an action dimension, the same in every state.

    The policy of IQL: its mode is a deterministic policy, and the density needs no tanh correction.
    """

    def __init__(self, observation_dim: int, action_dim: int, *args: Any, **options: Any) -> None:
        super().__init__(observation_dim, action_dim, *args, **options)
        self.log_std = nn.Parameter(torch.zeros(action_dim))

    def log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        """log pi of ``actions`` around ``mean = self(s)``, ``[..., A] -> [...]``."""
        log_std = self.log_std.clamp(*LOG_STD_RANGE)
        z = (actions - mean) * (-log_std).exp()
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def act(
        self,
        observations: Tensor,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The mode, or a draw clipped to the box, ``[B, S] -> [B, A]``."""
        action: Tensor = self(observations)
        if not deterministic:
            noise = torch.empty_like(action).normal_(generator=generator)
            action = (action + self.log_std.clamp(*LOG_STD_RANGE).exp() * noise).clamp(-1, 1)
        return action
