"""SAC: soft actor-critic with two critics and a tuned entropy weight.

Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905. The online learner behind
``pbrl data collect`` and the one inside MOPO. It is SAC-N with N = 2; the update is written there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pbrl.algorithms.base import require
from pbrl.algorithms.sac_n import SACN, SMALL_NETWORKS, SACNConfig


@dataclass(frozen=True)
class SACConfig(SACNConfig):
    """Settings of SAC; the defaults are the authors' (see ``SACNConfig`` for each field)."""

    ensemble_size: int = 2
    hidden: tuple[int, ...] = (256, 256)
    policy_hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("hidden", "policy_hidden"):
            sizes = getattr(self, name)
            require(len(sizes) > 0 and min(sizes) > 0, f"{name} needs positive layer sizes")
        require(0 < self.gamma < 1, f"gamma must lie between 0 and 1, got {self.gamma}")
        require(0 < self.tau <= 1, f"tau must lie in (0, 1], got {self.tau}")
        for rate in ("critic_lr", "actor_lr", "alpha_lr"):
            require(getattr(self, rate) > 0, f"{rate} must be positive, got {getattr(self, rate)}")


class SAC(SACN):
    """Two critics, the lower of which both target and policy believe."""

    name = "sac"
    Config = SACConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "fast": {},
        "demo": {**SMALL_NETWORKS},
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, Any]]] = {}
    config: SACConfig
