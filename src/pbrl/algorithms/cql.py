"""CQL: conservative Q-learning, which pushes Q down where the policy could go and up on the data.

Kumar et al., NeurIPS 2020, https://arxiv.org/abs/2006.04779: the variant CQL(H) with importance
sampling (appendix F), which the authors' code calls ``min_q_version 3``. It adds to the TD error

    weight * ( log sum_a exp Q(s, a)  -  Q(s, a_data) )

with the sum over actions estimated from uniform actions and from the policy's at s and at s'. In
the Lagrange form a second multiplier is tuned so that this gap stays at a threshold.

Shapes: B rows of a minibatch, S observation and A action dimensions, N sampled actions of a kind.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, descend, require
from pbrl.algorithms.entropy import EntropyWeight
from pbrl.algorithms.settings import Count, CountOrZero, Inside, NotNegative, Positive, Sizes, Tau
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics
from pbrl.nn.policy import TanhGaussianPolicy

# Two critics leave more of the cache to each: longer chunks than ten critics would have.
CHUNK_ROWS = 2000


@dataclass(frozen=True)
class CQLConfig(AlgorithmConfig):
    """Settings of CQL; the defaults are the authors' for Gym, without the cloning warm-up."""

    hidden: Sizes = (256, 256, 256)
    """Hidden units of both critics."""
    policy_hidden: Sizes = (256, 256, 256)
    """Hidden units of the policy."""
    gamma: Inside = 0.99
    """Discount."""
    tau: Tau = 0.005
    """Rate of the target critics."""
    critic_lr: Positive = 3e-4
    """Adam's rate for the critics, and for the Lagrange multiplier."""
    actor_lr: Positive = 1e-4
    """Adam's rate for the policy."""
    alpha_lr: Positive = 1e-4
    """Adam's rate for the entropy weight."""
    min_q_weight: NotNegative = 5.0
    """Weight of the conservative term (the authors use 5 or 10 on Gym)."""
    n_actions: Count = 10
    """Actions of each of the three kinds: uniform, policy at s, policy at s'."""
    temperature: Positive = 1.0
    """Of the log-sum-exp."""
    lagrange_threshold: float | None = None
    """Tune a multiplier so that the weighted gap stays at this threshold; None: no multiplier."""
    bc_steps: CountOrZero = 0
    """For this many first steps the policy clones the data instead of following Q (the authors'
    code: 40000; PBRL's comparison ran without).
    """
    entropy_backup: bool = False
    """The target has the entropy term -alpha * log pi(a'|s')."""
    initial_log_alpha: float = 0.0
    """The entropy weight starts at its exponential."""
    target_entropy: float | None = None
    """alpha is tuned to this entropy; None: -A."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # The authors' code switches the multiplier off by a negative threshold.
        threshold = self.lagrange_threshold
        require(
            threshold is None or threshold >= 0,
            "lagrange_threshold must not be negative (None switches the multiplier off)",
        )


class Multipliers(EntropyWeight):
    """The entropy weight and the Lagrange multiplier of the conservative term."""

    def __init__(
        self, action_dim: int, initial_log_alpha: float, target_entropy: float | None
    ) -> None:
        super().__init__(action_dim, initial_log_alpha, target_entropy)
        self.log_multiplier = nn.Parameter(torch.zeros(()))


class CQL(Algorithm):
    """Two critics that are kept low on actions the data do not have."""

    name = "cql"
    Config = CQLConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {"lagrange_threshold": 5.0},
        "fast": {"n_actions": 4},
        "demo": {
            "hidden": (64, 64),
            "policy_hidden": (64, 64),
            "n_actions": 4,
            "critic_lr": 1e-3,
            "actor_lr": 3e-4,
            "alpha_lr": 3e-4,
        },
    }
    config: CQLConfig

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        self.policy = TanhGaussianPolicy(s, a, c.policy_hidden, generator=self.init_generator)
        self.critics = Critics(2, s, a, c.hidden, generator=self.init_generator)
        self.critics.main.chunk_rows = CHUNK_ROWS
        # Departure: the authors' target critics start with weights of their own.
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.multipliers = Multipliers(a, c.initial_log_alpha, c.target_entropy)

    def _build_optimizers(self) -> None:
        c = self.config
        self.critics_optimizer = adam(self.critics.trained_parameters(), c.critic_lr)
        self.actor_optimizer = adam(self.policy.parameters(), c.actor_lr)
        self.alpha_optimizer = adam([self.multipliers.log_alpha], c.alpha_lr)
        self.multiplier_optimizer = adam([self.multipliers.log_multiplier], c.critic_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]

        # The policy's trunk runs once on s and once on s'; all actions come from these outputs.
        mean, log_std = self.policy(s)
        u = self.policy.sample(mean, log_std, self.generator)
        a_pi, log_pi = torch.tanh(u), self.policy.log_prob(mean, log_std, u)  # [B, A] [B]
        with torch.no_grad():
            mean2, log_std2 = self.policy(s2)
            u2 = self.policy.sample(mean2, log_std2, self.generator)

        # Entropy weight, tuned to the target entropy.
        alpha_loss = self.multipliers.tune(log_pi, self.alpha_optimizer)
        alpha = self.multipliers()

        # The target both critics share: the lower target critic, by default without entropy.
        value = self.targets.values(s2, torch.tanh(u2)).amin(0)
        if c.entropy_backup:
            value = value - alpha * self.policy.log_prob(mean2, log_std2, u2)
        y = r + c.gamma * (1 - terminal) * value  # [B]

        # Actions of the conservative term, drawn before the policy moves.
        actions, log_density = self._sampled_actions(
            mean.detach(), log_std.detach(), mean2, log_std2
        )

        # The policy follows the lower critic, before the critics' step.
        if self.step < c.bc_steps:
            actor_loss = (alpha * log_pi - self.policy.action_log_prob(mean, log_std, a)).mean()
        else:
            actor_loss = (alpha * log_pi - self.critics.extreme(s, a_pi)).mean()
        descend(self.actor_optimizer, actor_loss)

        metrics = self._critic_step(s, a, y, actions, log_density)
        self.targets.move_towards(self.critics, c.tau)
        return metrics | {
            "actor_loss": actor_loss.detach(),
            "alpha_loss": alpha_loss,
            "alpha": alpha,
            "entropy": -log_pi.detach().mean(),
            "q_target": y.mean(),
        }

    @torch.no_grad()
    def _sampled_actions(
        self, mean: Tensor, log_std: Tensor, mean2: Tensor, log_std2: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Uniform actions, the policy's at s and its at s', with the log density of each.

        Takes the policy's outputs ``[B, A]``; returns ``[B, 3 N, A]`` and ``[B, 3 N]``. The actions
        drawn at s' will be judged at s as well: the authors mean it so.
        """
        n = self.config.n_actions
        size, dim = mean.shape
        uniform = mean.new_empty(size, n, dim).uniform_(-1, 1, generator=self.generator)
        actions, log_density = [uniform], [mean.new_full((size, n), -dim * math.log(2))]
        for one, other in ((mean, log_std), (mean2, log_std2)):
            means, log_stds = (x.unsqueeze(1).repeat(1, n, 1) for x in (one, other))
            u = self.policy.sample(means, log_stds, self.generator)
            actions.append(torch.tanh(u))
            log_density.append(self.policy.log_prob(means, log_stds, u))
        return torch.cat(actions, dim=1), torch.cat(log_density, dim=1)

    def _critic_step(
        self, s: Tensor, a: Tensor, y: Tensor, actions: Tensor, log_density: Tensor
    ) -> dict[str, Tensor]:
        """TD error and conservative term in one pass over all rows, state by state."""
        c, size = self.config, len(s)
        rows_a_state = 1 + actions.shape[1]  # the data's action first, then the sampled ones
        all_actions = torch.cat([a.unsqueeze(1), actions], dim=1)  # [B, 1 + 3 N, A]
        states = s.unsqueeze(1).expand(-1, rows_a_state, -1)
        multiplier: Tensor | float = 1.0
        if c.lagrange_threshold is not None:
            multiplier = self.multipliers.log_multiplier.detach().exp().clamp_max(1e6)
        td_loss, q_data = y.new_zeros(2), y.new_zeros(2)
        gap = y.new_zeros(2)  # weight * (log-sum-exp - Q(s, a)), of each critic

        def loss(q: Tensor, rows: slice) -> Tensor:
            part = slice(rows.start // rows_a_state, rows.stop // rows_a_state)
            q = q.unflatten(1, (-1, rows_a_state))  # [2, states, 1 + 3 N]
            data, sampled = q[:, :, 0], q[:, :, 1:]
            errors = (data - y[part]).square().sum(1) / size
            weighted = (sampled - log_density[part]) / c.temperature
            log_sum_exp = c.temperature * weighted.logsumexp(2)
            gaps = c.min_q_weight * (log_sum_exp - data).sum(1) / size
            td_loss.add_(errors.detach())
            gap.add_(gaps.detach())
            q_data.add_(data.detach().sum(1) / size)
            return (errors + multiplier * gaps).sum()

        self.critics_optimizer.zero_grad()
        self.critics.regress(
            states.flatten(0, 1), all_actions.flatten(0, 1), loss, group=rows_a_state
        )
        self.critics_optimizer.step()
        metrics = {"td_loss": td_loss.mean(), "cql_gap": gap.mean(), "q_batch": q_data.mean()}
        if c.lagrange_threshold is not None:
            # The multiplier grows while the gap is above the threshold.
            current = self.multipliers.log_multiplier.exp().clamp_max(1e6)
            multiplier_loss = -(current * (gap - c.lagrange_threshold)).mean()
            descend(self.multiplier_optimizer, multiplier_loss)
            metrics["multiplier"] = current.detach()
        return metrics
