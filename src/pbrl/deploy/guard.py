"""A warning light: is this state, or this action, like anything the agent has learned from?

Three measurements, each put on a common scale where 0 is the median and 1 the 99th percentile of
held-out logged data:

- *state*: distance from the (whitened) observation to the nearest of 2,048 logged ones. Sees
  sensors gone wrong and places the log never visited.
- *uncertainty*: U of Eq. 3, where the algorithm has critics.
- *action*: minus log-likelihood of the action, before the tanh, under a small Gaussian model of the
  logged actions given the state. Only used to judge an action that somebody proposes: the agent's
  own is a function of the state, and is meant to differ from what was logged.

The guard's score follows the action where one is proposed, else the state; the other measurements
join in beyond their 99th percentile. Raw U alone is a poor light, because it differs more between
states than between actions; docs/trust.md has the figures that led to this choice.

Over whole episodes the light keeps a promise, see ``pbrl.deploy.episodes``; what both rest on is
fitted by ``pbrl.deploy.guard_fit``.

A light that fails must fail on: what is not finite, coming in or computed from it, scores infinity,
and a score that cannot be compared is an alarm.

Shapes: B rows, S observation and A action dimensions, M prototypes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor, nn

from pbrl.algorithms.base import Algorithm
from pbrl.deploy.episodes import EpisodeCalibration
from pbrl.errors import PbrlError
from pbrl.nn.policy import MLP

Floats = NDArray[np.float32]

FORMAT_VERSION = 3  # from 2 on with a checksum, from 3 on with episodes
QUANTILES = np.linspace(0, 1, 1001)
OBSERVATION_LIMIT = 10.0  # deviations; beyond it the behaviour model would only extrapolate
ACTION_LIMIT = 0.995  # logged actions often sit on their bound, where atanh is infinite
LOG_STD_LIMITS = (-5.0, 1.0)
LARGE_NEGATIVE = -1e6  # what a measurement counts as that does not take part


@dataclass(frozen=True)
class Reading:
    """What the light says.

    Attributes:
        action: the judged action in raw units, ``[B, A]``: the policy's own or the proposed one.
        uncertainty: U of Eq. 3 at that action, ``[B]``; NaN where there are no critics.
        percentile: percentile of that U among the training data's, ``[B]``, 0 to 100.
        score: the guard's score, ``[B]``; 1 is about the 99th percentile of logged data.
        score_percentile: its percentile among held-out logged data, ``[B]``.
        alarm: whether that is above the chosen quantile, ``[B]`` bool.
    """

    action: Floats
    uncertainty: Floats
    percentile: Floats
    score: Floats
    score_percentile: Floats
    alarm: NDArray[np.bool_]

    def first(self) -> Reading:
        """The reading of a single row, without the batch axis."""
        return Reading(**{name: values[0] for name, values in vars(self).items()})


class GuardModel(nn.Module):
    """The part of the guard that is computed: everything but U, in network units.

    Args:
        observation_dim: S.
        action_dim: A.
        prototypes: M.
        hidden: hidden units of the behaviour model.
        generator: of its initial weights.
    """

    shift: Tensor
    scale: Tensor
    whitening: Tensor
    prototypes: Tensor
    medians: Tensor
    spreads: Tensor

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        prototypes: int,
        hidden: tuple[int, ...] = (64, 64),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.hidden = hidden
        generator = generator or torch.Generator().manual_seed(0)
        self.behaviour = MLP(
            observation_dim, hidden, 2 * action_dim, init="torch", generator=generator
        )
        self.register_buffer("shift", torch.zeros(observation_dim))
        self.register_buffer("scale", torch.ones(observation_dim))
        self.register_buffer("whitening", torch.eye(observation_dim))
        self.register_buffer("prototypes", torch.zeros(prototypes, observation_dim))
        # Of state, uncertainty and action; spread is the 99th percentile minus the median.
        self.register_buffer("medians", torch.zeros(3))
        self.register_buffer("spreads", torch.ones(3))

    def standardised(self, observations: Tensor) -> Tensor:
        """``[B, S]`` in deviations of the log."""
        return (observations - self.shift) / self.scale

    def state(self, observations: Tensor) -> Tensor:
        """Distance to the nearest prototype in whitened space, ``[B, S] -> [B]``."""
        x = self.standardised(observations) @ self.whitening  # [B, S]
        # |x - p|^2 as a matrix product; the same sum is written in the ONNX graph.
        squares = (
            x.square().sum(1, keepdim=True)
            - 2 * x @ self.prototypes.mT
            + self.prototypes.square().sum(1)
        )
        nearest: Tensor = squares.amin(1)
        return nearest.clamp_min(0).sqrt()

    def action(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Minus log-likelihood of atanh(a), up to a constant, ``[B, S], [B, A] -> [B]``."""
        x = self.standardised(observations).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        both: Tensor = self.behaviour(x)
        mean, log_std = both.chunk(2, dim=1)
        log_std = log_std.clamp(*LOG_STD_LIMITS)
        u = torch.atanh(actions.clamp(-ACTION_LIMIT, ACTION_LIMIT))
        return (0.5 * ((u - mean) * (-log_std).exp()).square() + log_std).sum(1)

    def score(
        self, observations: Tensor, uncertainty: Tensor | None, actions: Tensor | None
    ) -> Tensor:
        """The guard's score of states and, where given, of proposed actions, ``[B]``.

        The measurement that answers the question leads: the action's where one is proposed, else
        the state's. The others only count beyond the 99th percentile of logged data, so that their
        ordinary ups and downs do not drown it. Where anything is not finite, the score is infinite:
        a comparison with NaN is false, and would read as "all is well".
        """
        sound = torch.isfinite(observations).all(1)
        parts = [(0, self.state(observations))]
        if uncertainty is not None:
            parts.append((1, uncertainty))
        if actions is not None:
            sound &= torch.isfinite(actions).all(1)
            parts.insert(0, (2, self.action(observations, actions)))
        first, *others = [(value - self.medians[i]) / self.spreads[i] for i, value in parts]
        sound &= torch.isfinite(first)
        for other in others:
            sound &= torch.isfinite(other)
            first = torch.maximum(first, torch.where(other > 1, other, LARGE_NEGATIVE))
        return torch.where(sound, first, torch.inf)


@dataclass(frozen=True)
class Guard:
    """A fitted guard; one that holds numbers which are not finite cannot be made.

    Attributes:
        model: computes the scores.
        own: quantiles of the score of the policy's own actions at held-out states, ``[1001]``.
        proposed: quantiles of the score of held-out logged actions, ``[1001]``.
        uncertainty: quantiles of U over training data, ``[1001]``; all NaN without critics.
        about: where it was fitted: data fingerprint, step.
        episodes: what whole episodes score; None where none could be held out, and in files of an
            older pbrl.
    """

    model: GuardModel
    own: NDArray[np.float64]
    proposed: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    about: dict[str, Any]
    episodes: EpisodeCalibration | None = None

    def __post_init__(self) -> None:
        tensors = self._tensors()
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                raise PbrlError(
                    f"The guard's '{name}' holds values that are not finite; the data or the "
                    "networks it comes from are damaged."
                )
            if not name.startswith("model/") and bool((value.diff() < 0).any()):
                raise PbrlError(f"The guard's '{name}' are no quantiles: they do not rise.")
        for name in ("scale", "spreads"):
            if not bool((tensors[f"model/{name}"] > 0).all()):
                raise PbrlError(f"The guard's '{name}' must be positive.")

    @torch.no_grad()
    def read(
        self, algorithm: Algorithm, observations: Tensor, actions: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Judged actions ``[B, A]``, U ``[B]`` or None, and scores ``[B]``, in network units."""
        judged = algorithm.act(observations) if actions is None else actions
        u = algorithm.uncertainty(observations, judged) if algorithm.has_critics else None
        score = self.model.score(observations, u, actions)
        return judged, u, torch.where(torch.isfinite(judged).all(1), score, torch.inf)

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that is kept, by name; quantiles of U only where there are critics."""
        tensors = {f"model/{k}": v.contiguous() for k, v in self.model.state_dict().items()}
        for name in ("own", "proposed", "uncertainty"):
            grid = getattr(self, name)
            if name != "uncertainty" or not np.isnan(grid).all():
                tensors[name] = torch.from_numpy(grid.copy())
        return tensors

    def save(self, path: Path) -> None:
        """Write everything as safetensors, with a checksum."""
        tensors = {name: value.cpu() for name, value in self._tensors().items()}
        about: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "hidden": list(self.model.hidden),
            "about": self.about,
            "episodes": None if self.episodes is None else self.episodes.to_json(),
        }
        about["sha256"] = _checksum(about, tensors)
        temporary = path.with_name(path.name + ".tmp")
        try:
            save_file(tensors, temporary, {"guard": json.dumps(about)})
            temporary.replace(path)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise PbrlError(f"Cannot write {path}: {error}.") from error

    @staticmethod
    def load(path: Path) -> Guard:
        """The inverse of ``save``; a file that is damaged or has no checksum is refused."""
        try:
            with safe_open(path, "pt") as file:
                about = dict(json.loads((file.metadata() or {})["guard"]))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            known = about.pop("sha256", None)
            if known is None:
                raise PbrlError(
                    f"{path} is a guard without a checksum, as an older pbrl wrote it; delete the "
                    "file, and the guard is fitted again from the data."
                )
            if known != _checksum(about, tensors):
                raise PbrlError(f"{path} is damaged: it does not match its checksum.")
            weights = {
                k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")
            }
            m, s = weights["prototypes"].shape
            a = weights["behaviour.head.bias"].shape[0] // 2
            model = GuardModel(s, a, m, tuple(about["hidden"]))
            model.load_state_dict(weights)
            model.requires_grad_(False)
            nothing = torch.full((len(QUANTILES),), torch.nan, dtype=torch.float64)
            grids = {k: tensors[k].numpy() for k in ("own", "proposed")}
            grids["uncertainty"] = tensors.get("uncertainty", nothing).numpy()
            known = about.get("episodes")
            episodes = None if known is None else EpisodeCalibration.from_json(known)
            return Guard(model, **grids, about=dict(about["about"]), episodes=episodes)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise PbrlError(f"{path} is no guard of pbrl, or damaged ({error}).") from error


def _checksum(about: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the description and of the tensors as safetensors writes them."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode() + save(tensors)).hexdigest()


def percentile(grid: NDArray[np.float64], values: NDArray[Any]) -> Floats:
    """Percentile of each value in a grid of quantiles, 0 to 100; NaN where there is none."""
    if np.isnan(grid).any():
        return np.full(np.shape(values), np.nan, np.float32)
    return np.asarray(100 * np.interp(values, grid, QUANTILES), np.float32)
