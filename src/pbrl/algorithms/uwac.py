"""UWAC: BEAR whose errors and policy gradients are weighted down where dropout is uncertain.

Wu et al., ICML 2021, https://arxiv.org/abs/2105.08140. The actor is BEAR's own (``SupportActor``);
the critics carry dropout that is always on, and spectral normalisation on every layer. The variance
over Monte Carlo passes gives each target and each policy action a weight exp(-beta * variance).

Shapes: B rows of a minibatch, S observation and A action dimensions, K critics, M passes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from pbrl.algorithms.base import Algorithm, Parts, adam
from pbrl.algorithms.bear import BEARConfig, Kernel, SupportActor, soft_clipped, warming_up
from pbrl.algorithms.settings import Inside, Members, NotNegative
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics
from pbrl.nn.ensemble import EnsembleMLP

# Rows times passes that go through the networks at once without gradients: these fit the cache.
CHUNK = 2_000


@dataclass(frozen=True)
class UWACConfig(BEARConfig):
    """Settings of UWAC: BEAR's, with the authors' MMD, and dropout."""

    kernel: Kernel = "gaussian"
    """Of the MMD; the authors use gaussian throughout."""
    mmd_threshold: NotNegative = 0.07
    """The MMD allowed."""
    dropout: Inside = 0.1
    """Probability of dropping a hidden unit of a critic, in training and after it."""
    spectral_norm: bool = True
    """Hold the spectral norm of every critic layer at 1, the last one included."""
    mc_passes: Members = 100
    """M, dropout passes of which mean and variance are taken."""
    beta: NotNegative = 0.5
    """Weights are exp(-beta * variance), at most 1."""
    weight_policy: bool = True
    """Weight the policy's Q term as well as the critics' errors."""


def certainty_weight(variance: Tensor, beta: float) -> Tensor:
    """exp(-beta * variance) within [0, 1], without gradient."""
    return torch.exp(-beta * variance.detach()).clamp(0, 1)


def mc_passes(
    network: EnsembleMLP,
    x: Tensor,
    passes: int,
    generator: torch.Generator,
    *,
    same_masks: bool = False,
) -> Tensor:
    """Dropout passes of all members, ``[N, in] -> [M, K, N]``; gradients reach ``x`` alone.

    Dropout only acts behind the first layer, so that layer is computed once for all passes.

    Args:
        network: with dropout and ReLU.
        x: rows.
        passes: M.
        generator: of the masks.
        same_masks: every row sees the same M masks, so that a row's result does not depend on
            the others; otherwise each row has masks of its own, as in the authors' code.
    """
    weights = [w.detach() for w in network._effective_weights()]
    biases = [b.detach() for b in network.biases]
    members, rows, keep = network.members, len(x), 1 - network.dropout

    def drop(h: Tensor) -> Tensor:  # [K, M, N, H]; the scale 1 / keep goes into the next weights
        shape = (*h.shape[:2], 1, h.shape[3]) if same_masks else h.shape
        kept = keep_mask(shape, network.dropout, generator)
        return h * kept if h.requires_grad or not h.is_contiguous() else h.mul_(kept)

    h = torch.relu(torch.baddbmm(biases[0], x.expand(members, *x.shape), weights[0]))
    h = drop(h.unsqueeze(1).expand(members, passes, rows, h.shape[2]))
    for weight, bias in zip(weights[1:-1], biases[1:], strict=True):
        h = torch.relu(torch.baddbmm(bias, h.flatten(1, 2), weight / keep))
        h = drop(h.view(members, passes, rows, h.shape[2]))
    head, head_bias = weights[-1] / keep, network.head_bias.detach()
    out = torch.baddbmm(head_bias, head, h.flatten(1, 2).mT)  # [K, 1, M * N]
    return out.view(members, passes, rows).transpose(0, 1)


def keep_mask(shape: Sequence[int], dropout: float, generator: torch.Generator) -> Tensor:
    """True with probability 1 - dropout (to 2^-17), bool; on the generator's device.

    Four draws come from one 64-bit random number: several times faster than ``bernoulli_``, which
    would take most of the time of the Monte Carlo passes.
    """
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    bits = words.view(torch.int16)[:count]
    return (bits >= round(dropout * 2**16) - 2**15).view(shape)


def mc_moments(
    network: EnsembleMLP,
    x: Tensor,
    passes: int,
    generator: torch.Generator,
    *,
    same_masks: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean and variance over the passes, ``[N, in] -> [K, N], [K, N]``.

    Without a gradient to carry, rows go through in pieces: 100 passes of all the candidates of a
    batch at once would take half a gigabyte.
    """
    size = len(x) if x.requires_grad or same_masks else max(1, CHUNK // passes)
    moments = []
    for part in x.split(size):
        values = mc_passes(network, part, passes, generator, same_masks=same_masks)
        # Departure: the authors' variance is the unbiased one, M / (M - 1) times as large.
        moments.append((values.mean(0), values.var(0, correction=0)))
    mean, variance = zip(*moments, strict=True)
    return torch.cat(mean, 1), torch.cat(variance, 1)


class UWAC(Algorithm):
    """Uncertainty-weighted actor-critic."""

    name = "uwac"
    Config = UWACConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "fast": {
            "mc_passes": 10,
            "vae_hidden": (256, 256),
            "target_samples": 4,
            "act_samples": 10,
        },
        "demo": {
            "hidden": (64, 64),
            "policy_hidden": (64, 64),
            "vae_hidden": (64, 64),
            "mc_passes": 5,
            "target_samples": 4,
            "act_samples": 10,
            "critic_lr": 1e-3,
            "actor_lr": 1e-3,
            "vae_lr": 1e-3,
            "multiplier_lr": 1e-2,
        },
    }
    config: UWACConfig

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        self.actor = SupportActor(c, s, a, self.init_generator)
        layers = range(-len(c.hidden) - 1, 0) if c.spectral_norm else ()
        self.critics = Critics(
            c.ensemble_size,
            s,
            a,
            c.hidden,
            dropout=c.dropout,
            spectral_norm=layers,
            generator=self.init_generator,
        )
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        # The masks come from the generator of the updates, which is saved with the run.
        self.critics.main.dropout_generator = self.generator

    def _build_optimizers(self) -> None:
        self.actor.build_optimizers()
        self.critics_optimizer = adam(self.critics.trained_parameters(), self.config.critic_lr)

    # ---------------------------------------------------------------- the update

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]
        size = len(s)
        metrics = self.actor.fit_behaviour(s, a, self.generator)

        # BEAR's target from the means over the passes. The variances of all critics add up, and
        # of the candidates at s' the least certain one sets the weight.
        candidates = torch.cat(self.actor.candidates(s2, c.target_samples, self.generator), 1)
        q2, variance = self._moments(self.targets, candidates)  # [K, n * B]
        best = soft_clipped(q2, c.target_min_weight).view(c.target_samples, size).amax(0)
        y = r + c.gamma * (1 - terminal) * best  # [B]
        variance = variance.sum(0).view(c.target_samples, size).amax(0)
        weight = certainty_weight(variance, c.beta)
        q_data = y.new_empty(c.ensemble_size, size)

        def td_error(q: Tensor, rows: slice) -> Tensor:
            q_data[:, rows] = q.detach()
            # Inside the square, as in the authors' code: errors count with the weight squared.
            return (weight[rows] * (q - y[rows])).square().sum() / size

        self.critics_optimizer.zero_grad()
        td_loss = self.critics.regress(s, a, td_error)  # one dropout pass
        self.critics_optimizer.step()
        self.critics.main.update_spectral_norm()

        warm = warming_up(self.step, c.warmup, self.total_steps)
        value = None if warm else lambda actions: self._policy_value(s, actions)
        metrics |= self.actor.improve(s, value, self.generator)
        self._move_targets()
        return metrics | {
            "td_loss": td_loss / c.ensemble_size,
            "q_batch": q_data.mean(),
            "target_weight": weight.mean(),
            "target_variance": variance.mean(),
        }

    @torch.no_grad()
    def _move_targets(self) -> None:
        """Average the weights; the targets keep vectors of the power iteration of their own.

        So do the authors', whose layers iterate at every forward pass: both stay at norm 1.
        """
        mine, theirs = self.targets.main, self.critics.main
        torch._foreach_lerp_(list(mine.parameters()), list(theirs.parameters()), self.config.tau)
        self.targets.main.update_spectral_norm()

    def _policy_value(self, s: Tensor, actions: Tensor) -> Tensor:
        """Lowest critic's mean over the passes, weighted by certainty, ``[B]``."""
        mean, variance = self._moments(self.critics, torch.cat([s, actions], 1))
        value = mean.amin(0)
        if self.config.weight_policy:
            value = value * certainty_weight(variance.sum(0), self.config.beta)
        return value

    def _moments(self, critics: Critics, x: Tensor) -> tuple[Tensor, Tensor]:
        return mc_moments(critics.main, x, self.config.mc_passes, self.generator)

    # ---------------------------------------------------------------- policy and judgement

    def act(
        self,
        observations: Tensor,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The best of the policy's actions by the first critic, ``[B, S] -> [B, A]``.

        The authors leave dropout on here too, which makes the choice a matter of luck; we rank by
        the network without dropout, the usual estimate of the mean over passes.
        """
        return self.actor.act(
            observations, lambda s, a: self.q_values(s, a)[0], deterministic, generator
        )

    @torch.no_grad()
    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q of all critics with dropout switched off, ``[K, B]``."""
        main = self.critics.main
        main.dropout = 0.0
        try:
            return self.critics.values(observations, actions)
        finally:
            main.dropout = self.config.dropout

    @torch.no_grad()
    def uncertainty(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Root of the critics' summed variances over ``mc_passes`` dropout passes, ``[B]``.

        The masks are fixed and the same for every row, so a row's answer is its own.
        """
        fixed = torch.Generator(self.device).manual_seed(0)
        pieces = []
        for x in torch.cat([observations, actions], 1).split(
            max(1, CHUNK // self.config.mc_passes)
        ):
            _, variance = mc_moments(
                self.critics.main,
                x,
                self.config.mc_passes,
                fixed.manual_seed(0),
                same_masks=True,
            )
            pieces.append(variance.sum(0).sqrt())
        return torch.cat(pieces)

    # ---------------------------------------------------------------- state

    def optimizers(self) -> dict[str, Optimizer]:
        """The critics' and the actor's: policy, VAE and multiplier."""
        return {**super().optimizers(), **self.actor.optimizers()}

    def parts(self) -> Parts:
        """The policy acts by its best candidate; U comes from dropout."""
        passes = self.config.mc_passes
        return Parts(self.actor.policy, self.critics, self.actor.act_noise, passes)
