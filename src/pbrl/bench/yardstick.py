"""PBRL as one would write it first: stacked weights, baddbmm, plain autograd, no tricks.

The yardstick that ``pbrl bench`` measures the engine against.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from pbrl.algorithms.pbrl import PBRLConfig
from pbrl.data.training_data import Batch


class StackedCritics(nn.Module):
    """K MLPs with weights ``[K, in, out]``, ``[N, in] -> [K, N]``."""

    def __init__(self, members: int, widths: list[int]) -> None:
        super().__init__()
        shapes = list(pairwise(widths))
        self.weights = nn.ParameterList(
            torch.empty(members, a, b).uniform_(-1 / math.sqrt(a), 1 / math.sqrt(a))
            for a, b in shapes
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, b) for _, b in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """All members' values."""
        h = x.expand(len(self.weights[0]), *x.shape)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, h, weight)
            if i < len(self.weights) - 1:
                h = torch.relu(h)
        return h.squeeze(2)


class PlainPBRL:
    """One PBRL step by plain autograd; same work as the engine's, same settings."""

    def __init__(self, config: PBRLConfig, observation_dim: int, action_dim: int) -> None:
        self.config = config
        widths = [observation_dim + action_dim, *config.hidden, 1]
        self.critics = StackedCritics(config.ensemble_size, widths)
        self.targets = copy.deepcopy(self.critics)
        sizes = [observation_dim, *config.policy_hidden]
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.policy = nn.Sequential(*layers, nn.Linear(sizes[-1], 2 * action_dim))
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.action_dim = action_dim
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), config.critic_lr)
        self.actor_adam = torch.optim.Adam(self.policy.parameters(), config.actor_lr)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], config.alpha_lr)

    def sample(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and their log-probabilities."""
        mean, log_std = self.policy(s).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        u = normal.rsample()
        a = torch.tanh(u)
        return a, (normal.log_prob(u) - torch.log(1 - a.square() + 1e-6)).sum(1)

    def update(self, batch: Batch) -> None:
        """One gradient step."""
        c = self.config
        s, a, r, s2, d = batch
        a_pi, log_pi = self.sample(s)
        alpha_loss = -(self.log_alpha * (log_pi - self.action_dim).detach()).mean()
        self.alpha_adam.zero_grad()
        alpha_loss.backward()
        self.alpha_adam.step()
        with torch.no_grad():
            q2 = self.targets(torch.cat([s2, self.sample(s2)[0]], 1))
            y = r + c.gamma * (1 - d) * (q2 - c.beta_in * q2.std(0, correction=0))
        states = [s.repeat(c.n_ood, 1)] + ([s2.repeat(c.n_ood, 1)] if c.ood_next_states else [])
        s_ood = torch.cat(states)
        with torch.no_grad():
            a_ood, _ = self.sample(s_ood)
        rows = torch.cat([torch.cat([s, a], 1), torch.cat([s_ood, a_ood], 1)])
        q = self.critics(rows)
        q_data, q_ood = q[:, : len(s)], q[:, len(s) :]
        with torch.no_grad():
            target = (q_ood - q_ood.std(0, correction=0)).clamp_min(0)
        loss = (q_data - y).square().mean(1).sum() + (q_ood - target).square().mean(1).sum()
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()
        q_pi = self.critics(torch.cat([s, a_pi], 1)).min(0).values
        actor_loss = (self.log_alpha.exp().detach() * log_pi - q_pi).mean()
        self.actor_adam.zero_grad()
        actor_loss.backward()
        self.actor_adam.step()
        with torch.no_grad():
            for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                old.mul_(1 - c.tau).add_(c.tau * new)

    @property
    def parameters(self) -> int:
        """Trained numbers."""
        modules = (self.critics, self.policy)
        return sum(p.numel() for m in modules for p in cast(nn.Module, m).parameters())
