"""The ablations of PBRL's appendices C and D: each setting replaces one named step of the update.

``pbrl train --algorithm pbrl-ablations`` takes all settings of PBRL and these; with their defaults
it is PBRL. Three ablations need no code: K is ``ensemble_size``, N is ``n_ood`` (0: no OOD
sampling), and a weight that does not fall is ``beta_ood_schedule constant``.

Shapes: B rows of a minibatch, K critics, M OOD rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pbrl.algorithms.pbrl import PBRL, Gaussian, Metrics, PBRLConfig
from pbrl.algorithms.settings import NotNegative
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics


@dataclass(frozen=True)
class PBRLAblationsConfig(PBRLConfig):
    """Settings of PBRL and of its ablations; every default is the paper's choice."""

    in_penalty: Literal["next_q", "reward", "both"] = "next_q"
    """Where the penalty of data actions goes: the next Q (Eq. 4), the reward, or both."""
    reward_penalty: NotNegative = 1.0
    """c of r - c * U(s, a), for in_penalty reward and both."""
    ood_actions: Literal["policy", "uniform"] = "policy"
    """OOD actions are drawn from the policy (the paper) or uniformly (its theory)."""
    ood_target: Literal["pessimistic", "zero"] = "pessimistic"
    """Q - beta_ood * U (Eq. 5), or plainly zero."""
    actor_objective: Literal["min", "mean", "max"] = "min"
    """The policy follows the min (Eq. 7), mean or max of the critics."""
    l2: NotNegative = 0.0
    """Weight of a squared-norm penalty on the critics' weights."""
    spectral_norm: Literal[0, 1, 2] = 0
    """Hold the spectral norm of this many last layers of the critics at 1."""
    pessimistic_init: Literal["none", "small", "large"] = "none"
    """Draw critic weights and biases from Unif(-0.2, 0) (small) or Unif(-1, 0) (large)."""
    pessimistic_init_layers: Literal["last", "all"] = "last"
    """Which layers that concerns. With all, as the paper's words have it, the second layer's ReLUs
    are dead from the start and Q is a constant.
    """


class PBRLAblations(PBRL):
    """PBRL with one step changed."""

    name = "pbrl-ablations"
    Config = PBRLAblationsConfig
    config: PBRLAblationsConfig

    # ---------------------------------------------------------------- appendix C

    @torch.no_grad()
    def _targets(self, batch: Batch, there: Gaussian) -> Tensor:
        """Eq. 4 with its penalty elsewhere."""
        c, r = self.config, batch.rewards
        q2 = self.targets.values(batch.next_observations, self._draw(*there))
        if c.in_penalty != "reward":
            q2 = q2 - c.beta_in * self.std(q2)
        if c.in_penalty != "next_q":
            r = r - c.reward_penalty * self.std(
                self.critics.values(batch.observations, batch.actions)
            )
        return r + c.gamma * (1 - batch.terminals) * q2

    @torch.no_grad()
    def _ood_actions(self, policy: Gaussian) -> Tensor:
        """N actions for every row, of the policy or uniform."""
        if self.config.ood_actions == "policy":
            return super()._ood_actions(policy)
        actions = policy[0].repeat(self.config.n_ood, 1)
        return actions.uniform_(-1, 1, generator=self.generator)

    def _ood_target(self, q: Tensor, beta: Tensor, q_data: Tensor, rows: slice) -> Tensor:
        """Eq. 5, or zero."""
        if self.config.ood_target == "zero":
            return torch.zeros_like(q)
        return super()._ood_target(q, beta, q_data, rows)

    def _policy_loss(
        self, batch: Batch, here: Gaussian, a_pi: Tensor, cost: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 7 with another critic to follow than the lowest."""
        s, objective = batch.observations, self.config.actor_objective
        if objective == "mean":
            followed = self.critics(s, a_pi, frozen=True).mean(0)
        else:
            followed = self.critics.extreme(s, a_pi, largest=objective == "max")
        return (cost - followed).mean(), {}

    # ---------------------------------------------------------------- appendix D

    def _step_critics(self) -> None:
        """With weight decay in the gradient, and norms kept up to date."""
        critics = self.critics.main
        if self.config.l2:
            matrices = [*critics.weights, critics.head_weight]
            gradients = [weight.grad for weight in matrices]
            torch._foreach_add_(gradients, matrices, alpha=2 * self.config.l2)
        super()._step_critics()
        if self.config.spectral_norm:
            critics.update_spectral_norm()

    def _make_critics(self, **options: Any) -> Critics:
        """Critics with bounded layers, or critics that start low."""
        c = self.config
        critics = super()._make_critics(spectral_norm=range(-c.spectral_norm, 0), **options)
        if c.pessimistic_init != "none":
            low = {"small": -0.2, "large": -1.0}[c.pessimistic_init]
            main = critics.main
            chosen = [main.head_weight, main.head_bias]
            if c.pessimistic_init_layers == "all":
                chosen += [*main.weights, *main.biases]
            with torch.no_grad():
                for parameter in chosen:
                    parameter.uniform_(low, 0.0, generator=self.init_generator)
        return critics
