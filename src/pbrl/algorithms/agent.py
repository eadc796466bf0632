"""A trained policy as users hold it: NumPy in, NumPy out, in the units of their own data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pbrl.algorithms.base import Algorithm
from pbrl.data.preprocessing import Preprocessing
from pbrl.errors import PbrlError

Floats = NDArray[np.float32]


class Agent:
    """An algorithm's networks together with the maps between raw and network units.

    All methods take one observation ``[S]`` or a batch ``[B, S]`` and answer in kind.

    Args:
        algorithm: with its networks built.
        preprocessing: fitted on the training data.
        info: the run's ``config.json``, where the agent comes from a run.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        preprocessing: Preprocessing,
        info: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.preprocessing = preprocessing
        self.info = info or {}

    @property
    def observation_dim(self) -> int:
        """S."""
        return self.algorithm.observation_dim

    @property
    def action_dim(self) -> int:
        """A."""
        return self.algorithm.action_dim

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Floats:
        """The policy's actions, ``[S] -> [A]`` or ``[B, S] -> [B, A]``."""
        batch, single = self._observations(observations)
        unit = self.algorithm.act(batch, deterministic, generator).cpu().numpy()
        actions = self.preprocessing.raw_actions(unit)
        return actions[0] if single else actions

    def q_values(self, observations: ArrayLike, actions: ArrayLike) -> Floats:
        """Q of every critic, ``[K]`` or ``[K, B]``, in units of the (mapped) reward."""
        states, units, single = self._pairs(observations, actions)
        q = _numpy(self.algorithm.q_values(states, units))
        return q[:, 0] if single else q

    def uncertainty(self, observations: ArrayLike, actions: ArrayLike) -> Floats:
        """U(s, a), the critics' disagreement (Eq. 3), a 0-dim array or ``[B]``."""
        states, units, single = self._pairs(observations, actions)
        u = _numpy(self.algorithm.uncertainty(states, units))
        return u[0] if single else u

    def _observations(self, observations: ArrayLike) -> tuple[Tensor, bool]:
        batch, single = _as_batch(observations, self.observation_dim, "observations")
        return torch.from_numpy(self.preprocessing.observations(batch)).to(
            self.algorithm.device
        ), single

    def _pairs(self, observations: ArrayLike, actions: ArrayLike) -> tuple[Tensor, Tensor, bool]:
        states, single = self._observations(observations)
        raw, single_action = _as_batch(actions, self.action_dim, "actions")
        if single != single_action or len(states) != len(raw):
            raise PbrlError(
                f"observations {np.shape(observations)} and actions {np.shape(actions)} must have "
                "the same number of rows."
            )
        units = torch.from_numpy(self.preprocessing.actions(raw)).to(self.algorithm.device)
        return states, units, single


def _as_batch(values: ArrayLike, size: int, what: str) -> tuple[Floats, bool]:
    try:
        array = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise PbrlError(f"{what} must be numbers of shape [{size}] or [B, {size}].") from error
    if array.ndim not in (1, 2) or array.shape[-1] != size:
        raise PbrlError(f"{what} must have shape [{size}] or [B, {size}], got {list(array.shape)}.")
    if not np.isfinite(array).all():
        raise PbrlError(f"{what} contain NaN or infinite values; remove them before asking.")
    return np.ascontiguousarray(np.atleast_2d(array)), array.ndim == 1


def _numpy(values: Tensor) -> Floats:
    return values.detach().cpu().numpy().astype(np.float32, copy=False)
