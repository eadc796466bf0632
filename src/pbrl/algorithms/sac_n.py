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
from torch import Tensor, nn
from torch.optim import Optimizer

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, require
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics
from pbrl.nn.policy import TanhGaussianPolicy


@dataclass(frozen=True)
class SACNConfig(AlgorithmConfig):
    """Settings of SAC-N; the defaults are the authors'.

    Attributes:
        ensemble_size: N, the number of critics (the paper: 10 to 500, by dataset).
        hidden: hidden units of each critic.
        policy_hidden: hidden units of the policy.
        gamma: discount.
        tau: rate of the target critics.
        critic_lr: Adam's rate for the critics.
        actor_lr: Adam's rate for the policy.
        alpha_lr: Adam's rate for the entropy weight.
        entropy_backup: the target has the entropy term -alpha * log pi(a'|s').
        max_q_backup: the target takes the best of 10 policy actions for each critic, without the
            entropy term (the authors use it for pen-cloned).
        initial_log_alpha: the entropy weight starts at its exponential.
        target_entropy: alpha is tuned to this entropy; None: -A.
    """

    ensemble_size: int = 10
    hidden: tuple[int, ...] = (256, 256, 256)
    policy_hidden: tuple[int, ...] = (256, 256, 256)
    gamma: float = 0.99
    tau: float = 0.005
    critic_lr: float = 3e-4
    actor_lr: float = 3e-4
    alpha_lr: float = 3e-4
    entropy_backup: bool = True
    max_q_backup: bool = False
    initial_log_alpha: float = 0.0
    target_entropy: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.ensemble_size >= 2,
            f"ensemble_size must be at least 2, got {self.ensemble_size}",
        )


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
    presets_by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
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
        self.log_alpha = nn.Parameter(torch.tensor(c.initial_log_alpha, device=self.device))
        self.target_entropy = -a if c.target_entropy is None else c.target_entropy

    def _build_optimizers(self) -> None:
        c = self.config
        self.critic_optimizer = adam(self.critics.trained_parameters(), c.critic_lr)
        self.actor_optimizer = adam(self.policy.parameters(), c.actor_lr)
        self.alpha_optimizer = adam([self.log_alpha], c.alpha_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]

        # As in the authors' code all three losses are taken at the old weights, alpha's too.
        mean, log_std = self.policy(s)
        u = self.policy.sample(mean, log_std, self.generator)
        a_pi, log_pi = torch.tanh(u), self.policy.log_prob(mean, log_std, u)  # [B, A] [B]
        y = self._target(r, s2, terminal)  # [B]
        alpha = self.log_alpha.detach().exp()

        # Entropy weight, tuned to the target entropy.
        alpha_loss = -(self.log_alpha * (log_pi + self.target_entropy).detach()).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()

        # The policy follows the lowest critic.
        actor_loss = (alpha * log_pi - self.critics.extreme(s, a_pi)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        self.critic_optimizer.zero_grad()
        metrics = self._add_critic_gradients(s, a, y)
        self.critic_optimizer.step()
        self.targets.move_towards(self.critics, c.tau)
        return metrics | {
            "actor_loss": actor_loss.detach(),
            "alpha_loss": alpha_loss.detach(),
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
                value -= self.log_alpha.exp() * self.policy.log_prob(mean, log_std, u)
        target: Tensor = r + c.gamma * (1 - terminal) * value
        return target

    def _add_critic_gradients(self, s: Tensor, a: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Mean squared errors over the rows, summed over the critics."""
        loss = self.critics.regress(s, a, lambda q, rows: (q - y[rows]).square().sum() / len(s))
        return {"td_loss": loss / self.config.ensemble_size}

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q of all critics, ``[N, B]``."""
        return self.critics.values(observations, actions)

    def networks(self) -> dict[str, nn.Module]:
        """Policy, critics, targets and the entropy weight."""
        return {
            "policy": self.policy,
            "critics": self.critics,
            "targets": self.targets,
            "alpha": nn.ParameterDict({"log_alpha": self.log_alpha}),
        }

    def optimizers(self) -> dict[str, Optimizer]:
        """One optimiser each for critics, policy and entropy weight."""
        return {
            "critics": self.critic_optimizer,
            "actor": self.actor_optimizer,
            "alpha": self.alpha_optimizer,
        }
