"""EDAC: SAC-N whose critics are made to disagree, so that few of them are enough.

An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble", NeurIPS
2021, https://arxiv.org/abs/2110.01548. It adds to SAC-N's critic loss

    eta / (N - 1) * mean over the batch of sum_{i != j} cos(grad_a Q_i(s, a), grad_a Q_j(s, a)).

Shapes: B rows of a minibatch, S observation and A action dimensions, N critics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pbrl.algorithms.sac_n import ADROIT_RATES, SACN, SMALL_NETWORKS, SACNConfig
from pbrl.algorithms.settings import NotNegative
from pbrl.nn.input_gradient import regress_with_input_gradient


@dataclass(frozen=True)
class EDACConfig(SACNConfig):
    """Settings of EDAC: those of SAC-N and the weight of the diversity term."""

    eta: NotNegative = 1.0
    """Weight of the diversity term; 0 leaves SAC-N."""
    diversity_members: Literal["all", "action_dim"] = "all"
    """The term's sum runs over all critics (the paper's equation and the authors' code), or over
    min(N, A) critics drawn anew at every step (their code until January 2022).
    """


class EDAC(SACN):
    """SAC-N with diversified action gradients."""

    name = "edac"
    Config = EDACConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {"ensemble_size": 50, "eta": 200.0, **ADROIT_RATES},
        "fast": {"hidden": (256, 256), "policy_hidden": (256, 256)},
        "demo": SMALL_NETWORKS,
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            "halfcheetah": {"ensemble_size": 10, "eta": 1.0},
            "halfcheetah-random": {"ensemble_size": 10, "eta": 0.0},
            "halfcheetah-medium-expert": {"ensemble_size": 10, "eta": 5.0},
            "hopper": {"ensemble_size": 50, "eta": 1.0},
            "hopper-random": {"ensemble_size": 50, "eta": 0.0},
            "walker2d": {"ensemble_size": 10, "eta": 1.0},
            "walker2d-medium-expert": {"ensemble_size": 10, "eta": 5.0},
            "walker2d-expert": {"ensemble_size": 10, "eta": 5.0},
            **{
                task: {"ensemble_size": 50, "eta": 200.0, **ADROIT_RATES}
                for task in ("pen", "hammer", "door", "relocate")
            },
            "pen-human": {"ensemble_size": 20, "eta": 1000.0, **ADROIT_RATES},
            "pen-cloned": {"ensemble_size": 20, "eta": 10.0, "max_q_backup": True, **ADROIT_RATES},
        }
    }
    config: EDACConfig

    def _add_critic_gradients(self, s: Tensor, a: Tensor, y: Tensor) -> dict[str, Tensor]:
        c, size = self.config, len(s)
        if c.eta == 0:
            return super()._add_critic_gradients(s, a, y)
        members = self._diversified()
        terms = torch.zeros(2, device=s.device, dtype=y.dtype)

        def loss(q: Tensor, slopes: Tensor, rows: slice) -> Tensor:
            td = (q - y[rows]).square().sum() / size
            diversity = similarity(slopes if members is None else slopes[members]) / size
            terms.add_(torch.stack([td.detach(), diversity.detach()]))
            return td + c.eta * diversity

        actions = slice(s.shape[1], s.shape[1] + a.shape[1])
        x = torch.cat([s, a], dim=1)
        regress_with_input_gradient(self.critics.main, x, actions, loss)
        return {"td_loss": terms[0] / c.ensemble_size, "diversity_loss": terms[1]}

    def _diversified(self) -> Tensor | None:
        """Which critics the diversity term concerns; None: all."""
        c = self.config
        if c.diversity_members == "all":
            return None
        # One pair at least: with a single action dimension their old code divided zero by zero.
        count = max(2, min(c.ensemble_size, self.action_dim))
        order = torch.randperm(c.ensemble_size, generator=self.generator, device=self.device)
        return order[:count]


def similarity(slopes: Tensor) -> Tensor:
    """Sum over rows and pairs of members of the cosine between their slopes, over M - 1.

    ``slopes`` is ``[M, n, A]``. The sum over pairs i != j of u_i . u_j is |sum u_i|^2 - sum |u_i|^2
    and needs no matrix of pairs.
    """
    unit = slopes / (slopes.norm(dim=2, keepdim=True) + 1e-10)
    pairs: Tensor = unit.sum(0).square().sum() - unit.square().sum()
    return pairs / (len(slopes) - 1)
