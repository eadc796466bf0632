"""MOPO: SAC on rollouts of a learned model, with rewards lowered where the model is unsure.

Yu et al., NeurIPS 2020, https://arxiv.org/abs/2005.13239. The run has two phases: the first updates
train the dynamics ensemble (``dynamics.py``) until it stops improving on held-out rows; then every
update is a step of SAC (``sac.py``) on a batch of few real and many imagined transitions, whose
reward is r - lambda * u(s, a). Both phases are saved and resumed like everything else.

Shapes: B rows of a minibatch, S observation and A action dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pbrl.algorithms.base import Algorithm, AlgorithmConfig, Parts, require
from pbrl.algorithms.dynamics import DynamicsModel, DynamicsTrainer, TrainerSettings
from pbrl.algorithms.sac import SAC, SACConfig
from pbrl.algorithms.settings import Count, Inside, NotNegative, Positive, Share, Sizes, Tau
from pbrl.algorithms.termination import Termination, TerminationName, choose_termination
from pbrl.data.replay import ReplayBuffer
from pbrl.data.training_data import Batch, TrainingData
from pbrl.errors import PbrlError


@dataclass(frozen=True)
class MOPOConfig(AlgorithmConfig):
    """Settings of MOPO; defaults are the authors' where they are the same for all tasks."""

    penalty: NotNegative = 1.0
    """lambda, the weight of the model's uncertainty in imagined rewards."""
    rollout_length: Count = 5
    """h, imagined steps from each real state."""
    rollout_batch: Count = 50_000
    """Real states that rollouts start from."""
    rollout_interval: Count = 1000
    """Updates between two generations of rollouts."""
    rollout_retain: Count = 5
    """Generations of rollouts kept."""
    real_ratio: Share = 0.05
    """Share of real rows in a batch."""
    termination: TerminationName = "auto"
    """When imagined episodes end; auto: by the data's environment."""
    members: int = 7
    """Networks of the dynamics model."""
    elites: Count = 5
    """The best of them, which imagine."""
    model_hidden: Sizes = (200, 200, 200, 200)
    """Hidden units of each."""
    model_lr: Positive = 1e-3
    """Adam's rate for the model."""
    model_batch_size: Count = 256
    """Rows of a minibatch of each member."""
    model_weight_decay: tuple[NotNegative, ...] = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    """Of the model's layers, first to last."""
    model_fraction: Inside = 0.3
    """At most this share of the run's updates trains the model."""
    holdout_fraction: Inside = 0.2
    """Share of the rows held out to judge the model."""
    holdout_rows: Count = 1000
    """At most this many."""
    patience: Count = 5
    """Epochs without improvement before the model's training ends."""
    hidden: Sizes = (256, 256)
    """Hidden units of each critic."""
    policy_hidden: Sizes = (256, 256)
    """Hidden units of the policy."""
    gamma: Inside = 0.99
    """Discount."""
    tau: Tau = 0.005
    """Rate of the target critics."""
    critic_lr: Positive = 3e-4
    """Adam's rate for the critics."""
    actor_lr: Positive = 3e-4
    """Adam's rate for the policy."""
    alpha_lr: Positive = 3e-4
    """Adam's rate for the entropy weight."""
    initial_log_alpha: float = 0.0
    """The entropy weight starts at its exponential."""
    target_entropy: float | None = -3.0
    """The authors use -3 for every task; None: -A."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sac()  # refuses bad values of the fields they share
        require(
            self.elites <= self.members,
            f"elites must lie between 1 and members, got {self.elites} of {self.members}",
        )

    def sac(self) -> SACConfig:
        """The settings of the SAC inside."""
        names = ("batch_size", "hidden", "policy_hidden", "gamma", "tau", "target_entropy")
        rates = ("critic_lr", "actor_lr", "alpha_lr", "initial_log_alpha")
        return SACConfig(**{name: getattr(self, name) for name in (*names, *rates)})


# The authors' (h, lambda), tuned on the v0 datasets; they have none for expert data or Adroit.
_ROLLOUTS = {
    "halfcheetah-random": (5, 0.5),
    "halfcheetah-medium": (1, 1.0),
    "halfcheetah-medium-replay": (5, 1.0),
    "halfcheetah-medium-expert": (5, 5.0),
    "hopper-random": (5, 1.0),
    "hopper-medium": (5, 5.0),
    "hopper-medium-replay": (5, 1.0),
    "hopper-medium-expert": (5, 1.0),
    "walker2d-random": (1, 1.0),
    "walker2d-medium": (5, 5.0),
    "walker2d-medium-replay": (1, 1.0),
    "walker2d-medium-expert": (1, 2.0),
}


class MOPO(Algorithm):
    """Model-based offline policy optimisation."""

    name = "mopo"
    Config = MOPOConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "fast": {"rollout_batch": 10_000},
        "demo": {
            "model_hidden": (64, 64),
            "rollout_batch": 2_000,
            "rollout_interval": 100,
            "hidden": (64, 64),
            "policy_hidden": (64, 64),
            "critic_lr": 1e-3,
            "actor_lr": 1e-3,
            "alpha_lr": 1e-3,
        },
    }
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "paper": {
            name: {"rollout_length": length, "penalty": penalty}
            for name, (length, penalty) in _ROLLOUTS.items()
        }
    }
    config: MOPOConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Set by the user before prepare(), or by prepare() from the settings.
        self.termination_function: Termination | None = None
        super().__init__(*args, **kwargs)

    # ---------------------------------------------------------------- construction

    def _build(self) -> None:
        c, s, a = self.config, self.observation_dim, self.action_dim
        # SAC as it is, with our generators so that they are saved with the run.
        self.sac = SAC(c.sac(), seed=self.seed, device=self.device)
        self.sac.init_generator, self.sac.generator = self.init_generator, self.generator
        self.sac.build(s, a)
        self.model = DynamicsModel(
            c.members, c.elites, s, a, c.model_hidden, generator=self.init_generator
        ).to(self.device)
        settings = TrainerSettings(
            batch_size=c.model_batch_size,
            lr=c.model_lr,
            weight_decay=c.model_weight_decay,
            holdout_fraction=c.holdout_fraction,
            holdout_rows=c.holdout_rows,
            patience=c.patience,
            max_updates=max(1, round(c.model_fraction * self.total_steps)),
        )
        self.trainer = DynamicsTrainer(self.model, settings, self.generator, self.seed)
        capacity = c.rollout_batch * c.rollout_length * c.rollout_retain
        self.buffer = ReplayBuffer(capacity, s, a, self.device)  # the newest imagined transitions
        self.policy_updates = 0
        self.data: TrainingData | None = None

    def _build_optimizers(self) -> None:
        self.trainer.build_optimizer()

    def prepare(self, data: TrainingData) -> list[str]:
        """Keep the data for the model, and settle when imagined episodes end."""
        notes = super().prepare(data)
        dataset, c = data.dataset, self.config
        if self.termination_function is None:
            self.termination_function, note = choose_termination(
                c.termination,
                dataset.info.env_id,
                dataset.observation_dim,
                bool(dataset.terminals.any()),
            )
            notes.append(note)
        self.data = data
        self.trainer.attach(data)
        maps = data.preprocessing
        self.shift = torch.from_numpy(maps.observation_shift).to(self.device)
        self.scale = torch.from_numpy(maps.observation_scale).to(self.device)
        used = len(self.trainer.rows) + len(self.trainer.holdout[0])
        if used < len(data):
            notes.append(
                f"{len(data) - used} terminal rows do not say what followed them and are left out "
                "of the dynamics model (next_observations = file uses the file's own)."
            )
        most = self.trainer.settings.max_updates
        notes.append(
            f"Up to {most:,} of the run's updates train the dynamics model (model_fraction); "
            "the policy learns after that."
        )
        return notes

    # ---------------------------------------------------------------- the update

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        if self.data is None:
            raise PbrlError("mopo learns a model of the data: call prepare(data) before update.")
        if not self.trainer.finished:
            return self.trainer.step()
        c = self.config
        metrics = {}
        if c.real_ratio < 1 and self.policy_updates % c.rollout_interval == 0:
            metrics = self.roll_out()
        self.policy_updates += 1
        return metrics | self.sac.update(self._mixed(batch))

    def _mixed(self, batch: Batch) -> Batch:
        """The first few rows of ``batch`` and imagined ones in place of the others."""
        size = len(batch.rewards)
        real = int(size * self.config.real_ratio)
        if real == size:
            return batch
        imagined = self.buffer.sample(size - real, self.generator)
        return Batch(
            *(torch.cat([x[:real], y]) for x, y in zip(batch, imagined, strict=True)),
        )

    @torch.no_grad()
    def roll_out(self) -> dict[str, Tensor]:
        """Imagine h steps of the policy from real states and keep them."""
        c = self.config
        assert self.data is not None
        assert self.termination_function is not None
        s = self.data.sample(c.rollout_batch, self.generator).observations
        penalties, ended = [], []
        for _ in range(c.rollout_length):
            a = self.sac.act(s, deterministic=False, generator=self.generator)
            s2, r, penalty = self.model.imagine(s, a, self.generator)
            terminal = self.termination_function(s2 * self.scale + self.shift)  # raw units
            self.buffer.add(Batch(s, a, r - c.penalty * penalty, s2, terminal.to(s.dtype)))
            penalties.append(penalty.mean())
            ended.append(terminal.to(s.dtype).mean())
            s = s2[~terminal]
            if len(s) == 0:
                break
        return {
            "rollout_penalty": torch.stack(penalties).mean(),
            "rollout_terminals": torch.stack(ended).mean(),
        }

    # ---------------------------------------------------------------- policy and judgement

    def act(
        self,
        observations: Tensor,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """SAC's action, ``[B, S] -> [B, A]``."""
        return self.sac.act(observations, deterministic, generator)

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q of both critics, ``[2, B]``; their deviation is ``uncertainty``."""
        return self.sac.q_values(observations, actions)

    def parts(self) -> Parts:
        """SAC's."""
        return self.sac.parts()

    def model_uncertainty(self, observations: Tensor, actions: Tensor) -> Tensor:
        """u(s, a), the uncertainty MOPO itself is wary of: the model's, ``[B]``."""
        return self.model.penalty(observations, actions)

    def diagnostics(self, batch: Batch) -> dict[str, Tensor]:
        """As for all algorithms, and the model's uncertainty."""
        out = super().diagnostics(batch)
        s = batch.observations
        out["model_u_data"] = self.model_uncertainty(s, batch.actions).mean()
        out["model_u_policy"] = self.model_uncertainty(s, self.act(s)).mean()
        return out

    # ---------------------------------------------------------------- state

    def networks(self) -> dict[str, nn.Module]:
        """SAC's networks, the model, and each member's best weights while it is trained."""
        return {**self.sac.networks(), "model": self.model, "model_best": self.trainer.best}

    def optimizers(self) -> dict[str, Optimizer]:
        """SAC's optimisers and the model's."""
        return {**self.sac.optimizers(), "model": self.trainer.optimizer}

    def extra_state(self) -> dict[str, Tensor]:
        """Progress of the model, the policy's updates and the imagined transitions."""
        return {
            **super().extra_state(),
            "rollouts": self.buffer.held(),
            "rollouts_next": torch.tensor(self.buffer.total % self.buffer.capacity),
            "policy_updates": torch.tensor(self.policy_updates),
        }

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of ``extra_state``."""
        super().load_extra_state(state)
        rows, place = state["rollouts"], int(state["rollouts_next"])
        # A full ring says where its next row goes, not how often it went round.
        full = len(rows) == self.buffer.capacity
        self.buffer.restore(rows, len(rows) + place if full else len(rows))
        self.policy_updates = int(state["policy_updates"])
