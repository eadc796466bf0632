"""SAC: soft actor-critic with two critics and a tuned entropy weight.

Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905. The online learner behind
``pbrl data collect`` and the one inside MOPO. It is SAC-N with N = 2; the update is written there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pbrl.algorithms.sac_n import SACN, SMALL_NETWORKS, SACNConfig
from pbrl.algorithms.settings import Sizes


@dataclass(frozen=True)
class SACConfig(SACNConfig):
    """Settings of SAC; the defaults are the authors' (see ``SACNConfig`` for each field)."""

    ensemble_size: int = 2
    hidden: Sizes = (256, 256)
    policy_hidden: Sizes = (256, 256)


class SAC(SACN):
    """Two critics, the lower of which both target and policy believe."""

    name = "sac"
    Config = SACConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "fast": {},
        "demo": {**SMALL_NETWORKS},
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    config: SACConfig
