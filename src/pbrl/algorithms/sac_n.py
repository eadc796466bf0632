"""SAC-N: soft actor-critic whose pessimism is the minimum of many critics.

An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble", NeurIPS
2021, https://arxiv.org/abs/2110.01548. The update reads like the authors' ``train_from_torch``.
Where we depart from their code, a comment says so.

Shapes: B rows of a minibatch, S observation and A action dimensions, N critics.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, descend
from pbrl.algorithms.entropy import EntropyWeight
from pbrl.algorithms.settings import Inside, Members, Positive, Sizes, Tau
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics
from pbrl.nn.policy import TanhGaussianPolicy


@dataclass(frozen=True)
class SACNConfig(AlgorithmConfig):
    """Settings of SAC-N; the defaults are the authors'."""

    ensemble_size: Members = 10
    """N, the number of critics (the paper: 10 to 500, by dataset)."""
    hidden: Sizes = (256, 256, 256)
    """Hidden units of each critic."""
    policy_hidden: Sizes = (256, 256, 256)
    """Hidden units of the policy."""
    gamma: Inside = 0.99
    """Discount."""
    tau: Tau = 0.005
    """Rate of the target critics."""
    critic_lr: Positive = 3e-4
    """Adam's rate for the critics."""
    actor_lr: Positive = 3e-4
    """Adam's rate for the policy."""
    alpha_lr: Positive = 3e-4
    """Adam's rate for the entropy weight."""
    entropy_backup: bool = True
    """The target has the entropy term -alpha * log pi(a'|s')."""
    max_q_backup: bool = False
    """The target takes the best of 10 policy actions for each critic, without the entropy term (the
    authors use it for pen-cloned).
    """
    initial_log_alpha: float = 0.0
    """The entropy weight starts at its exponential."""
    target_entropy: float | None = None
    """alpha is tuned to this entropy; None: -A."""


BACKUP_ACTIONS = 10  # of max_q_backup

SMALL_NETWORKS: dict[str, Any] = {
    "hidden": (64, 64),
    "policy_hidden": (64, 64),
    "critic_lr": 1e-3,
    "actor_lr": 1e-3,
    "alpha_lr": 1e-3,
}
ADROIT_RATES = {"actor_lr": 3e-5, "alpha_lr": 3e-5}


class SACN(Algorithm):
    """N critics with one shared target, the minimum over N target critics."""

    name = "sac-n"
    Config = SACNConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {"ensemble_size": 100, **ADROIT_RATES},
        "fast": {"ensemble_size": 10, "hidden": (256, 256), "policy_hidden": (256, 256)},
        "demo": {"ensemble_size": 10, **SMALL_NETWORKS},
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            "halfcheetah": {"ensemble_size": 10},
            "hopper": {"ensemble_size": 500},
            "hopper-medium-replay": {"ensemble_size": 200},
            "hopper-medium-expert": {"ensemble_size": 200},
            "hopper-full-replay": {"ensemble_size": 200},
            "walker2d": {"ensemble_size": 20},
            "walker2d-expert": {"ensemble_size": 100},
            **{
                task: {"ensemble_size": 100, **ADROIT_RATES}
                for task in ("pen", "hammer", "door", "relocate")
            },
        }
    }
    config: SACNConfig

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        self.policy = TanhGaussianPolicy(s, a, c.policy_hidden, generator=self.init_generator)
        # The authors' stacked layers are (in, out) matrices, so here rlkit's initialiser does see
        # the number of inputs.
        self.critics = Critics(
            c.ensemble_size, s, a, c.hidden, init="fan-in", generator=self.init_generator
        )
        # Departure: the authors' target critics start with weights of their own.
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.alpha = EntropyWeight(a, c.initial_log_alpha, c.target_entropy)

    def _build_optimizers(self) -> None:
        c = self.config
        self.critics_optimizer = adam(self.critics.trained_parameters(), c.critic_lr)
        self.actor_optimizer = adam(self.policy.parameters(), c.actor_lr)
        self.alpha_optimizer = adam(self.alpha.parameters(), c.alpha_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]

        # As in the authors' code all three losses are taken at the old weights, alpha's too.
        mean, log_std = self.policy(s)
        u = self.policy.sample(mean, log_std, self.generator)
        a_pi, log_pi = torch.tanh(u), self.policy.log_prob(mean, log_std, u)  # [B, A] [B]
        y = self._target(r, s2, terminal)  # [B]
        alpha = self.alpha()

        # Entropy weight, tuned to the target entropy.
        alpha_loss = self.alpha.tune(log_pi, self.alpha_optimizer)

        # The policy follows the lowest critic.
        actor_loss = (alpha * log_pi - self.critics.extreme(s, a_pi)).mean()
        descend(self.actor_optimizer, actor_loss)

        self.critics_optimizer.zero_grad()
        metrics = self._add_critic_gradients(s, a, y)
        self.critics_optimizer.step()
        self.targets.move_towards(self.critics, c.tau)
        return metrics | {
            "actor_loss": actor_loss.detach(),
            "alpha_loss": alpha_loss,
            "alpha": alpha,
            "entropy": -log_pi.detach().mean(),
            "q_target": y.mean(),
        }

    @torch.no_grad()
    def _target(self, r: Tensor, s2: Tensor, terminal: Tensor) -> Tensor:
        """The target all critics share: the minimum over the target critics, ``[B]``."""
        c = self.config
        mean, log_std = self.policy(s2)
        if c.max_q_backup:
            # Departure: the authors' code takes the online critics here, without any lag.
            n = BACKUP_ACTIONS
            mean, log_std = mean.repeat(n, 1), log_std.repeat(n, 1)
            a2 = torch.tanh(self.policy.sample(mean, log_std, self.generator))
            q2 = self.targets.values(s2.repeat(n, 1), a2)  # [N, 10 * B]
            value = q2.unflatten(1, (n, len(s2))).amax(1).amin(0)
        else:
            u = self.policy.sample(mean, log_std, self.generator)
            value = self.targets.values(s2, torch.tanh(u)).amin(0)
            if c.entropy_backup:
                value -= self.alpha() * self.policy.log_prob(mean, log_std, u)
        target: Tensor = r + c.gamma * (1 - terminal) * value
        return target

    def _add_critic_gradients(self, s: Tensor, a: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Mean squared errors over the rows, summed over the critics."""
        loss = self.critics.regress(s, a, lambda q, rows: (q - y[rows]).square().sum() / len(s))
        return {"td_loss": loss / self.config.ensemble_size}
