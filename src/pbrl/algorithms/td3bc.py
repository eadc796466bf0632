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
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, require
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics
from pbrl.nn.policy import DeterministicPolicy


@dataclass(frozen=True)
class TD3BCConfig(AlgorithmConfig):
    """Settings of TD3+BC; every default is the authors'.

    Attributes:
        hidden: hidden units of both critics.
        policy_hidden: hidden units of the policy.
        gamma: discount.
        tau: rate of the target networks.
        critic_lr: Adam's rate for the critics.
        actor_lr: Adam's rate for the policy.
        alpha: weight of Q against cloning; Q is first divided by its mean size in the batch.
        policy_noise: deviation of the smoothing noise on target actions.
        noise_clip: that noise is clipped to this size.
        policy_freq: the policy and the targets move once in this many steps.
    """

    hidden: tuple[int, ...] = (256, 256)
    policy_hidden: tuple[int, ...] = (256, 256)
    gamma: float = 0.99
    tau: float = 0.005
    critic_lr: float = 3e-4
    actor_lr: float = 3e-4
    alpha: float = 2.5
    policy_noise: float = 0.2
    noise_clip: float = 0.5
    policy_freq: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "policy_noise", "noise_clip"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.policy_freq >= 1, f"policy_freq must be at least 1, got {self.policy_freq}")


class TD3BC(Algorithm):
    """TD3 whose policy maximises lambda * Q(s, pi(s)) - |pi(s) - a|^2."""

    name = "td3bc"
    Config = TD3BCConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {},  # the authors tuned nothing for Adroit, and their method fails there
        "fast": {},
        "demo": {
            "hidden": (64, 64),
            "policy_hidden": (64, 64),
            "critic_lr": 1e-3,
            "actor_lr": 1e-3,
        },
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
        self.critic_optimizer = adam(self.critics.trained_parameters(), self.config.critic_lr)
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
        self.critic_optimizer.zero_grad()
        loss = self.critics.regress(s, a, lambda q, rows: (q - y[rows]).square().sum() / len(s))
        self.critic_optimizer.step()
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
            with torch.no_grad():
                targets: list[Tensor] = list(self.target_policy.parameters())
                torch._foreach_lerp_(targets, list(self.policy.parameters()), c.tau)
            metrics |= {
                "actor_loss": actor_loss.detach(),
                "cloning_loss": cloning_loss.detach(),
                "lambda": weight,
                "q_policy_1": q.detach().mean(),
            }
        return metrics

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q of both critics, ``[2, B]``."""
        return self.critics.values(observations, actions)

    def networks(self) -> dict[str, nn.Module]:
        """Policy, critics and their targets."""
        return {
            "policy": self.policy,
            "critics": self.critics,
            "target_policy": self.target_policy,
            "targets": self.targets,
        }

    def optimizers(self) -> dict[str, Optimizer]:
        """One optimiser each for critics and policy."""
        return {"critics": self.critic_optimizer, "actor": self.actor_optimizer}
