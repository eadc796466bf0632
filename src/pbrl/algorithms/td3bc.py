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

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, descend
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
class TD3Config(AlgorithmConfig):
    """Settings of TD3; every default is TD3+BC's authors'."""

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
    policy_noise: NotNegative = 0.2
    """Deviation of the smoothing noise on target actions."""
    noise_clip: NotNegative = 0.5
    """That noise is clipped to this size."""
    policy_freq: Count = 2
    """The policy and the targets move once in this many steps."""


@dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    """Settings of TD3+BC; every default is the authors'."""

    alpha: NotNegative = 2.5
    """Weight of Q against cloning; Q is first divided by its mean size in the batch."""


class TD3BC(Algorithm):
    """TD3 whose policy maximises lambda * Q(s, pi(s)) - |pi(s) - a|^2."""

    name = "td3bc"
    Config: ClassVar[type[TD3Config]] = TD3BCConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {},  # the authors tuned nothing for Adroit, and their method fails there
        "fast": {},
        "demo": SMALL_NETWORKS,
    }
    normalize_observations = True
    policy_options: ClassVar[dict[str, Any]] = {"head_bound": None, "init": "torch"}
    critic_options: ClassVar[dict[str, Any]] = policy_options
    config: TD3BCConfig

    def _build(self) -> None:
        c, s, a, generator = self.config, self.observation_dim, self.action_dim, self.init_generator
        self.policy = DeterministicPolicy(
            s, a, c.policy_hidden, generator=generator, **self.policy_options
        )
        self.critics = Critics(2, s, a, c.hidden, generator=generator, **self.critic_options)
        self.target_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)

    def _build_optimizers(self) -> None:
        self.critics_optimizer = adam(self.critics.trained_parameters(), self.config.critic_lr)
        self.actor_optimizer = adam(self.policy.parameters(), self.config.actor_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        metrics = self._update_critics(batch)
        if (self.step + 1) % c.policy_freq == 0:
            loss, policy_metrics = self._policy_loss(batch)
            descend(self.actor_optimizer, loss)
            self.targets.move_towards(self.critics, c.tau)
            move_towards(self.target_policy, self.policy, c.tau)
            metrics |= {"actor_loss": loss.detach()} | policy_metrics
        return metrics

    def _update_critics(self, batch: Batch) -> dict[str, Tensor]:
        """Both critics regress on the shared target; their mean squared errors are summed."""
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]
        with torch.no_grad():
            a2 = self._next_actions(s2)
            y = r + self.config.gamma * (1 - terminal) * self._next_values(batch, a2)  # [B]
        self.critics_optimizer.zero_grad()
        loss = self.critics.regress(s, a, lambda q, rows: (q - y[rows]).square().sum() / len(s))
        self.critics_optimizer.step()
        return {"td_loss": loss / 2, "q_target": y.mean()}

    def _next_actions(self, s2: Tensor) -> Tensor:
        """The target policy's actions plus clipped noise, ``[B, S] -> [B, A]``."""
        c = self.config
        action: Tensor = self.target_policy(s2)
        noise = torch.empty_like(action).normal_(generator=self.generator) * c.policy_noise
        return (action + noise.clamp(-c.noise_clip, c.noise_clip)).clamp(-1, 1)

    def _next_values(self, batch: Batch, a2: Tensor) -> Tensor:
        """The lower target critic at s' and the actions ``a2 [B, A] -> [B]``."""
        return self.targets.values(batch.next_observations, a2).amin(0)

    def _policy_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """-lambda * Q_1(s, pi(s)) + |pi(s) - a|^2, and what is worth logging."""
        pi = self.policy(batch.observations)
        q = self.critics.main.member(torch.cat([batch.observations, pi], dim=1), 0)  # [B]
        # lambda makes alpha independent of the rewards' scale; it carries no gradient.
        weight = self.config.alpha / q.detach().abs().mean()
        cloning_loss = functional.mse_loss(pi, batch.actions)
        return -weight * q.mean() + cloning_loss, {
            "cloning_loss": cloning_loss.detach(),
            "lambda": weight,
            "q_policy_1": q.detach().mean(),
        }
