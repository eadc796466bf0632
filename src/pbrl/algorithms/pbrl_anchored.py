"""PBRL anchored to its data: our own method, for an hour on a CPU. It reads as PBRL's difference.

PBRL claims to need no constraint on the policy. With a million steps that may be so; critics of a
few ten thousand steps do not hold a policy at the data, and lose sight of the actions beside it.
Beside PBRL's equations (``pbrl.py``), this method

- has a deterministic policy, with normal noise on its draws for Eqs. 4 and 5, as TD3's;
- clones the logged actions as far as the critics disagree on what leaving them gains;
- lets Eq. 5 stop where an action is low enough, a margin below the logged one;
- normalises the critics' hidden layers, and lets their last layer learn in units of the data;
- lets learning rates fall, and acts by an average of the policies on the way.

What each is for, with measurements: docs/algorithms/pbrl-anchored.md and docs/hour.md.

Shapes: B rows of a minibatch, A action dimensions, K critics, M OOD rows.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from pbrl.algorithms.base import adam, require
from pbrl.algorithms.pbrl import PBRL, Gaussian, Metrics, PBRLConfig
from pbrl.algorithms.settings import (
    CountOrZero,
    Members,
    NotNegative,
    Positive,
    Rule,
    Share,
    Sizes,
    Tau,
)
from pbrl.data.training_data import Batch, TrainingData
from pbrl.nn.critics import Critics

GAIN_ROWS = 128  # rows of a minibatch on which the doubt about gains is measured: few, to save time
NOISE_CLIP = 2.5  # deviations

Noise = Annotated[float, Rule(lambda x: 0.01 <= x <= 1, "must lie between 0.01 and 1")]


@dataclass(frozen=True)
class PBRLAnchoredConfig(PBRLConfig):
    """Settings of PBRL, some with other defaults, and our own.

    There is no entropy term, so alpha_lr, initial_log_alpha and target_entropy do nothing.
    """

    ensemble_size: Members = 5
    """K, the number of critics: half the time of ten."""
    hidden: Sizes = (256, 256)
    """Hidden units of each critic."""
    policy_hidden: Sizes = (256, 256)
    """Hidden units of the policy."""
    tau: Tau = 0.03
    """Rate of the target critics: values travel back along an episode within hundreds of steps."""
    critic_lr: Positive = 1e-3
    """Adam's rate for the critics, at the start."""
    actor_lr: Positive = 1e-3
    """Adam's rate for the policy, at the start."""
    n_ood: CountOrZero = 1
    """OOD actions drawn for every state."""
    beta_ood_start: Positive = 0.3
    """beta_ood at the first step. It comes off every step's value, and U is larger in short runs:
    less than the paper's.
    """
    beta_ood_middle: Positive = 0.15
    """beta_ood at the end of the linear part."""
    beta_ood_end: Positive = 0.05
    """beta_ood at the last step."""
    ood_margin: NotNegative = 1.0
    """Eq. 5 lowers an OOD action, in each critic, only while its value is not this many U below the
    logged action's at the same state. Beside narrow data nothing else stops it, and targets drawn
    there bring Q down.
    """
    cloning: NotNegative = 100.0
    """Weight, in the policy's loss and at the first step, of the squared distance between its
    action and the logged one, in units of the critics' doubt about gains; it moves linearly to
    cloning_end.
    """
    cloning_end: NotNegative = 100.0
    """The weight of cloning at the last step."""
    value_scale: Positive | Literal["auto"] = "auto"
    """The critics' last layer starts and learns, and their priors' is, in units of this value;
    auto: a tenth of the mean size of a reward over 1 - gamma. Adam moves each weight by about its
    rate a step, whatever the size of Q: values of hundreds would be thousands of steps away.
    """
    lr_end: Share = 0.05
    """The rates of critics and policy fall linearly to this share of themselves at the end."""
    lr_steps: CountOrZero = 50_000
    """Above 0, they also fall as 1 / (1 + step / lr_steps): a long run spends less of its time at
    rates that suit a short one.
    """
    policy_noise: Noise = 0.2
    """Deviation of the noise on the policy's draws, clipped at 2.5 of them. A Gaussian policy would
    narrow and leave the critics blind to actions beside its own.
    """
    policy_average: Share = 0.1
    """The policy that acts is an exponential average of the trained one's weights over this share
    of the run; 0: the trained policy itself acts.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.authors_code,
            "authors_code is a switch of pbrl and pbrl-prior; pbrl-anchored has none",
        )


class PBRLAnchored(PBRL):
    """PBRL whose policy stays near the data while the critics are in doubt."""

    name = "pbrl-anchored"
    Config = PBRLAnchoredConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # What it reaches, and how it was found: docs/hour.md, results/time_to_score.
        "fast": {},
        "demo": {"hidden": (64, 64), "policy_hidden": (64, 64), "batch_size": 128, "gamma": 0.98},
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    preset_notes: ClassVar[dict[str, str]] = {}
    normalize_observations = True
    config: PBRLAnchoredConfig

    def _update(self, batch: Batch) -> Metrics:
        """PBRL's, at this step's rates; the acting policy follows the trained one."""
        self._lower_rates()
        metrics = super()._update(batch)
        self._average_policy()
        return metrics

    # ---------------------------------------------------------------- a policy with noise on draws

    def _act(self, here: Gaussian) -> tuple[Tensor, Tensor, Metrics]:
        """The policy's action, which costs nothing: there is no entropy."""
        action = torch.tanh(here[0])
        return action, action.new_zeros(()), {}

    def _draw(self, mean: Tensor, log_std: Tensor) -> Tensor:
        noise = torch.empty_like(mean).normal_(generator=self.generator)
        noise = log_std.exp() * noise.clamp_(-NOISE_CLIP, NOISE_CLIP)
        return (torch.tanh(mean) + noise).clamp(-1, 1)

    # ---------------------------------------------------------------- an end for Eq. 5

    def _ood_target(self, q: Tensor, beta: Tensor, q_data: Tensor, rows: slice) -> Tensor:
        """Eq. 5 for actions less than a margin below the logged one; the others stay."""
        states = torch.arange(rows.start, rows.stop, device=q.device) % q_data.shape[1]
        high = q > q_data[:, states] - self.config.ood_margin * self.std(q)
        target = torch.where(high, super()._ood_target(q, beta, q_data, rows), q)
        return target if self.floor is None else target.clamp_min(self.floor)

    # ---------------------------------------------------------------- cloning by doubt

    def _improve_critics(
        self, batch: Batch, y: Tensor, here: Gaussian, there: Gaussian
    ) -> tuple[Tensor, Metrics]:
        """PBRL's; on the way the critics say what they think of the policy's actions."""
        acted = torch.tanh(here[0].detach()[:GAIN_ROWS])
        q_acted = self.critics.values(batch.observations[:GAIN_ROWS], acted)
        q_data, metrics = super()._improve_critics(batch, y, here, there)
        self.doubt = self._doubt(q_acted - q_data[:, :GAIN_ROWS])
        return q_data, metrics

    def _doubt(self, gain: Tensor) -> Tensor:
        """How far the members disagree on the policy's ``gain [K, n]`` over the logged actions.

        It is their disagreement times its share of the gain, at most 1. What a state is worth
        cancels in the gain.
        """
        noise, signal = self.std(gain).mean(), gain.mean(0).abs().mean()
        share = noise / signal.clamp_min(torch.finfo(noise.dtype).tiny)
        return noise * share.clamp_max(1)

    def _policy_loss(
        self, batch: Batch, here: Gaussian, a_pi: Tensor, cost: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 7 and cloning."""
        loss, metrics = super()._policy_loss(batch, here, a_pi, cost)
        if self.config.cloning == 0 and self.config.cloning_end == 0:
            return loss, metrics
        distance = functional.mse_loss(torch.tanh(here[0]), batch.actions)
        weight = self.cloning_weight() * self.doubt
        metrics |= {"cloning_loss": distance.detach(), "cloning_weight": weight}
        return loss + weight * distance, metrics

    def cloning_weight(self) -> float:
        """The weight of cloning at this step, in units of doubt."""
        c = self.config
        return c.cloning + (c.cloning_end - c.cloning) * self._progress()

    # ---------------------------------------------------------------- critics in units of the data

    def _build(self) -> None:
        super()._build()
        self.actor.hold_std(self.config.policy_noise)
        if self.config.policy_average:
            self.policy = copy.deepcopy(self.actor).requires_grad_(False)
        self.value_scale = 1.0
        if self.config.value_scale != "auto":  # auto: when prepare() has seen the rewards
            self._scale_values(self.config.value_scale)

    def _make_critics(self, **options: Any) -> Critics:
        return super()._make_critics(layer_norm=True, init="fan-in", **options)

    def prepare(self, data: TrainingData) -> list[str]:
        """Take the scale of values and the floor of the OOD target from the data's rewards."""
        notes = super().prepare(data)
        typical = data.reward_statistics().mean_size / (1 - self.config.gamma)
        if self.config.value_scale == "auto" and typical > 0:
            self._scale_values(typical / 10)
            self._build_optimizers()
        return notes

    def _scale_values(self, scale: float) -> None:
        """Put the last layer of the untrained critics and of their priors in units of ``scale``."""
        networks = [self.critics.main, self.critics.prior, self.targets.main, self.targets.prior]
        with torch.no_grad():
            for network in networks:
                if network is not None:
                    network.head_weight.mul_(scale / self.value_scale)
                    network.head_bias.mul_(scale / self.value_scale)
        self.value_scale = scale

    def _build_optimizers(self) -> None:
        super()._build_optimizers()
        c, critics = self.config, self.critics.main
        last = [critics.head_weight, critics.head_bias]
        hidden = [*critics.weights, *critics.biases]
        # Gradients shrink with the unit of values, those of hidden layers by its square: beside
        # Adam's own epsilon, rewards of 1e-6 taught little.
        unit = min(1.0, self.value_scale)
        self.critics_optimizer = adam(
            [
                {"params": last, "lr": c.critic_lr * self.value_scale, "eps": 1e-8 * unit},
                {"params": hidden, "eps": 1e-8 * unit**2},
            ],
            c.critic_lr,
        )
        self.actor_optimizer = adam(self.actor.parameters(), c.actor_lr, eps=1e-8 * unit)

    # ---------------------------------------------------------------- coming to rest

    def _progress(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return min(1.0, self.step / self.total_steps)

    def _lower_rates(self) -> None:
        c = self.config
        share = 1 + (c.lr_end - 1) * self._progress()
        if c.lr_steps:
            share /= 1 + self.step / c.lr_steps
        last, hidden = self.critics_optimizer.param_groups
        last["lr"] = c.critic_lr * self.value_scale * share
        hidden["lr"] = c.critic_lr * share
        self.actor_optimizer.param_groups[0]["lr"] = c.actor_lr * share

    def _average_policy(self) -> None:
        if self.policy is self.actor:
            return
        # A plain mean at first: the untrained policy does not linger.
        rate = 1 / max(1.0, min(self.step + 1, self.config.policy_average * self.total_steps))
        acting: list[Tensor] = list(self.policy.parameters())
        torch._foreach_lerp_(acting, list(self.actor.parameters()), rate)

    # ---------------------------------------------------------------- going on online

    def relaxed(self, share: float) -> tuple[Any, str]:
        """beta_ood and cloning fall to this share of their present values."""
        config, note = super().relaxed(share)
        cloning = self.cloning_weight()
        config = dataclasses.replace(config, cloning=cloning, cloning_end=cloning * share)
        note = note.removesuffix(".")
        return config, f"{note}, cloning from {cloning:.3g} to {cloning * share:.3g}."

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the policy that acts: a fresh average would begin at the trained one."""
        super().inherit(state)
        self.actor.load_state_dict(self.policy.state_dict())
