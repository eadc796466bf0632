"""PBRL and PBRL-Prior: pessimistic bootstrapping for uncertainty-driven offline RL.

Bai et al., ICLR 2022, https://arxiv.org/abs/2202.11566. Equation numbers are the paper's; the
update below reads like its Algorithm 1. Where we depart from the paper or from the authors' code, a
comment says so; docs/implementation-details.md lists every such place.

Shapes: B rows of a minibatch, S observation and A action dimensions, K critics, N OOD actions.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, adam, require
from pbrl.algorithms.schedules import Adaptive, Constant, LinearThenExponential, Schedule
from pbrl.algorithms.settings import Inside, Positive, Sizes, Tau
from pbrl.data.training_data import Batch, TrainingData
from pbrl.nn.critics import Critics
from pbrl.nn.init import CRITIC_HEAD_BOUND, Init
from pbrl.nn.policy import TanhGaussianPolicy

# Rows of a minibatch on which cloning_unit gain is measured: few, to save time.
GAIN_ROWS = 128


@dataclass(frozen=True)
class PBRLConfig(AlgorithmConfig):
    """Settings of PBRL; every default is the paper's.

    Attributes:
        ensemble_size: K, the number of critics.
        hidden: hidden units of each critic.
        policy_hidden: hidden units of the policy.
        gamma: discount.
        tau: rate of the target critics.
        critic_lr: Adam's rate for the critics.
        actor_lr: Adam's rate for the policy.
        alpha_lr: Adam's rate for the entropy weight.
        beta_in: weight of U in the target of data actions (Eq. 4).
        in_penalty: where that penalty goes: the next Q (the paper), the reward, or both.
        reward_penalty: c of r - c * U(s, a), for in_penalty reward and both.
        n_ood: OOD actions drawn for every state; 0 switches OOD sampling off.
        ood_actions: drawn from the policy (the paper) or uniformly (its theory).
        ood_target: Q - beta_ood * U (Eq. 5), or plainly zero.
        ood_margin: Eq. 5 lowers an OOD action, in each critic, only while its value is not this
            many U below the logged action's at the same state; None: always (the paper).
        ood_floor: lower bound of the OOD target; auto: 0 when the data's rewards are non-negative
            in the main, else the lowest discounted return the data allow; none: no bound.
        ood_next_states: also draw OOD actions at s' (authors' code, not in the paper).
        ood_next_weight: weight of U in the target of that second group.
        beta_ood_schedule: decay: linear then exponential (the paper); constant; adaptive (authors).
        beta_ood: the weight of U for OOD actions with the constant schedule.
        beta_ood_start: at the first step of the other schedules.
        beta_ood_middle: at the end of the linear part.
        beta_ood_end: at the last step.
        beta_ood_linear: the linear part as a fraction of the run.
        std_correction: U divides by K - correction: 0 is Eq. 3, 1 the authors' code.
        actor_objective: the policy follows the min (Eq. 7), mean or max of the critics.
        initial_log_alpha: the entropy weight starts at its exponential.
        target_entropy: alpha is tuned to this entropy; None: -A.
        prior_scale: weight of the random priors (PBRL-Prior: 1); None: no priors.
        prior_init: the priors' last layer starts like a hidden one, or like the critics'
            +-3e-3 (authors' code), which makes priors of next to no effect.
        target_init: target critics start as copies, or separately (authors' code).
        l2: weight of a squared-norm penalty on the critics' weights.
        spectral_norm: hold the spectral norm of this many last layers at 1 (0, 1 or 2).
        pessimistic_init: draw critic weights and biases from Unif(-0.2, 0) (small) or
            Unif(-1, 0) (large).
        pessimistic_init_layers: which layers that concerns. With all, the second layer's ReLUs
            are dead from the start and Q is a constant.
        layer_norm: normalise the critics' hidden activations (not in the paper).
        critic_init: how the critics' hidden layers start: rlkit (paper), fan-in or torch; see
            ``pbrl.nn.init``.
        cloning: weight, in the policy's loss and at the first step, of the squared distance between
            its mean action and the logged one, in units of Q (not in the paper); it moves linearly
            to
        cloning_end: its weight at the last step.
        cloning_unit: the unit: the mean size of Q over the batch, as in TD3+BC; or gain, the
            critics' disagreement on what the policy's action is worth more than the logged one,
            times its share of that difference (at most 1): the less they agree on what the policy
            gains, the nearer it stays to the data.
        value_scale: the critics' last layer starts and learns, and their priors' is, in units of
            this value, auto: a tenth of the mean size of a reward over 1 - gamma (not in the
            paper). Adam moves each weight by about its rate a step, whatever the size of Q:
            values of hundreds are thousands of steps away.
        lr_end: the rates of critics and policy fall linearly to this share of themselves at the
            last step (not in the paper).
        lr_steps: above 0, they also fall as 1 / (1 + step / lr_steps): a long run spends less of
            its time at rates that suit a short one (not in the paper).
        policy_noise: above 0, the policy is deterministic as TD3's: it follows Q at its own action,
            without an entropy term, and where an action is drawn from it (Eqs. 4 and 5) normal
            noise of this deviation, clipped at 2.5 of them, is added (not in the paper).
        policy_average: the policy that acts is an exponential average of the trained one's weights
            over this share of the run (not in the paper); 0: the trained policy itself acts.
    """

    ensemble_size: int = 10
    hidden: Sizes = (256, 256, 256)
    policy_hidden: Sizes = (256, 256, 256)
    gamma: Inside = 0.99
    tau: Tau = 0.005
    critic_lr: Positive = 3e-4
    actor_lr: Positive = 1e-4
    alpha_lr: Positive = 1e-4
    beta_in: float = 0.01
    in_penalty: Literal["next_q", "reward", "both"] = "next_q"
    reward_penalty: float = 1.0
    n_ood: int = 10
    ood_actions: Literal["policy", "uniform"] = "policy"
    ood_target: Literal["pessimistic", "zero"] = "pessimistic"
    ood_margin: float | None = None
    ood_floor: float | Literal["auto", "none"] = "auto"
    ood_next_states: bool = False
    ood_next_weight: float = 0.1
    beta_ood_schedule: Literal["decay", "constant", "adaptive"] = "decay"
    beta_ood: float = 1.0
    beta_ood_start: float = 5.0
    beta_ood_middle: float = 1.0
    beta_ood_end: float = 0.2
    beta_ood_linear: float = 0.05
    std_correction: Literal[0, 1] = 0
    actor_objective: Literal["min", "mean", "max"] = "min"
    initial_log_alpha: float = 0.0
    target_entropy: float | None = None
    prior_scale: float | None = None
    prior_init: Literal["hidden", "critic"] = "hidden"
    target_init: Literal["copy", "separate"] = "copy"
    l2: float = 0.0
    spectral_norm: Literal[0, 1, 2] = 0
    pessimistic_init: Literal["none", "small", "large"] = "none"
    pessimistic_init_layers: Literal["last", "all"] = "last"
    layer_norm: bool = False
    critic_init: Init = "rlkit"
    cloning: float = 0.0
    cloning_end: float = 0.0
    cloning_unit: Literal["size", "gain"] = "size"
    value_scale: float | Literal["auto"] = 1.0
    lr_end: float = 1.0
    lr_steps: int = 0
    policy_noise: float = 0.0
    policy_average: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ensemble_size >= 2, "ensemble_size must be at least 2 for a disagreement")
        require(self.n_ood >= 0, f"n_ood must not be negative, got {self.n_ood}")
        for weight in (
            "beta_in",
            "beta_ood",
            "l2",
            "reward_penalty",
            "ood_next_weight",
            "cloning",
            "cloning_end",
            "lr_steps",
        ):
            require(getattr(self, weight) >= 0, f"{weight} must not be negative")
        for weight in ("beta_ood_start", "beta_ood_middle", "beta_ood_end"):
            require(getattr(self, weight) > 0, f"{weight} must be positive")
        require(
            self.policy_noise == 0 or 0.01 <= self.policy_noise <= 1,
            f"policy_noise must be 0 or lie between 0.01 and 1, got {self.policy_noise}",
        )
        require(
            self.value_scale == "auto" or self.value_scale > 0,
            f"value_scale must be positive or auto, got {self.value_scale}",
        )
        for share in ("beta_ood_linear", "policy_average", "lr_end"):
            require(0 <= getattr(self, share) <= 1, f"{share} is a fraction between 0 and 1")
        if self.ood_margin is not None:
            require(self.ood_margin >= 0, "ood_margin must not be negative")
            require(
                not self.ood_next_states,
                "ood_margin compares with the logged action of a state, and s' has none: "
                "switch ood_next_states off, or set ood_margin to None",
            )


class PBRL(Algorithm):
    """Pessimistic bootstrapping: K critics, their disagreement U, and OOD sampling."""

    name = "pbrl"
    Config = PBRLConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "adroit": {"beta_in": 1e-4, "beta_ood_schedule": "constant", "beta_ood": 0.01},
        # What it reaches, and how it was found: docs/hour.md, results/time_to_score.
        "fast": {
            # About half the time of ten critics and two draws.
            "ensemble_size": 5,
            "n_ood": 1,
            "hidden": (256, 256),
            "policy_hidden": (256, 256),
            # Critics that can tell actions apart after thousands of steps, not hundreds of them.
            "normalize_observations": True,
            "critic_init": "fan-in",
            "layer_norm": True,
            # Q of hundreds is a matter of hundreds of steps, not of thousands, and so is its way
            # back along an episode.
            "value_scale": "auto",
            "tau": 0.03,
            "critic_lr": 1e-3,
            "actor_lr": 1e-3,
            # A policy that narrows leaves critics blind to actions beside its own.
            "policy_noise": 0.2,
            # beta_ood * U comes off every step's value: U is larger in short runs, so beta_ood is
            # smaller.
            "beta_ood_start": 0.3,
            "beta_ood_middle": 0.15,
            "beta_ood_end": 0.05,
            # Beside narrow data nothing else stops it, and targets drawn there bring Q down.
            "ood_margin": 1.0,
            # Critics of a few thousand steps cannot hold the policy at the data alone; how far they
            # agree on what its actions gain says how much help they need.
            "cloning": 100.0,
            "cloning_end": 100.0,
            "cloning_unit": "gain",
            # The trained policy jitters; falling rates and an average steady it. In long runs at
            # these rates the critics drift apart.
            "lr_end": 0.05,
            "lr_steps": 50_000,
            "policy_average": 0.1,
        },
        "demo": {
            "n_ood": 2,
            "hidden": (64, 64),
            "policy_hidden": (64, 64),
            "batch_size": 128,
            "gamma": 0.98,
            "tau": 0.01,
            "critic_lr": 3e-3,
            "actor_lr": 3e-4,
            "alpha_lr": 1e-3,
        },
    }
    config: PBRLConfig

    # ---------------------------------------------------------------- construction

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        self.actor = TanhGaussianPolicy(s, a, c.policy_hidden, generator=self.init_generator)
        if c.policy_noise:
            self.actor.hold_std(c.policy_noise)
        self.policy = self.actor  # the one that acts
        if c.policy_average:
            self.policy = copy.deepcopy(self.actor).requires_grad_(False)
        self.critics = self._make_critics()
        if c.target_init == "copy":
            self.targets = copy.deepcopy(self.critics)
        else:
            self.targets = self._make_critics()
            self.targets.prior = self.critics.prior
        self.targets.requires_grad_(False)
        self.value_scale = 1.0
        if c.value_scale != "auto":  # auto: when prepare() has seen the rewards
            self._scale_values(c.value_scale)
        self.log_alpha = nn.Parameter(torch.tensor(c.initial_log_alpha, device=self.device))
        self.target_entropy = -a if c.target_entropy is None else c.target_entropy
        self.floor: float | None = None
        if c.ood_floor != "none":  # auto: zero until prepare() has seen the rewards
            self.floor = 0.0 if c.ood_floor == "auto" else c.ood_floor
        self.schedule = self._make_schedule()
        self.std_correction = c.std_correction

    def _make_critics(self) -> Critics:
        c = self.config
        critics = Critics(
            c.ensemble_size,
            self.observation_dim,
            self.action_dim,
            c.hidden,
            prior_scale=c.prior_scale,
            prior_head_bound=None if c.prior_init == "hidden" else CRITIC_HEAD_BOUND,
            layer_norm=c.layer_norm,
            init=c.critic_init,
            spectral_norm=range(-c.spectral_norm, 0),
            generator=self.init_generator,
        )
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

    def _make_schedule(self) -> Schedule:
        c, total = self.config, self.total_steps
        linear = round(c.beta_ood_linear * total)
        if c.beta_ood_schedule == "constant":
            return Constant(c.beta_ood)
        if c.beta_ood_schedule == "adaptive":
            interval = max(1, total // 1000)
            return Adaptive(c.beta_ood_start, c.beta_ood_middle, c.beta_ood_end, linear, interval)
        return LinearThenExponential(
            c.beta_ood_start, c.beta_ood_middle, c.beta_ood_end, linear, total
        )

    def _build_optimizers(self) -> None:
        c = self.config
        head = [self.critics.main.head_weight, self.critics.main.head_bias]
        hidden = [*self.critics.main.weights, *self.critics.main.biases]
        # Gradients shrink with the unit of values, those of hidden layers by its square: beside
        # Adam's own epsilon, rewards of 1e-6 taught little.
        unit = min(1.0, self.value_scale)
        self.critics_optimizer = adam(
            [
                {"params": head, "lr": c.critic_lr * self.value_scale, "eps": 1e-8 * unit},
                {"params": hidden, "eps": 1e-8 * unit**2},
            ],
            c.critic_lr,
        )
        self.actor_optimizer = adam(self.actor.parameters(), c.actor_lr, eps=1e-8 * unit)
        self.alpha_optimizer = adam([self.log_alpha], c.alpha_lr)

    def _scale_values(self, scale: float) -> None:
        """Put the last layer of the untrained critics and of their priors in units of ``scale``."""
        networks = [self.critics.main, self.critics.prior, self.targets.main, self.targets.prior]
        with torch.no_grad():
            for network in dict.fromkeys(networks):  # targets may share the priors
                if network is not None:
                    network.head_weight.mul_(scale / self.value_scale)
                    network.head_bias.mul_(scale / self.value_scale)
        self.value_scale = scale

    def prepare(self, data: TrainingData) -> list[str]:
        """Take the scale of values and the floor of the OOD target (A4) from the data's rewards."""
        notes = super().prepare(data)
        if self.config.value_scale == "auto":
            typical = data.reward_statistics().mean_size / (1 - self.config.gamma)
            if typical > 0:
                self._scale_values(typical / 10)
                self._build_optimizers()
        if self.config.ood_floor != "auto" or self.config.n_ood == 0:
            return notes
        rewards = data.reward_statistics()
        share = rewards.share_not_negative
        if share >= 0.5 and rewards.mean >= 0:
            self.floor = 0.0
            why = f"{share:.0%} of the rewards are not negative"
        else:
            self.floor = min(0.0, rewards.low) / (1 - self.config.gamma)
            why = (
                f"only {share:.0%} of the rewards are not negative, and a floor of 0 would "
                "make unseen actions attractive"
            )
        return [*notes, f"OOD targets are floored at {self.floor:.6g} ({why}); set ood_floor."]

    # ---------------------------------------------------------------- Algorithm 1

    def std(self, q: Tensor) -> Tensor:
        """U = Std over the ensemble (Eq. 3), ``[K, n] -> [n]``."""
        return q.std(0, correction=self.std_correction)

    def cloning_weight(self) -> float:
        """The weight of cloning at this step."""
        c = self.config
        return c.cloning + (c.cloning_end - c.cloning) * self.progress()

    def progress(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return min(1.0, self.step / self.total_steps)

    def _lower_rates(self) -> None:
        """Learning rates of this step; alpha's stays."""
        c = self.config
        share = 1 + (c.lr_end - 1) * self.progress()
        if c.lr_steps:
            share /= 1 + self.step / c.lr_steps
        head, hidden = self.critics_optimizer.param_groups
        head["lr"] = c.critic_lr * self.value_scale * share
        hidden["lr"] = c.critic_lr * share
        self.actor_optimizer.param_groups[0]["lr"] = c.actor_lr * share

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]
        size = len(s)
        if c.lr_end != 1 or c.lr_steps:
            self._lower_rates()

        # The policy's trunk runs once on s and once on s'; all actions come from these outputs.
        mean, log_std = self.actor(s)
        a_pi, bonus = torch.tanh(mean), mean.new_zeros(())  # [B, A], and no entropy: policy_noise
        metrics: dict[str, Tensor] = {}
        if not c.policy_noise:
            u = self.actor.sample(mean, log_std, self.generator)
            a_pi, log_pi = torch.tanh(u), self.actor.log_prob(mean, log_std, u)  # [B, A] [B]
            # Entropy weight, tuned to the target entropy.
            gap = (log_pi + self.target_entropy).detach()
            alpha_loss = -(self.log_alpha * gap).mean()
            self.alpha_optimizer.zero_grad()
            alpha_loss.backward()
            self.alpha_optimizer.step()
            alpha = self.log_alpha.detach().exp()
            bonus = -alpha * log_pi  # [B]
            metrics |= {"alpha_loss": alpha_loss.detach(), "alpha": alpha}
            metrics["entropy"] = -log_pi.detach().mean()
        with torch.no_grad():
            mean2, log_std2 = self.actor(s2)
            a2 = self._draw(mean2, log_std2)

        # Eq. 4: in-distribution targets; each member bootstraps from its own target network.
        # The paper prints pi(.|s) for a'; it must be, and is in the authors' code, pi(.|s').
        q2 = self.targets.values(s2, a2)  # [K, B]
        if c.in_penalty in ("next_q", "both"):
            q2 = q2 - c.beta_in * self.std(q2)
        if c.in_penalty in ("reward", "both"):
            r = r - c.reward_penalty * self.std(self.critics.values(s, a))
        y = r + c.gamma * (1 - terminal) * q2  # [K, B]

        # Eq. 6: both squared errors, averaged over rows and summed over members. Data and OOD rows
        # go through the critics as one matrix, data first.
        s_all, a_all, beta = s, a, torch.empty(0, device=s.device)
        if c.n_ood:
            s_ood, a_ood, beta = self._ood_rows(
                s, mean.detach(), log_std.detach(), s2, mean2, log_std2
            )
            s_all, a_all = torch.cat([s, s_ood]), torch.cat([a, a_ood])
        q_all = y.new_empty(c.ensemble_size, len(s_all))  # [K, B + M]

        def logged(ood: slice) -> Tensor | None:
            """Q of the logged action at the state of each OOD row, ``[K, n]``, for ood_margin."""
            if c.ood_margin is None:
                return None
            return q_all[:, torch.arange(ood.start, ood.stop, device=s.device) % size]

        def squared_error(q: Tensor, rows: slice) -> Tensor:
            q_all[:, rows] = q.detach()
            data = max(0, min(rows.stop, size) - rows.start)  # rows of this chunk from the data
            loss = (q[:, :data] - y[:, rows][:, :data]).square().sum() / size
            if data < q.shape[1]:
                ood = slice(rows.start + data - size, rows.stop - size)
                target = self._ood_target(q[:, data:].detach(), beta[ood], logged(ood))
                loss = loss + (q[:, data:] - target).square().sum() / len(beta)
            return loss

        cloned = c.cloning > 0 or c.cloning_end > 0
        if cloned and c.cloning_unit == "gain":  # ours, for the policy's loss below
            q_acted = self.critics.values(s[:GAIN_ROWS], torch.tanh(mean.detach()[:GAIN_ROWS]))
        self.critics_optimizer.zero_grad()
        self.critics.regress(s_all, a_all, squared_error)
        q_data, q_ood = q_all[:, :size], q_all[:, size:]
        metrics |= {
            "td_loss": (q_data - y).square().mean(),
            "q_batch": q_data.mean(),
            "u_batch": self.std(q_data).mean(),
        }
        if c.n_ood:
            sampled = q_ood[:, : c.n_ood * size]  # those at s
            ood_target = self._ood_target(q_ood, beta, logged(slice(0, len(beta))))
            metrics |= {
                "ood_loss": (q_ood - ood_target).square().mean(),
                "beta_ood": beta[0],
                "q_ood": sampled.mean(),
                "u_ood": self.std(sampled).mean(),
            }
            self.schedule.record(self.step, metrics["q_ood"])
        if c.l2:
            matrices = [*self.critics.main.weights, self.critics.main.head_weight]
            torch._foreach_add_([w.grad for w in matrices], matrices, alpha=2 * c.l2)
        self.critics_optimizer.step()
        if c.spectral_norm:
            self.critics.main.update_spectral_norm()

        # Eq. 7: the policy follows the updated critics with the action drawn before their step.
        if c.actor_objective == "mean":
            q_pi = self.critics(s, a_pi, frozen=True).mean(0)
        else:
            q_pi = self.critics.extreme(s, a_pi, largest=c.actor_objective == "max")
        actor_loss = -(bonus + q_pi).mean()
        if cloned:  # ours: the policy stays near the data while Q is young
            distance = functional.mse_loss(torch.tanh(mean), a)
            unit = q_pi.detach().abs().mean()
            if c.cloning_unit == "gain":  # disagreement times its share; a state's value cancels
                gain = q_acted - q_data[:, :GAIN_ROWS]  # [K, n]
                noise, signal = self.std(gain).mean(), gain.mean(0).abs().mean()
                share = noise / signal.clamp_min(torch.finfo(noise.dtype).tiny)
                unit = noise * share.clamp_max(1)
            weight = self.cloning_weight() * unit
            actor_loss = actor_loss + weight * distance
            metrics |= {"cloning_loss": distance.detach(), "cloning_weight": weight}
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        self.targets.move_towards(self.critics, c.tau)
        if c.policy_average:
            # A plain mean at first: the untrained policy does not linger.
            rate = 1 / max(1.0, min(self.step + 1, c.policy_average * self.total_steps))
            torch._foreach_lerp_(
                list(self.policy.parameters()), list(self.actor.parameters()), rate
            )
        return metrics | {"actor_loss": actor_loss.detach()}

    def _ood_rows(
        self,
        s: Tensor,
        mean: Tensor,
        log_std: Tensor,
        s2: Tensor,
        mean2: Tensor,
        log_std2: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """States, actions and beta_ood of the M OOD rows, ``[M, S] [M, A] [M]``."""
        c, n = self.config, self.config.n_ood
        states, actions, weights = [s], [self._draw_ood(mean, log_std)], [self.schedule(self.step)]
        if c.ood_next_states:  # the authors' second group: same number of actions, at s'
            states.append(s2)
            actions.append(self._draw_ood(mean2, log_std2))
            weights.append(c.ood_next_weight)
        beta = torch.cat([s.new_full((n * len(s),), weight) for weight in weights])
        return torch.cat([x.repeat(n, 1) for x in states]), torch.cat(actions), beta

    def _ood_target(self, q: Tensor, beta: Tensor, logged: Tensor | None) -> Tensor:
        """Eq. 5 for the values ``[K, n]`` of OOD rows with weights ``beta [n]``.

        Eq. 5 goes on lowering an action however low it is. Given the values ``[K, n]`` of
        ``logged`` actions at the same states, it stops ood_margin U below them.
        """
        if self.config.ood_target == "zero":
            return torch.zeros_like(q)
        u = self.std(q)
        target = q - beta * u
        if logged is not None and self.config.ood_margin is not None:
            target = torch.where(q > logged - self.config.ood_margin * u, target, q)
        return target if self.floor is None else target.clamp_min(self.floor)

    @torch.no_grad()
    def _draw_ood(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """N actions for every row of ``mean [B, A]``, without gradient, ``[N * B, A]``."""
        mean, log_std = mean.repeat(self.config.n_ood, 1), log_std.repeat(self.config.n_ood, 1)
        if self.config.ood_actions == "uniform":
            return torch.empty_like(mean).uniform_(-1, 1, generator=self.generator)
        return self._draw(mean, log_std)

    def _draw(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Actions of the policy, ``[n, A]``."""
        if not self.config.policy_noise:
            return torch.tanh(self.actor.sample(mean, log_std, self.generator))
        std = log_std.exp()
        noise = torch.empty_like(mean).normal_(generator=self.generator).clamp_(-2.5, 2.5)
        return (torch.tanh(mean) + std * noise).clamp(-1, 1)

    # ---------------------------------------------------------------- state

    def networks(self) -> dict[str, nn.Module]:
        """Policy (and the trained one, if another), critics, targets and the entropy weight."""
        alpha = nn.ParameterDict({"log_alpha": self.log_alpha})
        networks: dict[str, nn.Module] = {
            "policy": self.policy,
            "critics": self.critics,
            "targets": self.targets,
            "alpha": alpha,
        }
        return networks if self.policy is self.actor else networks | {"actor": self.actor}

    def optimizers(self) -> dict[str, Optimizer]:
        """One optimiser each for critics, policy and entropy weight."""
        return {
            "critics": self.critics_optimizer,
            "actor": self.actor_optimizer,
            "alpha": self.alpha_optimizer,
        }

    def relaxed(self, share: float) -> tuple[PBRLConfig, str]:
        """beta_ood, and cloning, fall to this share of their present values."""
        last, cloning = self.schedule(self.step), self.cloning_weight()
        config = dataclasses.replace(
            self.config,
            beta_ood_schedule="decay",
            beta_ood_start=last,
            beta_ood_middle=last,
            beta_ood_end=last * share,
            beta_ood_linear=0.0,
            cloning=cloning,
            cloning_end=cloning * share,
        )
        note = f"Pessimism: beta_ood falls from {last:.3g} to {last * share:.3g}"
        if cloning:
            note += f", cloning from {cloning:.3g} to {cloning * share:.3g}"
        return config, f"{note}."

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the policy that acts: a fresh average would begin at the trained one."""
        schedule = self.extra_state()
        super().inherit(state)
        self.load_extra_state(schedule)
        self.actor.load_state_dict(self.policy.state_dict())

    def extra_state(self) -> dict[str, Tensor]:
        """State of the beta_ood schedule."""
        return self.schedule.state()

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of ``extra_state``."""
        self.schedule.load(state)


@dataclass(frozen=True)
class PBRLPriorConfig(PBRLConfig):
    """Settings of PBRL-Prior: PBRL with random priors of weight 1 (Eq. 8)."""

    prior_scale: float | None = 1.0


class PBRLPrior(PBRL):
    """PBRL whose critics carry fixed random prior networks."""

    name = "pbrl-prior"
    Config = PBRLPriorConfig
