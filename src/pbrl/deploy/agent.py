"""A trained policy as users hold it: NumPy in, NumPy out, in the units of their own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbrl.algorithms.base import Algorithm
from pbrl.data.dataset import TransitionDataset, numbered_names
from pbrl.data.preprocessing import Preprocessing
from pbrl.deploy.columns import Given, in_order
from pbrl.deploy.episodes import ALPHA, WINDOW, EpisodeLight
from pbrl.deploy.guard import Guard, Reading, percentile
from pbrl.deploy.guard_fit import calibrated, fit_guard
from pbrl.errors import PbrlError

Floats = NDArray[np.float32]


class Agent:
    """An algorithm's networks together with the maps between raw and network units.

    All methods take one observation ``[S]`` or a batch ``[B, S]`` and answer in kind. A mapping or
    a data frame is taken by the names of its columns, whatever their order.

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
        self.fitted_guard: Guard | None = None
        # How to come by a guard when one is asked for: set where the agent's run is known.
        self.guard_source: Callable[[Agent], Guard] | None = None

    @property
    def observation_dim(self) -> int:
        """S."""
        return self.algorithm.observation_dim

    @property
    def action_dim(self) -> int:
        """A."""
        return self.algorithm.action_dim

    @property
    def observation_names(self) -> tuple[str, ...]:
        """What the training data call the S observations."""
        return self._names("observation_names") or numbered_names("obs", self.observation_dim)

    @property
    def action_names(self) -> tuple[str, ...]:
        """What the training data call the A actions."""
        return self._names("action_names") or numbered_names("action", self.action_dim)

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(self.info.get("data", {}).get(key, ()))

    def act(
        self,
        observations: Given,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> Floats:
        """The policy's actions, ``[S] -> [A]`` or ``[B, S] -> [B, A]``."""
        batch, single = self._observations(observations)
        unit = self.algorithm.act(batch, deterministic, generator).cpu().numpy()
        actions = self.preprocessing.raw_actions(unit)
        return actions[0] if single else actions

    def q_values(self, observations: Given, actions: Given) -> Floats:
        """Q of every critic, ``[K]`` or ``[K, B]``, in units of the (mapped) reward."""
        states, units, single = self._pairs(observations, actions)
        q = _numpy(self.algorithm.q_values(states, units))
        return q[:, 0] if single else q

    def uncertainty(self, observations: Given, actions: Given) -> Floats:
        """U(s, a), the critics' disagreement (Eq. 3), a 0-dim array or ``[B]``."""
        states, units, single = self._pairs(observations, actions)
        u = _numpy(self.algorithm.uncertainty(states, units))
        return u[0] if single else u

    def guard(
        self,
        observations: Given,
        actions: Given | None = None,
        quantile: float = 0.99,
    ) -> Reading:
        """The policy's decision with a warning light; see ``pbrl.deploy.guard``.

        The first call of an agent that comes from a run fits the guard on the run's data (some
        seconds) and keeps it beside the run; otherwise call ``fit_guard`` first.

        What is not finite, among the observations or in what the networks make of them, is no
        error here but an alarm: this is what a light is for.

        Args:
            observations: ``[S]`` or ``[B, S]``.
            actions: judge these instead of the policy's own, ``[A]`` or ``[B, A]``.
            quantile: the light is on beyond this quantile of logged data.
        """
        if not 0 < quantile < 1:
            raise PbrlError(f"quantile must lie between 0 and 1, got {quantile}.")
        guard = self.require_guard()
        units = None
        with np.errstate(over="ignore", invalid="ignore"):  # they end in an alarm
            if actions is None:
                states, single = self._observations(observations, finite=False)
            else:
                states, units, single = self._pairs(observations, actions, finite=False)
            judged, u, score = guard.read(self.algorithm, states, units)
            raw = self.preprocessing.raw_actions(judged.cpu().numpy())
        scores = _numpy(score)
        uncertainty = np.full_like(scores, np.nan) if u is None else _numpy(u)
        rank = percentile(guard.own if units is None else guard.proposed, scores)
        u_rank = percentile(guard.uncertainty, uncertainty)
        alarm = ~(rank <= 100 * quantile)  # NaN is an alarm
        reading = Reading(raw, uncertainty, u_rank, scores, rank, alarm)
        return reading.first() if single else reading

    def require_guard(self) -> Guard:
        """The guard, made on first use where the agent's run is known."""
        if self.fitted_guard is None and self.guard_source is not None:
            self.fitted_guard = self.guard_source(self)
        if self.fitted_guard is None:
            raise PbrlError(
                "This agent has no guard yet; fit one with agent.fit_guard(dataset) on the data it "
                "was trained on."
            )
        return self.fitted_guard

    def fit_guard(
        self,
        dataset: TransitionDataset,
        *,
        steps: int | None = None,
        seed: int = 0,
        held_out: Sequence[int] | None = None,
        window: tuple[int, int] = WINDOW,
    ) -> Guard:
        """Fit the warning light on the agent's training data and keep it.

        Args:
            dataset: the data the agent learned from.
            steps: gradient steps of the guard's model of the logged actions.
            seed: of the split and the fit.
            held_out: numbers of the episodes among them that the agent did not learn from.
            window: the light of episodes takes k of n steps in a row.
        """
        self._require_sizes(dataset)
        self.fitted_guard = fit_guard(
            self.algorithm,
            self.preprocessing,
            dataset,
            steps=steps,
            seed=seed,
            held_out=held_out,
            window=window,
        )
        return self.fitted_guard

    def calibrate_guard(
        self, dataset: TransitionDataset, *, window: tuple[int, int] = WINDOW
    ) -> Guard:
        """Calibrate the light of episodes anew, on episodes that nothing was learned from.

        Alarms are promised to be rare in episodes like *these*: a later part of the log, or a
        trial in which this very policy acted.
        """
        self._require_sizes(dataset)
        self.fitted_guard = calibrated(
            self.require_guard(),
            self.algorithm,
            self.preprocessing,
            dataset,
            list(dataset.episodes()),
            window,
        )
        return self.fitted_guard

    def episode_light(self, alpha: float = ALPHA) -> EpisodeLight:
        """A light over whole episodes, to be given the scores that ``guard`` reads step by step."""
        episodes = self.require_guard().episodes
        if episodes is None:
            raise PbrlError(
                "This guard knows nothing of whole episodes: it was fitted on fewer than ten of "
                "them, on shorter ones than its window, or by an older pbrl. Call "
                "agent.calibrate_guard(dataset) with episodes the agent did not learn from."
            )
        return EpisodeLight(episodes, alpha)

    def _require_sizes(self, dataset: TransitionDataset) -> None:
        sizes = (dataset.observation_dim, dataset.action_dim)
        if sizes != (self.observation_dim, self.action_dim):
            raise PbrlError(
                f"These data have {sizes[0]} observation and {sizes[1]} action dimensions, the "
                f"agent has {self.observation_dim} and {self.action_dim}."
            )

    def _observations(self, observations: Given, finite: bool = True) -> tuple[Tensor, bool]:
        batch, single = _as_batch(observations, self.observation_names, "observations", finite)
        return torch.from_numpy(self.preprocessing.observations(batch)).to(
            self.algorithm.device
        ), single

    def _pairs(
        self, observations: Given, actions: Given, finite: bool = True
    ) -> tuple[Tensor, Tensor, bool]:
        states, single = self._observations(observations, finite)
        raw, single_action = _as_batch(actions, self.action_names, "actions", finite)
        if single != single_action or len(states) != len(raw):
            raise PbrlError(
                f"observations {list(states.shape)} and actions {list(raw.shape)} must have the "
                "same number of rows."
            )
        units = torch.from_numpy(self.preprocessing.actions(raw)).to(self.algorithm.device)
        return states, units, single


def _as_batch(
    values: Given, names: tuple[str, ...], what: str, finite: bool
) -> tuple[Floats, bool]:
    size = len(names)
    try:
        with np.errstate(over="ignore"):  # too large for float32 is infinite
            array = np.asarray(in_order(values, names, what), np.float32)
    except (TypeError, ValueError) as error:
        raise PbrlError(f"{what} must be numbers of shape [{size}] or [B, {size}].") from error
    if array.ndim not in (1, 2) or array.shape[-1] != size:
        raise PbrlError(f"{what} must have shape [{size}] or [B, {size}], got {list(array.shape)}.")
    if finite and not np.isfinite(array).all():
        raise PbrlError(f"{what} contain NaN or infinite values; remove them before asking.")
    return np.ascontiguousarray(np.atleast_2d(array)), array.ndim == 1


def _numpy(values: Tensor) -> Floats:
    return values.detach().cpu().numpy().astype(np.float32, copy=False)
