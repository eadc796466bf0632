"""IQL: implicit Q-learning, which never asks a critic about an action that is not in the log.

Kostrikov et al., ICLR 2022, https://arxiv.org/abs/2110.06169; the update reads like the authors'.
Shapes: B rows of a minibatch, S observation and A action dimensions.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, descend
from pbrl.algorithms.settings import Dropout, Inside, NotNegative, Positive, Sizes, Tau
from pbrl.algorithms.td3bc import SMALL_NETWORKS
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics
from pbrl.nn.ensemble import EnsembleMLP
from pbrl.nn.policy import GaussianPolicy

ADROIT = {"temperature": 0.5, "policy_dropout": 0.1}
SCALED = {"normalize_rewards": "return-range"}
GYM = dict.fromkeys(("halfcheetah", "hopper", "walker2d"), SCALED)


@dataclass(frozen=True)
class IQLConfig(AlgorithmConfig):
    """Settings of IQL; every default is the authors' for Gym."""

    hidden: Sizes = (256, 256)
    """Hidden units of both critics and of the value function."""
    policy_hidden: Sizes = (256, 256)
    """Hidden units of the policy."""
    gamma: Inside = 0.99
    """Discount."""
    tau: Tau = 0.005
    """Rate of the target critics."""
    critic_lr: Positive = 3e-4
    """Adam's rate for the critics and the value function."""
    actor_lr: Positive = 3e-4
    """Adam's rate for the policy; it falls to zero over the run along a cosine."""
    expectile: Inside = 0.7
    """Which expectile of Q over the logged actions V is: 0.5 their mean, towards 1 their best."""
    temperature: NotNegative = 3.0
    """How strongly the policy prefers actions above V; 0 clones the log."""
    max_weight: Positive = 100.0
    """No logged action counts more than this in the policy's loss."""
    policy_dropout: Dropout = 0.0
    """Hidden units of the policy are dropped with this probability in training."""


class IQL(Algorithm):
    """V is an upper expectile of Q over the logged actions, Q regresses on V, the policy clones."""

    name = "iql"
    Config = IQLConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": ADROIT,
        "fast": {},
        "demo": SMALL_NETWORKS,
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": GYM
        | dict.fromkeys(("pen", "hammer", "door", "relocate", "kitchen"), ADROIT)
        | {"antmaze": {"expectile": 0.9, "temperature": 10.0}},
        "fast": GYM,
    }
    config: IQLConfig

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        # Departure: torch's initialisation, as in CORL; the authors' matrices are orthogonal.
        options: Any = {"head_bound": None, "init": "torch", "generator": self.init_generator}
        self.policy = GaussianPolicy(s, a, c.policy_hidden, **options)
        self.critics = Critics(2, s, a, c.hidden, **options)
        self.value = EnsembleMLP(1, s, c.hidden, **options)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)

    def _build_optimizers(self) -> None:
        c = self.config
        self.critics_optimizer = adam(self.critics.trained_parameters(), c.critic_lr)
        self.value_optimizer = adam(self.value.parameters(), c.critic_lr)
        self.actor_optimizer = adam(self.policy.parameters(), c.actor_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]
        q = self.targets.values(s, a).amin(0)  # [B]

        # V(s) <- expectile of Q(s, a) over the logged actions (Eq. 5): being below Q costs more.
        def expectile_loss(v: Tensor, rows: slice) -> Tensor:
            below = q[rows] - v  # [1, n]
            weight = (c.expectile - (below < 0).to(below)).abs()
            return (weight * below.square()).sum() / len(s)

        self.value_optimizer.zero_grad()
        value_loss = self.value.regress(s, expectile_loss)
        self.value_optimizer.step()
        v, v2 = self.value.values(s)[0], self.value.values(s2)[0]  # [B] each

        # The policy clones the logged actions, the better ones more (Eq. 7).
        advantage = q - v
        weight = (c.temperature * advantage).exp().clamp(max=c.max_weight)
        mean = self.policy(s, c.policy_dropout, self.generator)  # [B, A]
        actor_loss = -(weight * self.policy.log_prob(mean, a)).mean()
        cosine = math.cos(math.pi * min(1.0, self.step / self.total_steps))
        self.actor_optimizer.param_groups[0]["lr"] = c.actor_lr * (1 + cosine) / 2
        descend(self.actor_optimizer, actor_loss)

        # Both critics regress on r + gamma V(s') (Eq. 6).
        y = r + c.gamma * (1 - terminal) * v2
        self.critics_optimizer.zero_grad()
        loss = self.critics.regress(s, a, lambda q, rows: (q - y[rows]).square().sum() / len(s))
        self.critics_optimizer.step()
        self.targets.move_towards(self.critics, c.tau)
        return {
            "td_loss": loss / 2,
            "value_loss": value_loss,
            "actor_loss": actor_loss.detach(),
            "q_target": y.mean(),
            "advantage": advantage.mean(),
            "weight": weight.mean(),
        }
