"""BEAR: stay within the support of the behaviour policy, measured by MMD.

Kumar et al., NeurIPS 2019, https://arxiv.org/abs/1906.00949. Settings and details are those of the
authors' later code for D4RL (d4rl_evaluations), which they recommend over the first release.

A VAE imitates the data's actions. The policy maximises Q while the maximum mean discrepancy between
its actions and the VAE's stays below a threshold, held there by a Lagrange multiplier.

Shapes: B rows of a minibatch, S observation and A action dimensions, K critics, n actions a state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, Parts, adam, descend
from pbrl.algorithms.settings import (
    Count,
    Inside,
    Members,
    NotNegative,
    Positive,
    Share,
    Sizes,
    Tau,
)
from pbrl.data.training_data import Batch
from pbrl.nn.behaviour_vae import BehaviourVAE
from pbrl.nn.critics import Critics
from pbrl.nn.policy import TanhGaussianPolicy

Kernel = Literal["laplacian", "gaussian"]


@dataclass(frozen=True)
class BEARConfig(AlgorithmConfig):
    """Settings of BEAR; defaults are the authors' for D4RL."""

    ensemble_size: Members = 2
    """K, the number of critics."""
    hidden: Sizes = (256, 256)
    """Hidden units of each critic."""
    policy_hidden: Sizes = (256, 256)
    """Hidden units of the policy."""
    vae_hidden: Sizes = (750, 750)
    """Hidden units of the VAE's encoder and of its decoder."""
    gamma: Inside = 0.99
    """Discount."""
    tau: Tau = 0.005
    """Rate of the target critics."""
    critic_lr: Positive = 3e-4
    """Adam's rate for the critics."""
    actor_lr: Positive = 1e-4
    """Adam's rate for the policy."""
    vae_lr: Positive = 3e-4
    """Adam's rate for the VAE."""
    kl_weight: NotNegative = 0.5
    """Weight of the KL term beside the VAE's reconstruction error."""
    kernel: Kernel = "laplacian"
    """Of the MMD; the authors use gaussian for HalfCheetah, laplacian elsewhere."""
    mmd_sigma: Positive = 20.0
    """Its width; kernels are exp(-distance / (2 sigma))."""
    mmd_samples: Count = 4
    """Actions a state from the policy and from the VAE to compare."""
    mmd_threshold: NotNegative = 0.05
    """epsilon, the MMD allowed."""
    mode: Literal["auto", "fixed"] = "auto"
    """auto: the multiplier is learned; fixed: it is the constant multiplier."""
    multiplier: NotNegative = 100.0
    """Weight of the MMD in mode fixed."""
    multiplier_lr: Positive = 1e-3
    """Adam's rate for the logarithm of the multiplier in mode auto."""
    warmup: Share = 0.04
    """Fraction of the run in which the policy follows the MMD alone (40K of 1M steps)."""
    target_samples: Count = 10
    """Policy actions at s' of which the target takes the best."""
    target_min_weight: Share = 0.75
    """The target is w * min + (1 - w) * max over the critics."""
    act_samples: Count = 100
    """Policy actions of which the deployed policy takes the best by Q."""


# -------------------------------------------------------------------- the parts, shared with UWAC


def mmd(x: Tensor, y: Tensor, sigma: float, kernel: Kernel) -> Tensor:
    """Maximum mean discrepancy of two samples for every state, ``[B, n, A], [B, m, A] -> [B]``.

    The root of E k(x, x') + E k(y, y') - 2 E k(x, y), diagonals included, with 1e-6 under the root.
    """

    def mean_kernel(one: Tensor, other: Tensor) -> Tensor:
        difference = one.unsqueeze(2) - other.unsqueeze(1)  # [B, n, m, A]
        distance = difference.abs() if kernel == "laplacian" else difference.square()
        return (-distance.sum(-1) / (2 * sigma)).exp().mean((1, 2))

    square = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    # Rounding can take it below zero by more than the 1e-6 in float32; the root must stay real.
    return (square + 1e-6).clamp_min(1e-12).sqrt()


def soft_clipped(q: Tensor, min_weight: float) -> Tensor:
    """w * min + (1 - w) * max over the critics, ``[K, ...] -> [...]``."""
    return min_weight * q.amin(0) + (1 - min_weight) * q.amax(0)


class SupportActor(nn.Module):
    """A policy held within the data's support: policy, behaviour VAE and multiplier.

    Args:
        config: of BEAR or UWAC.
        observation_dim: S.
        action_dim: A.
        generator: source of the initial weights.
    """

    log_multiplier_range = (-5.0, 10.0)

    def __init__(
        self, config: BEARConfig, observation_dim: int, action_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.policy = TanhGaussianPolicy(
            observation_dim, action_dim, config.policy_hidden, generator=generator
        )
        self.vae = BehaviourVAE(observation_dim, action_dim, config.vae_hidden, generator=generator)
        self.log_multiplier = nn.Parameter(torch.zeros(()))
        # Noise of the deployed policy's candidates. The authors draw it anew for every state; held
        # fixed, the policy is a function of the state, and rows do not depend on one another.
        noise = torch.randn(
            config.act_samples, 1, action_dim, generator=torch.Generator().manual_seed(0)
        )
        self.act_noise: Tensor
        self.register_buffer("act_noise", noise)

    def build_optimizers(self) -> None:
        """Once the weights are on their device."""
        c = self.config
        self.policy_optimizer = adam(self.policy.parameters(), c.actor_lr)
        self.vae_optimizer = adam(self.vae.parameters(), c.vae_lr)
        self.multiplier_optimizer = adam([self.log_multiplier], c.multiplier_lr)

    def optimizers(self) -> dict[str, Optimizer]:
        """By name."""
        return {
            "actor": self.policy_optimizer,
            "vae": self.vae_optimizer,
            "multiplier": self.multiplier_optimizer,
        }

    def fit_behaviour(self, s: Tensor, a: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """One step of the VAE."""
        loss = self.vae.loss(s, a, self.config.kl_weight, generator)
        descend(self.vae_optimizer, loss)
        return {"vae_loss": loss.detach()}

    @torch.no_grad()
    def candidates(self, s: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """n policy actions a state with their states, ``[B, S] -> [n * B, S], [n * B, A]``."""
        mean, log_std = self.policy(s)
        mean, log_std = mean.repeat(n, 1), log_std.repeat(n, 1)
        return s.repeat(n, 1), torch.tanh(self.policy.sample(mean, log_std, generator))

    def improve(
        self, s: Tensor, value: Callable[[Tensor], Tensor] | None, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """One step of the policy and of the multiplier.

        Args:
            s: ``[B, S]``.
            value: what the policy maximises, ``actions [B, A] -> [B]``; None in the warm-up.
            generator: of the policy's and the VAE's draws.
        """
        c = self.config
        mean, log_std = self.policy(s)
        shape = (len(s), c.mmd_samples, mean.shape[1])
        u = self.policy.sample(
            mean.unsqueeze(1).expand(shape), log_std.unsqueeze(1).expand(shape), generator
        )  # [B, n, A], before the tanh: the authors compare there
        with torch.no_grad():
            behaviour = self.vae.draw(s, c.mmd_samples, generator)
        distance = mmd(behaviour, u, c.mmd_sigma, c.kernel)  # [B]
        if c.mode == "auto":
            multiplier = self.log_multiplier.detach().exp()
            loss = multiplier * (distance - c.mmd_threshold).mean()
        else:
            multiplier = torch.full_like(self.log_multiplier, c.multiplier)
            loss = multiplier * distance.mean()
        metrics = {"mmd": distance.detach().mean(), "multiplier": multiplier}
        if value is not None:
            q_pi = value(torch.tanh(u[:, 0]))  # one action a state, as in the authors' code
            loss = loss - q_pi.mean()
            metrics["actor_q"] = q_pi.detach().mean()
        descend(self.policy_optimizer, loss)
        if c.mode == "auto":
            self._dual_step(distance.detach())
        return metrics | {"actor_loss": loss.detach()}

    def _dual_step(self, distance: Tensor) -> None:
        """Raise the multiplier while the MMD exceeds its threshold, lower it otherwise."""
        dual = -self.log_multiplier.exp() * (distance - self.config.mmd_threshold).mean()
        descend(self.multiplier_optimizer, dual)
        with torch.no_grad():
            self.log_multiplier.clamp_(*self.log_multiplier_range)

    @torch.no_grad()
    def act(
        self,
        observations: Tensor,
        q: Callable[[Tensor, Tensor], Tensor],
        deterministic: bool,
        generator: torch.Generator | None,
    ) -> Tensor:
        """The best of ``act_samples`` policy actions by ``q``, or a plain draw, ``[B, A]``.

        Args:
            observations: ``[B, S]``.
            q: ``[m, S], [m, A] -> [m]``.
            deterministic: the best of a fixed set of draws; otherwise one draw.
            generator: of that one draw.
        """
        pieces = []
        for s in observations.split(256):  # candidates of all rows at once would fill the memory
            mean, log_std = self.policy(s)
            if not deterministic:
                pieces.append(torch.tanh(self.policy.sample(mean, log_std, generator)))
                continue
            a = torch.tanh(mean + log_std.exp() * self.act_noise)  # [n, B, A]
            values = q(s.repeat(len(a), 1), a.flatten(0, 1)).view(len(a), len(s))
            pieces.append(a[values.argmax(0), torch.arange(len(s), device=a.device)])
        return torch.cat(pieces)


def warming_up(step: int, warmup: float, total_steps: int) -> bool:
    """Whether ``step`` belongs to the first ``warmup`` fraction of the run."""
    return step < round(warmup * total_steps)


# -------------------------------------------------------------------- the algorithm


class BEAR(Algorithm):
    """Bootstrapping error accumulation reduction."""

    name = "bear"
    Config = BEARConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        # Sizes, rates and the fixed weight that the authors' first release has by default, which
        # PBRL's authors compared with; not all of that release, see docs/algorithms/bear.md.
        "fixed-weight": {
            "batch_size": 100,
            "hidden": (400, 300),
            "policy_hidden": (400, 300),
            "critic_lr": 1e-3,
            "actor_lr": 1e-3,
            "vae_lr": 1e-3,
            "mmd_samples": 10,
            "mode": "fixed",
            "act_samples": 10,
        },
        "fast": {"vae_hidden": (256, 256), "target_samples": 4, "act_samples": 10},
        "demo": {
            "hidden": (64, 64),
            "policy_hidden": (64, 64),
            "vae_hidden": (64, 64),
            "target_samples": 4,
            "act_samples": 10,
            "critic_lr": 1e-3,
            "actor_lr": 1e-3,
            "vae_lr": 1e-3,
            "multiplier_lr": 1e-2,
        },
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {"halfcheetah": {"kernel": "gaussian"}}
    }
    config: BEARConfig

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        self.actor = SupportActor(c, s, a, self.init_generator)
        self.critics = Critics(c.ensemble_size, s, a, c.hidden, generator=self.init_generator)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)

    def _build_optimizers(self) -> None:
        self.actor.build_optimizers()
        self.critics_optimizer = adam(self.critics.trained_parameters(), self.config.critic_lr)

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]
        size = len(s)
        metrics = self.actor.fit_behaviour(s, a, self.generator)

        # Target: 0.75 min + 0.25 max over the critics, then the best of the policy's actions at s'.
        q2 = self.targets.values(*self.actor.candidates(s2, c.target_samples, self.generator))
        best = soft_clipped(q2, c.target_min_weight).view(c.target_samples, size).amax(0)
        y = r + c.gamma * (1 - terminal) * best  # [B]
        q_data = y.new_empty(c.ensemble_size, size)

        def td_error(q: Tensor, rows: slice) -> Tensor:
            q_data[:, rows] = q.detach()
            return (q - y[rows]).square().sum() / size

        self.critics_optimizer.zero_grad()
        td_loss = self.critics.regress(s, a, td_error)
        self.critics_optimizer.step()

        # The policy follows the lowest of the critics, which have just moved.
        warm = warming_up(self.step, c.warmup, self.total_steps)
        value = None if warm else lambda actions: self.critics.extreme(s, actions)
        metrics |= self.actor.improve(s, value, self.generator)
        self.targets.move_towards(self.critics, c.tau)
        return metrics | {"td_loss": td_loss / c.ensemble_size, "q_batch": q_data.mean()}

    def act(
        self,
        observations: Tensor,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The best of the policy's actions by the first critic, ``[B, S] -> [B, A]``."""
        return self.actor.act(
            observations, lambda s, a: self.critics.values(s, a)[0], deterministic, generator
        )

    def optimizers(self) -> dict[str, Optimizer]:
        """The critics' and the actor's: policy, VAE and multiplier."""
        return {**super().optimizers(), **self.actor.optimizers()}

    def parts(self) -> Parts:
        """The policy acts by its best candidate."""
        return Parts(self.actor.policy, self.critics, self.actor.act_noise)
