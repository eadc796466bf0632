"""PBRL and PBRL-Prior: pessimistic bootstrapping for uncertainty-driven offline RL.

Bai et al., ICLR 2022, https://arxiv.org/abs/2202.11566. Equation numbers are the paper's;
``_update`` reads like its Algorithm 1, and each step it names is a method below it. The ablations
of its appendices (``pbrl_ablations.py``) and our own method (``pbrl_anchored.py``) override steps.

Shapes: B rows of a minibatch, S observation and A action dimensions, K critics, N OOD actions a
state, M OOD rows (N * B, twice that with ``authors_code``).
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, descend
from pbrl.algorithms.entropy import EntropyWeight
from pbrl.algorithms.ood_floor import ood_floor
from pbrl.algorithms.pbrl_presets import PRESET_NOTES, PRESETS, PRESETS_BY_DATASET
from pbrl.algorithms.schedules import beta_ood_schedule, fading
from pbrl.algorithms.settings import (
    CountOrZero,
    Inside,
    Members,
    NotNegative,
    Positive,
    Share,
    Sizes,
    Tau,
)
from pbrl.data.training_data import Batch, TrainingData
from pbrl.nn.critics import Critics
from pbrl.nn.init import CRITIC_HEAD_BOUND
from pbrl.nn.policy import TanhGaussianPolicy

Gaussian = tuple[Tensor, Tensor]  # mean and log-std before the tanh, [n, A] each
Metrics = dict[str, Tensor]


@dataclass(frozen=True)
class PBRLConfig(AlgorithmConfig):
    """Settings of PBRL; every default is the paper's."""

    ensemble_size: Members = 10
    """K, the number of critics."""
    hidden: Sizes = (256, 256, 256)
    """Hidden units of each critic."""
    policy_hidden: Sizes = (256, 256, 256)
    """Hidden units of the policy."""
    gamma: Inside = 0.99
    """Discount."""
    tau: Tau = 0.005
    """Rate of the target critics."""
    critic_lr: Positive = 3e-4
    """Adam's rate for the critics."""
    actor_lr: Positive = 1e-4
    """Adam's rate for the policy."""
    alpha_lr: Positive = 1e-4
    """Adam's rate for the entropy weight."""
    beta_in: NotNegative = 0.01
    """Weight of U in the target of data actions (Eq. 4)."""
    n_ood: CountOrZero = 10
    """OOD actions drawn from the policy for every state; 0 switches OOD sampling off."""
    ood_floor: float | Literal["auto", "none"] = "auto"
    """Lower bound of the OOD target; auto: 0 (the paper) when the data's rewards are non-negative
    in the main, else the lowest discounted return the data allow; none: no bound.
    """
    beta_ood_schedule: Literal["auto", "decay", "constant", "adaptive"] = "auto"
    """How the weight of U for OOD actions (Eq. 5) moves: decay (the paper; auto without
    authors_code), adaptive (linear, then down while Q of the policy falls; auto with it), constant.
    """
    beta_ood: NotNegative = 1.0
    """That weight with the constant schedule."""
    beta_ood_start: Positive = 5.0
    """That weight at the first step of the other schedules."""
    beta_ood_middle: Positive = 1.0
    """That weight at the end of the linear part."""
    beta_ood_end: Positive = 0.2
    """That weight at the last step."""
    beta_ood_linear: Share = 0.05
    """The linear part as a fraction of the run."""
    initial_log_alpha: float = 0.0
    """The entropy weight starts at its exponential."""
    target_entropy: float | None = None
    """alpha is tuned to this entropy; None: -A."""
    prior_scale: float | None = None
    """Weight of the random priors (Eq. 8; PBRL-Prior: 1); None: no priors."""
    authors_code: bool = False
    """Do what the authors' code does and the paper does not say: draw as many OOD actions at s',
    with a weight of their own; let U divide by K - 1; adapt beta_ood to Q of the policy; give the
    target critics weights and priors of their own; start the priors' last layer like the critics',
    at +-3e-3, which makes priors of next to no effect; and keep the policy from following the slope
    of the priors in the action.
    """
    ood_next_weight: NotNegative = 0.1
    """With authors_code: weight of U in the target of the OOD actions at s'."""
    prior_moves: bool = False
    """With authors_code: the targets' priors move towards the critics' (their Adroit trainer)."""


class PBRL(Algorithm):
    """Pessimistic bootstrapping: K critics, their disagreement U, and OOD sampling."""

    name = "pbrl"
    Config = PBRLConfig
    presets = PRESETS
    presets_by_dataset = PRESETS_BY_DATASET
    preset_notes = PRESET_NOTES
    config: PBRLConfig

    # ---------------------------------------------------------------- Algorithm 1

    def _update(self, batch: Batch) -> Metrics:
        """One gradient step each of the entropy weight, the critics and the policy."""
        # The policy's trunk runs once on s and once on s'; all actions come from these outputs.
        here: Gaussian = self.actor(batch.observations)
        with torch.no_grad():
            there: Gaussian = self.actor(batch.next_observations)
        a_pi, cost, metrics = self._act(here)  # drawn before the critics' step
        y = self._targets(batch, there)  # Eq. 4
        _, found = self._improve_critics(batch, y, here, there)  # Eqs. 5 and 6
        loss, more = self._policy_loss(batch, here, a_pi, cost)  # Eq. 7
        actor_loss = descend(self.actor_optimizer, loss)
        self.targets.move_towards(self.critics, self.config.tau, priors=self.config.prior_moves)
        return metrics | found | more | {"actor_loss": actor_loss}

    def std(self, q: Tensor) -> Tensor:
        """U = Std over the ensemble (Eq. 3), ``[K, n] -> [n]``."""
        return q.std(0, correction=self.std_correction)

    def _act(self, here: Gaussian) -> tuple[Tensor, Tensor, Metrics]:
        """The policy's action ``[B, A]`` and alpha log pi ``[B]``, after alpha was tuned."""
        u = self.actor.sample(*here, self.generator)
        action, log_pi = torch.tanh(u), self.actor.log_prob(*here, u)
        metrics = {"alpha_loss": self.alpha.tune(log_pi, self.alpha_optimizer)}
        metrics |= {"alpha": self.alpha(), "entropy": -log_pi.detach().mean()}
        return action, metrics["alpha"] * log_pi, metrics

    @torch.no_grad()
    def _targets(self, batch: Batch, there: Gaussian) -> Tensor:
        """Eq. 4: each member bootstraps from its own target network, less U, ``[K, B]``.

        The paper prints pi(.|s) for a'; it must be, and is in the authors' code, pi(.|s').
        """
        q2 = self.targets.values(batch.next_observations, self._draw(*there))
        q2 = q2 - self.config.beta_in * self.std(q2)
        return batch.rewards + self.config.gamma * (1 - batch.terminals) * q2

    def _improve_critics(
        self, batch: Batch, y: Tensor, here: Gaussian, there: Gaussian
    ) -> tuple[Tensor, Metrics]:
        """Eq. 6: both squared errors, averaged over rows and summed over members.

        Data and OOD rows go through the critics as one matrix, data first, some rows at a time.
        Returns Q of the data rows before the step, ``[K, B]``, and metrics.
        """
        s_ood, a_ood, beta = self._ood_rows(batch, here, there)
        size, count = len(batch.observations), len(beta)  # B, M
        q = y.new_empty(len(y), size + count)
        q_data, q_ood = q[:, :size], q[:, size:]

        def loss(chunk: Tensor, rows: slice) -> Tensor:
            q[:, rows] = chunk.detach()
            data = max(0, min(rows.stop, size) - rows.start)  # rows of this chunk from the data
            td = (chunk[:, :data] - y[:, rows][:, :data]).square().sum() / size
            if data == chunk.shape[1]:
                return td
            ood = slice(rows.start + data - size, rows.stop - size)
            target = self._ood_target(chunk[:, data:].detach(), beta[ood], q_data, ood)
            return td + (chunk[:, data:] - target).square().sum() / count

        self.critics_optimizer.zero_grad()
        s, a = torch.cat([batch.observations, s_ood]), torch.cat([batch.actions, a_ood])
        self.critics.regress(s, a, loss)
        metrics = {
            "td_loss": (q_data - y).square().mean(),
            "q_batch": q_data.mean(),
            "u_batch": self.std(q_data).mean(),
        }
        if count:
            target = self._ood_target(q_ood, beta, q_data, slice(0, count))
            sampled = q_ood[:, : self.config.n_ood * size]  # those at s
            metrics |= {
                "ood_loss": (q_ood - target).square().mean(),
                "beta_ood": beta[0],
                "q_ood": sampled.mean(),
                "u_ood": self.std(sampled).mean(),
            }
            self.schedule.record(self.step, metrics["q_ood"])
        self._step_critics()
        return q_data, metrics

    def _step_critics(self) -> None:
        """The gradient is there: take the step."""
        self.critics_optimizer.step()

    def _ood_rows(
        self, batch: Batch, here: Gaussian, there: Gaussian
    ) -> tuple[Tensor, Tensor, Tensor]:
        """States, actions and beta_ood of the OOD rows, ``[M, S] [M, A] [M]``."""
        groups = [(batch.observations, here, self.schedule(self.step))]
        if self.config.authors_code:
            groups.append((batch.next_observations, there, self.config.ood_next_weight))
        n = self.config.n_ood
        states = [s.repeat(n, 1) for s, _, _ in groups]
        actions = [self._ood_actions(policy) for _, policy, _ in groups]
        weights = [s.new_full((n * len(s),), weight) for s, _, weight in groups]
        return torch.cat(states), torch.cat(actions), torch.cat(weights)

    @torch.no_grad()
    def _ood_actions(self, policy: Gaussian) -> Tensor:
        """N draws for every row, ``[N * B, A]``; no gradient runs through them."""
        mean, log_std = (x.repeat(self.config.n_ood, 1) for x in policy)
        return self._draw(mean, log_std)

    def _draw(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Actions of the policy, ``[n, A]``."""
        return torch.tanh(self.actor.sample(mean, log_std, self.generator))

    def _ood_target(self, q: Tensor, beta: Tensor, q_data: Tensor, rows: slice) -> Tensor:
        """Eq. 5: every member lowers its own value by beta_ood U, no further than the floor.

        Variants look at ``q_data [K, B]``, too: OOD row i of ``rows`` lies at its state i % B.
        """
        target = q - beta * self.std(q)
        return target if self.floor is None else target.clamp_min(self.floor)

    def _policy_loss(
        self, batch: Batch, here: Gaussian, a_pi: Tensor, cost: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 7: the policy follows the lowest critic, and keeps its entropy."""
        return (cost - self.critics.extreme(batch.observations, a_pi)).mean(), {}

    # ---------------------------------------------------------------- construction

    def _build(self) -> None:
        c, s, a, random = self.config, self.observation_dim, self.action_dim, self.init_generator
        # The policy acts, the actor learns: the same network, but in variants.
        self.policy = self.actor = TanhGaussianPolicy(s, a, c.policy_hidden, generator=random)
        self.critics = self._make_critics()
        self.targets = self._make_critics() if c.authors_code else copy.deepcopy(self.critics)
        self.targets.requires_grad_(False)
        self.alpha = EntropyWeight(a, c.initial_log_alpha, c.target_entropy)
        self.floor: float | None = None
        if c.ood_floor != "none":  # auto: zero until prepare() has seen the rewards
            self.floor = 0.0 if c.ood_floor == "auto" else c.ood_floor
        self.schedule = beta_ood_schedule(c, self.total_steps)
        self.std_correction = int(c.authors_code)

    def _make_critics(self, **options: Any) -> Critics:
        c, s, a = self.config, self.observation_dim, self.action_dim
        return Critics(
            *(c.ensemble_size, s, a, c.hidden),
            prior_scale=c.prior_scale,
            prior_head_bound=CRITIC_HEAD_BOUND if c.authors_code else None,
            prior_has_slope=not c.authors_code,
            generator=self.init_generator,
            **options,
        )

    def _build_optimizers(self) -> None:
        c, critics = self.config, self.critics.main
        last = [critics.head_weight, critics.head_bias]
        self.critics_optimizer = adam([*last, *critics.weights, *critics.biases], c.critic_lr)
        self.actor_optimizer = adam(self.actor.parameters(), c.actor_lr)
        self.alpha_optimizer = adam(self.alpha.parameters(), c.alpha_lr)

    def prepare(self, data: TrainingData) -> list[str]:
        """Take the floor of the OOD target from the data's rewards."""
        notes = super().prepare(data)
        if self.config.ood_floor == "auto" and self.config.n_ood:
            self.floor, sentence = ood_floor(data, self.config.gamma)
            notes.append(sentence)
        return notes

    def relaxed(self, share: float) -> tuple[Any, str]:
        """beta_ood falls to this share of its present value."""
        last = self.schedule(self.step)
        config = dataclasses.replace(self.config, **fading(last, last * share))
        return config, f"Pessimism: beta_ood falls from {last:.3g} to {last * share:.3g}."


@dataclass(frozen=True)
class PBRLPriorConfig(PBRLConfig):
    """Settings of PBRL-Prior: PBRL with random priors of weight 1 (Eq. 8)."""

    prior_scale: float | None = 1.0


class PBRLPrior(PBRL):
    """PBRL whose critics carry fixed random prior networks."""

    name = "pbrl-prior"
    Config = PBRLPriorConfig
