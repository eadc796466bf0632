"""TD3+BC: TD3 with a behaviour-cloning term in the policy's loss.

Fujimoto & Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021,
https://arxiv.org/abs/2106.06860. The update reads like the authors' ``train``.

Shapes: B rows of a minibatch, S observation and A action dimensions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam
from pbrl.algorithms.settings import Count, Inside, NotNegative, Positive, Sizes, Tau
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics, move_towards
from pbrl.nn.policy import DeterministicPolicy

SMALL_NETWORKS: dict[str, Any] = {
    "hidden": (64, 64),
    "policy_hidden": (64, 64),
    "critic_lr": 1e-3,
    "actor_lr": 1e-3,
}


@dataclass(frozen=True)
class TD3BCConfig(AlgorithmConfig):
    """Settings of TD3+BC; every default is the authors'."""

    hidden: Sizes = (256, 256)
    """Hidden units of both critics."""
    policy_hidden: Sizes = (256, 256)
    """Hidden units of the policy."""
    gamma: Inside = 0.99
    """Discount."""
    tau: Tau = 0.005
    """Rate of the target networks."""
    critic_lr: Positive = 3e-4
    """Adam's rate for the critics."""
    actor_lr: Positive = 3e-4
    """Adam's rate for the policy."""
    alpha: NotNegative = 2.5
    """Weight of Q against cloning; Q is first divided by its mean size in the batch."""
    policy_noise: NotNegative = 0.2
    """Deviation of the smoothing noise on target actions."""
    noise_clip: NotNegative = 0.5
    """That noise is clipped to this size."""
    policy_freq: Count = 2
    """The policy and the targets move once in this many steps."""


class TD3BC(Algorithm):
    """TD3 whose policy maximises lambda * Q(s, pi(s)) - |pi(s) - a|^2."""

    name = "td3bc"
    Config = TD3BCConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {},  # the authors tuned nothing for Adroit, and their method fails there
        "fast": {},
        "demo": SMALL_NETWORKS,
    }
    normalize_observations = True
    config: TD3BCConfig

    def _build(self) -> None:
        c, s, a, generator = self.config, self.observation_dim, self.action_dim, self.init_generator
        self.policy = DeterministicPolicy(
            s, a, c.policy_hidden, head_bound=None, init="torch", generator=generator
        )
        self.critics = Critics(
            2, s, a, c.hidden, head_bound=None, init="torch", generator=generator
        )
        self.target_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)

    def _build_optimizers(self) -> None:
        self.critics_optimizer = adam(self.critics.trained_parameters(), self.config.critic_lr)
        self.actor_optimizer = adam(self.policy.parameters(), self.config.actor_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]

        # Target: the lower critic at the target policy's action plus clipped noise.
        with torch.no_grad():
            noise = torch.empty_like(a).normal_(generator=self.generator) * c.policy_noise
            noise = noise.clamp(-c.noise_clip, c.noise_clip)
            a2 = (self.target_policy(s2) + noise).clamp(-1, 1)
            y = r + c.gamma * (1 - terminal) * self.targets.values(s2, a2).amin(0)  # [B]

        # Both critics regress on the shared target; their mean squared errors are summed.
        self.critics_optimizer.zero_grad()
        loss = self.critics.regress(s, a, lambda q, rows: (q - y[rows]).square().sum() / len(s))
        self.critics_optimizer.step()
        metrics = {"td_loss": loss / 2, "q_target": y.mean()}

        if (self.step + 1) % c.policy_freq == 0:
            # lambda makes alpha independent of the rewards' scale; it carries no gradient.
            pi = self.policy(s)
            q = self.critics.main.member(torch.cat([s, pi], dim=1), 0)  # Q_1(s, pi(s)) [B]
            weight = c.alpha / q.detach().abs().mean()
            cloning_loss = functional.mse_loss(pi, a)
            actor_loss = -weight * q.mean() + cloning_loss
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()

            self.targets.move_towards(self.critics, c.tau)
            move_towards(self.target_policy, self.policy, c.tau)
            metrics |= {
                "actor_loss": actor_loss.detach(),
                "cloning_loss": cloning_loss.detach(),
                "lambda": weight,
                "q_policy_1": q.detach().mean(),
            }
        return metrics
