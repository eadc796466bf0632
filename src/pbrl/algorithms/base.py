"""What every algorithm is: a config, an update, a policy and a state that can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pbrl.algorithms.settings import AlgorithmConfig, require, require_memory
from pbrl.data.training_data import Batch, TrainingData
from pbrl.errors import PbrlError
from pbrl.nn.adam import Adam
from pbrl.nn.critics import Critics
from pbrl.nn.generators import restore

__all__ = ["Algorithm", "AlgorithmConfig", "Parts", "adam", "descend", "require"]


@dataclass(frozen=True)
class Parts:
    """What acts and judges once training is over; enough to write a policy down elsewhere.

    Attributes:
        policy: the network of the policy.
        critics: the critics; None where there are none.
        candidate_noise: ``[n, 1, A]`` where the policy takes the best of its draws by the first
            critic (BEAR, UWAC), the noise of these draws; None where it takes its mode.
        dropout_passes: passes with fixed dropout masks whose variance is U (UWAC); 0 where U is the
            deviation over the critics.
    """

    policy: nn.Module
    critics: Critics | None
    candidate_noise: Tensor | None = None
    dropout_passes: int = 0


@runtime_checkable
class Stateful(Protocol):
    """A part of an algorithm with a state besides weights: a schedule, a trainer of models."""

    def state(self) -> dict[str, Tensor]:
        """What it takes to go on, as tensors."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of ``state``, which may hold other parts' tensors as well."""


class Algorithm:
    """An offline RL algorithm.

    Subclasses name their ``Config``, make their networks in ``_build``, their optimisers in
    ``_build_optimizers`` and learn in ``_update``. Networks and optimisers are saved under the
    names of the attributes that hold them: ``self.targets`` as "targets", ``self.actor_optimizer``
    as "actor".

    Args:
        config: the settings; defaults when omitted.
        observation_dim: S. When S and A are omitted, the first batch or dataset tells them.
        action_dim: A.
        seed: of the initial weights and of every random draw of the updates.
        device: where the networks live.
        total_steps: length of the run, for schedules.
    """

    name: ClassVar[str]
    Config: ClassVar[type[AlgorithmConfig]]
    # Overrides of this config's fields, or of the run's, by preset name.
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {}}
    # More overrides of a preset by the beginning of a dataset's name; the longest wins.
    presets_by_dataset: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    # A sentence for those who choose a preset.
    preset_notes: ClassVar[dict[str, str]] = {}
    # Whether observations are standardised unless the user says otherwise.
    normalize_observations: ClassVar[bool] = False
    # Whether q_values() and uncertainty() exist.
    has_critics: ClassVar[bool] = True
    # U divides by the number of critics less this (0 is Eq. 3).
    std_correction: int = 0
    policy: Any  # made in _build
    critics: Critics  # made in _build, where has_critics

    def __init__(
        self,
        config: Any = None,
        observation_dim: int | None = None,
        action_dim: int | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        total_steps: int = 1_000_000,
    ) -> None:
        config = self.Config() if config is None else config
        if not isinstance(config, self.Config):
            raise PbrlError(
                f"{type(self).__name__} takes a {self.Config.__name__}, "
                f"got a {type(config).__name__}."
            )
        self.config: Any = config
        self.seed = seed
        self.device = torch.device(device)
        self.total_steps = total_steps
        self.step = 0
        # Weights come from a CPU generator, so that they are the same on every device.
        self.init_generator = torch.Generator().manual_seed(seed)
        self.generator = torch.Generator(self.device).manual_seed(seed + 1_000_003)
        self.built = False
        if observation_dim is not None and action_dim is not None:
            self.build(observation_dim, action_dim)

    def build(self, observation_dim: int, action_dim: int) -> None:
        """Make the networks for these sizes; does nothing the second time."""
        if self.built:
            return
        require_memory(self.config, observation_dim)
        self.observation_dim, self.action_dim = observation_dim, action_dim
        self._build()
        for network in self.networks().values():
            network.to(self.device)
        self._build_optimizers()
        self.built = True

    # ------------------------------------------------------------ to be written by each algorithm

    def _build(self) -> None:
        """Make the networks (on the CPU, from ``init_generator``)."""
        raise NotImplementedError

    def _build_optimizers(self) -> None:
        """Make the optimisers; the networks are on their device by now."""
        raise NotImplementedError

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step; metrics as 0-dim tensors, never ``.item()``."""
        raise NotImplementedError

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q of all critics without gradients, ``[B, S], [B, A] -> [K, B]``."""
        if not self.has_critics:
            raise PbrlError(f"{self.name} has no critics, so it has no Q-values.")
        return self.critics.values(observations, actions)

    def uncertainty(self, observations: Tensor, actions: Tensor) -> Tensor:
        """U(s, a), the critics' disagreement (Eq. 3), ``[B, S], [B, A] -> [B]``."""
        return self.q_values(observations, actions).std(0, correction=self.std_correction)

    # ------------------------------------------------------------ may be extended

    def networks(self) -> dict[str, nn.Module]:
        """Everything that holds weights, by name; saved, and enough to act and to judge.

        These are the attributes that are networks; one with two names counts under the first.
        """
        found: dict[str, nn.Module] = {}
        for name, value in vars(self).items():
            if isinstance(value, nn.Module) and all(value is not other for other in found.values()):
                found[name] = value
        return found

    def optimizers(self) -> dict[str, Optimizer]:
        """The optimisers by name: the attributes ``<name>_optimizer``."""
        return {
            name.removesuffix("_optimizer"): value
            for name, value in vars(self).items()
            if isinstance(value, Optimizer)
        }

    def parts(self) -> Parts:
        """The networks an exported policy consists of."""
        return Parts(self.policy, self.critics if self.has_critics else None)

    @torch.no_grad()
    def act(
        self,
        observations: Tensor,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The policy's actions in [-1, 1]: its mode, or a draw, ``[B, S] -> [B, A]``."""
        action: Tensor = self.policy.act(observations, deterministic, generator)
        return action

    @classmethod
    def first_preset(cls) -> str:
        """The preset of those who name none: the paper's, where there is a paper."""
        return "paper" if "paper" in cls.presets else next(iter(cls.presets))

    @classmethod
    def dataset_overrides(cls, dataset_name: str, preset: str = "paper") -> dict[str, Any]:
        """Settings the original authors chose for this dataset, on top of the preset's."""
        name = dataset_name.replace("_", "-")  # D4RL's files have underscores, its names dashes
        table = cls.presets_by_dataset.get(preset, {})
        matches = [start for start in table if name.startswith(start)]
        return dict(table[max(matches, key=len)]) if matches else {}

    def prepare(self, data: TrainingData) -> list[str]:
        """Look at the data before training (and again on resume); sentences for the user."""
        self.build(data.dataset.observation_dim, data.dataset.action_dim)
        return []

    @torch.no_grad()
    def diagnostics(self, batch: Batch) -> dict[str, Tensor]:
        """Quantities worth logging that the update does not compute; called at log time."""
        if not self.has_critics:
            return {}
        s, policy_actions = batch.observations, self.act(batch.observations)
        random_actions = torch.empty_like(policy_actions).uniform_(-1, 1, generator=_fixed(s))
        out = {}
        kinds = {"data": batch.actions, "policy": policy_actions, "random": random_actions}
        for kind, actions in kinds.items():
            out[f"q_{kind}"] = self.q_values(s, actions).mean()
            out[f"u_{kind}"] = self.uncertainty(s, actions).mean()
        return out

    def relaxed(self, share: float) -> tuple[Any, str]:
        """Settings to go on with online, pessimism fading to ``share``, and a sentence on it."""
        return self.config, f"{self.name} has no pessimism schedule: it stays as it was."

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Take weights and optimisers of another run; step and random numbers stay one's own."""
        step, random_numbers = self.step, self.generator.get_state()
        self.load_state_dict(state)
        self.step = step
        self.generator.set_state(random_numbers)

    def extra_state(self) -> dict[str, Tensor]:
        """State besides networks, optimisers and random generators.

        It is that of the attributes which have one: ``state()`` and its inverse ``load()``.
        """
        parts = (value.state() for value in vars(self).values() if isinstance(value, Stateful))
        return {key: tensor for part in parts for key, tensor in part.items()}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of ``extra_state``."""
        for value in vars(self).values():
            if isinstance(value, Stateful):
                value.load(state)

    # ------------------------------------------------------------ the same for all

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from one minibatch; returns metrics as 0-dim tensors."""
        if not self.built:
            self.build(batch.observations.shape[1], batch.actions.shape[1])
        metrics = self._update(batch)
        self.step += 1
        return metrics

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on exactly, as a flat dictionary of tensors."""
        state: dict[str, Tensor] = {}
        for name, network in self.networks().items():
            for key, value in network.state_dict().items():
                state[f"networks/{name}/{key}"] = value
        for name, optimizer in self.optimizers().items():
            for index, slots in optimizer.state_dict()["state"].items():
                for key, value in slots.items():
                    state[f"optimizers/{name}/{index}/{key}"] = torch.as_tensor(value)
        state["rng/updates"] = self.generator.get_state()
        state["extra/step"] = torch.tensor(self.step)
        for key, value in self.extra_state().items():
            state[f"extra/{key}"] = value
        return state

    def load_checkpoint(
        self, state: Mapping[str, Tensor], where: str, *, networks_only: bool = False
    ) -> None:
        """``load_state_dict`` of what a file holds; a state that does not fit is refused.

        Args:
            state: as ``state_dict`` gave it.
            where: the file, for messages.
            networks_only: just enough to act and to judge.
        """
        try:
            self.load_state_dict(state, networks_only=networks_only)
        except (RuntimeError, KeyError, TypeError, ValueError, IndexError) as error:
            reason = " ".join(str(error).split())[:200]
            raise PbrlError(f"{where} does not fit the run's config: {reason}.") from error

    def load_state_dict(self, state: Mapping[str, Tensor], *, networks_only: bool = False) -> None:
        """The inverse of ``state_dict``; with ``networks_only`` just enough to act and to judge."""
        known = {f"networks/{name}" for name in self.networks()}
        for key in state:
            if key.startswith("networks/") and key.rsplit("/", 1)[0] not in known:
                raise KeyError(f"unknown tensor {key}")
        for name, network in self.networks().items():
            network.load_state_dict(_below(state, f"networks/{name}/"))
        if networks_only:
            return
        for name, optimizer in self.optimizers().items():
            slots: dict[int, dict[str, Tensor]] = {}
            for key, value in _below(state, f"optimizers/{name}/").items():
                index, slot = key.split("/")
                slots.setdefault(int(index), {})[slot] = value
            _require_slots(name, optimizer, slots)
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": slots, "param_groups": groups})
        self.step = int(state["extra/step"])
        restore(self.generator, state["rng/updates"], self.step)
        self.load_extra_state(_below(state, "extra/"))


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def _require_slots(
    name: str, optimizer: torch.optim.Optimizer, slots: Mapping[int, Mapping[str, Tensor]]
) -> None:
    """Refuse slots that the optimiser, which does not look at them, would stumble over later."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in slots.items():
        shapes = {key: tuple(value.shape) for key, value in values.items()}
        shape = tuple(parameters[index].shape)
        if shapes != {"step": (), "exp_avg": shape, "exp_avg_sq": shape}:
            raise ValueError(f"the optimiser {name} has other tensors at its parameter {index}")


def _fixed(like: Tensor) -> torch.Generator:
    """A fresh generator with a fixed seed: logging must not move the training's own."""
    return torch.Generator(like.device).manual_seed(0)


adam = Adam  # in its fused form: one pass over the stacked parameters


def descend(optimizer: Optimizer, loss: Tensor) -> Tensor:
    """One step down ``loss``; returns it without its graph."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
