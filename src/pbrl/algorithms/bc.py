"""BC: behaviour cloning, the yardstick every offline algorithm should beat.

Two forms: a deterministic policy fitted by squared error (the one CORL and TD3+BC's authors run),
and a tanh-Gaussian policy fitted by maximum likelihood (D4RL's).

Shapes: B rows of a minibatch, S observation and A action dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, descend
from pbrl.algorithms.settings import Positive, Sizes
from pbrl.data.training_data import Batch
from pbrl.nn.policy import DeterministicPolicy, TanhGaussianPolicy


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    """Settings of behaviour cloning."""

    hidden: Sizes = (256, 256)
    """Hidden units of the policy."""
    policy: Literal["deterministic", "gaussian"] = "deterministic"
    """Deterministic, fitted by squared error, or gaussian (tanh-Gaussian), fitted by maximum
    likelihood.
    """
    actor_lr: Positive = 3e-4
    """Adam's rate."""


class BC(Algorithm):
    """Behaviour cloning: supervised learning of the logged actions."""

    name = "bc"
    Config = BCConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {},
        "fast": {},
        "demo": {"hidden": (64, 64), "actor_lr": 1e-3},
    }
    normalize_observations = True
    has_critics = False
    config: BCConfig

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        self.policy: DeterministicPolicy | TanhGaussianPolicy
        if c.policy == "deterministic":
            self.policy = DeterministicPolicy(
                s, a, c.hidden, head_bound=None, init="torch", generator=self.init_generator
            )
        else:
            self.policy = TanhGaussianPolicy(s, a, c.hidden, generator=self.init_generator)

    def _build_optimizers(self) -> None:
        self.actor_optimizer = adam(self.policy.parameters(), self.config.actor_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        s, a = batch.observations, batch.actions  # [B, S] [B, A]
        if isinstance(self.policy, DeterministicPolicy):
            loss = functional.mse_loss(self.policy(s), a)
        else:
            mean, log_std = self.policy(s)
            loss = -self.policy.action_log_prob(mean, log_std, a).mean()
        descend(self.actor_optimizer, loss)
        return {"actor_loss": loss.detach()}

    @torch.no_grad()
    def diagnostics(self, batch: Batch) -> dict[str, Tensor]:
        """Squared error of the deterministic action, comparable between both forms."""
        return {"action_error": functional.mse_loss(self.act(batch.observations), batch.actions)}
