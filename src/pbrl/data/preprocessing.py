"""What happens to raw rows before a network sees them, and how it is undone afterwards.

A ``Preprocessing`` is fitted once on the training data, saved with the run as JSON, and applied by
itself wherever the policy meets raw observations again: ``act``, evaluation, export.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import Floats, TransitionDataset
from pbrl.errors import PbrlError

RewardNormalization = Literal["none", "standardize", "return-range", "min-zero"]


@dataclass(frozen=True)
class Preprocessing:
    """Affine maps between the units of the log and the units of the networks.

    Attributes:
        observation_shift: ``[S]``; networks see ``(observation - shift) / scale``.
        observation_scale: ``[S]``, positive.
        action_low: ``[A]``; networks see actions mapped from ``[low, high]`` to ``[-1, 1]``.
        action_high: ``[A]``.
        reward_shift: networks see ``(reward - shift) / scale``.
        reward_scale: positive.
    """

    observation_shift: Floats
    observation_scale: Floats
    action_low: Floats
    action_high: Floats
    reward_shift: float = 0.0
    reward_scale: float = 1.0

    @staticmethod
    def identity(observation_dim: int, action_dim: int) -> Preprocessing:
        """Leaves everything as it is (actions already in ``[-1, 1]``)."""
        return Preprocessing(
            np.zeros(observation_dim, np.float32),
            np.ones(observation_dim, np.float32),
            -np.ones(action_dim, np.float32),
            np.ones(action_dim, np.float32),
        )

    @staticmethod
    def fit(
        dataset: TransitionDataset,
        *,
        normalize_observations: bool = False,
        normalize_rewards: RewardNormalization = "none",
        action_low: Floats | None = None,
        action_high: Floats | None = None,
    ) -> Preprocessing:
        """Measure the maps on ``dataset``.

        Action bounds are the ones given, else the declared ones of the dataset, else ``[-1, 1]``
        where the data fit it, else the data's own extremes.

        ``standardize`` gives rewards mean 0 and deviation 1 (EDAC on Adroit), ``return-range``
        divides by (highest - lowest episode return) / 1000 (as CORL, which counts episodes by rows
        and so comes to another fourth digit on D4RL's), ``min-zero`` subtracts the
        lowest reward so that PBRL's floor at zero is sound (RORL).
        """
        shift = np.zeros(dataset.observation_dim, np.float32)
        scale = np.ones(dataset.observation_dim, np.float32)
        if normalize_observations:
            mean, std = moments(dataset.observations)
            # 1e-3 keeps constant columns finite; it is TD3+BC's value.
            shift, scale = mean.astype(np.float32), (std + 1e-3).astype(np.float32)
        low, high = _action_bounds(dataset, action_low, action_high)
        reward_shift, reward_scale = _reward_map(dataset, normalize_rewards)
        return Preprocessing(shift, scale, low, high, reward_shift, reward_scale)

    def observations(self, raw: NDArray[Any]) -> Floats:
        """Raw observations ``[..., S]`` as the networks see them."""
        raw = np.asarray(raw, np.float32)
        if not self.changes_observations:
            return raw
        return (raw - self.observation_shift) / self.observation_scale

    def actions(self, raw: NDArray[Any]) -> Floats:
        """Raw actions ``[..., A]`` mapped to ``[-1, 1]``."""
        raw = np.asarray(raw, np.float32)
        if not self.changes_actions:
            return raw
        middle, half = self._middle_and_half()
        return ((raw - middle) / half).astype(np.float32)

    def raw_actions(self, unit: NDArray[Any]) -> Floats:
        """Network actions in ``[-1, 1]``, ``[..., A]``, back in the units of the log."""
        unit = np.asarray(unit, np.float32)
        if not self.changes_actions:
            return unit
        middle, half = self._middle_and_half()
        return (unit * half + middle).astype(np.float32)

    def rewards(self, raw: NDArray[Any]) -> Floats:
        """Raw rewards ``[...]`` as the critics see them."""
        raw = np.asarray(raw, np.float32)
        if not self.changes_rewards:
            return raw
        return ((raw - self.reward_shift) / self.reward_scale).astype(np.float32)

    @property
    def changes_observations(self) -> bool:
        """Whether observations are mapped at all."""
        return bool(np.any(self.observation_shift != 0) or np.any(self.observation_scale != 1))

    @property
    def changes_actions(self) -> bool:
        """Whether actions are mapped at all."""
        return bool(np.any(self.action_low != -1) or np.any(self.action_high != 1))

    @property
    def changes_rewards(self) -> bool:
        """Whether rewards are mapped at all."""
        return self.reward_shift != 0 or self.reward_scale != 1

    def _middle_and_half(self) -> tuple[Floats, Floats]:
        middle = (self.action_high + self.action_low) / 2
        half = (self.action_high - self.action_low) / 2
        return middle.astype(np.float32), half.astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which ``from_json`` makes the same maps, bit for bit."""
        return {
            "observation_shift": [float(x) for x in self.observation_shift],
            "observation_scale": [float(x) for x in self.observation_scale],
            "action_low": [float(x) for x in self.action_low],
            "action_high": [float(x) for x in self.action_high],
            "reward_shift": float(self.reward_shift),
            "reward_scale": float(self.reward_scale),
        }

    @staticmethod
    def from_json(values: dict[str, Any], where: str = "A run") -> Preprocessing:
        """The inverse of ``to_json``; maps that cannot be followed are refused.

        Args:
            values: what ``to_json`` gave.
            where: the file, for messages.
        """
        try:
            names = ("observation_shift", "observation_scale", "action_low", "action_high")
            arrays = [np.array(values[name], np.float32) for name in names]
            shift, scale = float(values["reward_shift"]), float(values["reward_scale"])
            observation_shift, observation_scale, low, high = arrays
            sound = (
                all(array.ndim == 1 and np.isfinite(array).all() for array in arrays)
                and observation_shift.shape == observation_scale.shape
                and low.shape == high.shape
                and np.isfinite([shift, scale]).all()
                and (observation_scale > 0).all()
                and (low < high).all()
                and scale > 0
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PbrlError(
                f"{where} has an unreadable preprocessing ({type(error).__name__}: "
                f"{str(error)[:80]}); restore it from a backup."
            ) from error
        if not sound:
            raise PbrlError(
                f"{where} has a preprocessing that cannot be followed: its numbers must be finite, "
                "scales positive and bounds low < high; restore it from a backup."
            )
        return Preprocessing(observation_shift, observation_scale, low, high, shift, scale)


def bounded_actions(
    dataset: TransitionDataset, low: Floats, high: Floats, *, clip: bool = False
) -> TransitionDataset:
    """``dataset`` with these action bounds declared; actions outside are refused or clipped."""
    slack = 1e-5 * (high - low)
    outside = (dataset.actions < low - slack) | (dataset.actions > high + slack)
    if outside.any() and not clip:
        row, column = (int(i) for i in np.argwhere(outside)[0])
        raise PbrlError(
            f"Actions leave their bounds in dimension {column} at row {row}: "
            f"{dataset.actions[row, column]:g} is outside [{low[column]:g}, {high[column]:g}]. "
            "Clip them with --clip-actions, or declare other bounds with --action-low and "
            "--action-high."
        )
    actions = np.clip(dataset.actions, low, high) if outside.any() else dataset.actions
    info = replace(dataset.info, action_low=low, action_high=high)
    return replace(dataset, actions=actions, info=info, known_fingerprint=None)


def moments(column: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation by column in float64, in pieces so that mapped files stay on disk."""
    pieces = range(0, len(column), 1 << 18)
    mean = sum(
        (column[i : i + (1 << 18)].sum(0, dtype=np.float64) for i in pieces),
        np.zeros(column.shape[1:]),
    ) / len(column)
    variance = sum(
        (np.square(column[i : i + (1 << 18)] - mean).sum(0) for i in pieces),
        np.zeros(column.shape[1:]),
    ) / len(column)
    return mean, np.sqrt(variance)


def _action_bounds(
    dataset: TransitionDataset, low: Floats | None, high: Floats | None
) -> tuple[Floats, Floats]:
    size = dataset.action_dim
    if low is None or high is None:
        low, high = dataset.info.action_low, dataset.info.action_high
    if low is None or high is None:
        smallest, largest = dataset.actions.min(0), dataset.actions.max(0)
        if np.all(smallest >= -1) and np.all(largest <= 1):
            return -np.ones(size, np.float32), np.ones(size, np.float32)
        # A column that never changes has no range of its own; give it one of width 2.
        constant = largest - smallest < 1e-6
        low = np.where(constant, smallest - 1, smallest)
        high = np.where(constant, largest + 1, largest)
    low = np.broadcast_to(np.asarray(low, np.float32), (size,)).copy()
    high = np.broadcast_to(np.asarray(high, np.float32), (size,)).copy()
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise PbrlError(
            "Action bounds must be finite with low < high in every dimension; "
            f"got low = {low.tolist()}, high = {high.tolist()}."
        )
    return low, high


def _reward_map(dataset: TransitionDataset, how: RewardNormalization) -> tuple[float, float]:
    if how == "none":
        return 0.0, 1.0
    if how == "min-zero":
        return float(dataset.rewards.min()), 1.0
    if how == "standardize":
        mean, std = moments(dataset.rewards[:, None])
        return float(mean[0]), float(std[0]) or 1.0
    if how == "return-range":
        returns = dataset.episode_returns()
        spread = float(returns.max() - returns.min())
        if spread <= 0:
            raise PbrlError(
                "normalize_rewards = return-range needs episodes with different returns; "
                "all returns in this dataset are equal. Use none or standardize."
            )
        return 0.0, spread / 1000
    raise PbrlError(
        f"Unknown normalize_rewards '{how}'. Known: none, standardize, return-range, min-zero."
    )
