"""ReBRAC: TD3+BC with deeper, normalised critics, and with cloning in the critics' target as well.

Tarasov et al., "Revisiting the Minimalist Approach to Offline Reinforcement Learning", NeurIPS
2023, https://arxiv.org/abs/2305.09836. What is not here is TD3+BC's.

Shapes: B rows of a minibatch, S observation and A action dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pbrl.algorithms.settings import Count, NotNegative, Positive, Sizes
from pbrl.algorithms.td3bc import SMALL_NETWORKS, TD3BC, TD3Config
from pbrl.data.training_data import Batch

# (actor_penalty, critic_penalty) that the authors chose for each dataset.
GYM_PENALTIES = {
    "halfcheetah-random": (0.001, 0.1),
    "halfcheetah-medium": (0.001, 0.01),
    "halfcheetah-medium-replay": (0.01, 0.001),
    "halfcheetah-medium-expert": (0.01, 0.1),
    "halfcheetah-expert": (0.01, 0.01),
    "halfcheetah-full-replay": (0.001, 0.1),
    "hopper-random": (0.001, 0.01),
    "hopper-medium": (0.01, 0.01),
    "hopper-medium-replay": (0.05, 0.5),
    "hopper-medium-expert": (0.1, 0.01),
    "hopper-expert": (0.1, 0.1),
    "hopper-full-replay": (0.01, 0.01),
    "walker2d-random": (0.01, 0.0),
    "walker2d-medium": (0.05, 0.1),
    "walker2d-medium-replay": (0.05, 0.01),
    "walker2d-medium-expert": (0.01, 0.01),
    "walker2d-expert": (0.01, 0.5),
    "walker2d-full-replay": (0.01, 0.01),
}
ADROIT_PENALTIES = {
    "pen-human": (0.1, 0.5),
    "pen-cloned": (0.05, 0.5),
    "pen-expert": (0.01, 0.01),
    "door-human": (0.1, 0.1),
    "door-cloned": (0.01, 0.1),
    "door-expert": (0.05, 0.01),
    "hammer-human": (0.01, 0.5),
    "hammer-cloned": (0.1, 0.5),
    "hammer-expert": (0.01, 0.01),
    "relocate-human": (0.1, 0.01),
    "relocate-cloned": (0.1, 0.01),
    "relocate-expert": (0.05, 0.01),
}
ADROIT: dict[str, Any] = {
    "actor_penalty": 0.1, "critic_penalty": 0.5,
    "actor_lr": 3e-4, "critic_lr": 3e-4, "batch_size": 256,
}  # fmt: skip


def _by_dataset(
    penalties: dict[str, tuple[float, float]], common: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    return {
        name: common | {"actor_penalty": actor, "critic_penalty": critic}
        for name, (actor, critic) in penalties.items()
    }


@dataclass(frozen=True)
class ReBRACConfig(TD3Config):
    """Settings of ReBRAC; every default but the penalties is the authors' for Gym."""

    batch_size: Count = 1024
    """Rows of a minibatch."""
    hidden: Sizes = (256, 256, 256)
    """Hidden units of both critics, with LayerNorm."""
    policy_hidden: Sizes = (256, 256, 256)
    """Hidden units of the policy."""
    critic_lr: Positive = 1e-3
    """Adam's rate for the critics."""
    actor_lr: Positive = 1e-3
    """Adam's rate for the policy."""
    actor_penalty: NotNegative = 0.01
    """Weight of the squared distance to the logged action in the policy's loss (beta_1)."""
    critic_penalty: NotNegative = 0.01
    """Weight of the squared distance to the next logged action in the critics' target (beta_2)."""


class ReBRAC(TD3BC):
    """TD3+BC whose critics also count what the next action's distance from the log costs."""

    name = "rebrac"
    Config = ReBRACConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": ADROIT,  # the authors' for pen-human; each set has its own below
        "fast": {},
        "demo": SMALL_NETWORKS | {"batch_size": 256},
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": _by_dataset(GYM_PENALTIES, {}) | _by_dataset(ADROIT_PENALTIES, ADROIT),
        "adroit": _by_dataset(ADROIT_PENALTIES, {}),
        "fast": _by_dataset(GYM_PENALTIES, {}),
    }
    normalize_observations = False
    policy_options: ClassVar[dict[str, Any]] = {"init": "fan-in"}
    # Departure: LayerNorm stands before the ReLU and has no scale and shift; the authors' is after.
    critic_options: ClassVar[dict[str, Any]] = {"init": "fan-in", "layer_norm": True}
    config: ReBRACConfig  # type: ignore[assignment]

    def _next_values(self, batch: Batch, a2: Tensor) -> Tensor:
        """TD3's, less the distance of ``a2`` to the action that the log took there."""
        distance = (a2 - batch.next_actions).square().sum(1)
        # Where the log goes no further there is no action to keep to.
        penalty = self.config.critic_penalty * distance.nan_to_num(nan=0.0)
        return super()._next_values(batch, a2) - penalty

    def _policy_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """-lambda * min_k Q_k(s, pi(s)) + beta_1 * |pi(s) - a|^2, and what is worth logging."""
        pi = self.policy(batch.observations)
        q = self.critics.extreme(batch.observations, pi)  # [B]
        weight = 1 / q.detach().abs().mean()
        distance = (pi - batch.actions).square().sum(1).mean()
        return self.config.actor_penalty * distance - weight * q.mean(), {
            "cloning_loss": distance.detach(),
            "lambda": weight,
            "q_policy": q.detach().mean(),
        }
