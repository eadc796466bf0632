"""Running an exported policy with onnxruntime and NumPy alone: no torch, and a warning light.

    policy = OnnxPolicy("policy.onnx", fallback=lambda observation: safe_action)
    action = policy(observation)            # the fallback's where the light is on
    decision = policy.decide(observation)   # action, uncertainty, percentile, alarm
    decision = policy.decide({"temperature": 341.5, "pressure": 2.1})   # by name, in any order

    policy.reset()                          # an episode begins
    decision = policy.step(observation)     # as decide, and counted: the light of the episode

A light that fails must fail on: what is not finite, in an observation or in what the networks make
of it, is an alarm, and a file that was changed after its export is refused.

Nothing heavy is imported here: NumPy, and onnxruntime when a file is opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbrl.deploy.columns import Floats, Given, as_numbers, as_rows, check_order
from pbrl.deploy.episodes import EpisodeCalibration, EpisodeLight, check_alpha
from pbrl.errors import PbrlError, optional_import

# A raw observation [S] -> a raw action [A].
Fallback = Callable[[Floats], ArrayLike]
# Stands in a file for its checksum while that is computed.
CHECKSUM_SPACE = "the SHA-256 of this file with these words in place of it".ljust(64, ".")
GRIDS = ("guard_quantiles_own", "guard_quantiles_proposed", "uncertainty_quantiles")


@dataclass(frozen=True)
class Decision:
    """What the policy does and how far it can be trusted there; ``[B, ...]``, or one row.

    Attributes:
        action: what to do, raw units: the policy's own, or the fallback's where ``alarm`` is on.
        policy_action: the policy's own.
        q_mean: mean Q of the critics at the policy's action; NaN without critics.
        uncertainty: U of Eq. 3 there; NaN without critics.
        percentile: percentile of that U among the training data's; NaN where not exported.
        score: the guard's score; NaN where no guard was exported.
        score_percentile: its percentile among held-out logged data.
        alarm: whether that is above the chosen quantile (of ``step``: whether the light of the
            episode is on), or anything here or in the observation is not finite.
    """

    action: Floats
    policy_action: Floats
    q_mean: Floats
    uncertainty: Floats
    percentile: Floats
    score: Floats
    score_percentile: Floats
    alarm: NDArray[np.bool_]


class OnnxPolicy:
    """An exported policy.

    Args:
        model: an ONNX file written by ``pbrl export``, or its bytes.
        quantile: the light of single steps is on beyond this quantile of held-out logged data.
        alpha: the light of episodes comes on in at most this share of episodes like the log; what
            the file was exported with when omitted.
        fallback: what to do instead where the light is on; None keeps the policy's action.
        threads: of onnxruntime; one is fastest for single decisions.
    """

    def __init__(
        self,
        model: str | Path | bytes,
        *,
        quantile: float = 0.99,
        alpha: float | None = None,
        fallback: Fallback | None = None,
        threads: int = 1,
    ) -> None:
        if not 0 < quantile < 1:
            raise PbrlError(f"quantile must lie between 0 and 1, got {quantile}.")
        if alpha is not None:
            check_alpha(alpha)
        runtime = optional_import("onnxruntime", "export")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        content = model if isinstance(model, bytes) else _read(Path(model))
        name = "the model" if isinstance(model, bytes) else str(model)
        try:
            self._session = runtime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
            found = self._session.get_modelmeta().custom_metadata_map
        except Exception as error:  # onnxruntime's own exceptions have no common base
            raise PbrlError(f"onnxruntime cannot read {name}: {error}") from error
        self.metadata: dict[str, Any] = _checked_metadata(content, found, name)
        self.quantile, self.fallback = quantile, fallback
        self._names = [output.name for output in self._session.get_outputs()]
        try:
            self.observation_dim = int(self.metadata["observation_dim"])
            self.action_dim = int(self.metadata["action_dim"])
            self.observation_names = self._column_names("observation", "obs", self.observation_dim)
            self.action_names = self._column_names("action", "action", self.action_dim)
            self._grids = {
                grid: _quantiles(self.metadata[grid])
                for grid in GRIDS
                if grid in self.metadata or (self.guarded and grid != "uncertainty_quantiles")
            }
            self._light = self._episode_light(alpha)
        except (KeyError, TypeError, ValueError) as error:
            raise PbrlError(f"{name} is damaged ({error}); export it again.") from error

    @property
    def guarded(self) -> bool:
        """Whether the file has a warning light inside."""
        return "guard_score" in self._names

    def _episode_light(self, alpha: float | None) -> EpisodeLight | None:
        """None where the file does not speak of episodes."""
        if self.metadata.get("episodes") is None:
            return None
        calibration = EpisodeCalibration.from_json(self.metadata["episodes"])
        return EpisodeLight(calibration, float(self.metadata["alpha"]) if alpha is None else alpha)

    @property
    def episode(self) -> EpisodeLight:
        """The light of the running episode: thresholds, what they promise, and counts."""
        if self._light is None:
            raise PbrlError(
                "This file has no light for whole episodes: it was exported without a guard, by an "
                "older pbrl, or from a log of fewer than ten episodes. Export it again; 'pbrl "
                "export --help' says how to calibrate on other episodes."
            )
        return self._light

    def reset(self, which: ArrayLike | None = None) -> None:
        """A new episode begins; of several side by side, those of a mask ``[B]``."""
        self.episode.reset(which)

    def _column_names(self, kind: str, stem: str, size: int) -> tuple[str, ...]:
        """The log's names, or ``stem_0, stem_1, …`` where it had none."""
        known = self.metadata.get(f"{kind}_names") or [f"{stem}_{i}" for i in range(size)]
        if len(known) != size or not all(isinstance(name, str) for name in known):
            raise ValueError(f"it does not name its {size} {kind}s")
        return tuple(known)

    def __call__(self, observations: Given, names: Sequence[str] | None = None) -> Floats:
        """What to do, ``[S] -> [A]`` or ``[B, S] -> [B, A]``; arguments as in ``decide``.

        Where observations are not finite and there is no fallback, nobody can say: PbrlError.
        """
        decision = self.decide(observations, names)
        if self.fallback is None:
            sound = np.isfinite(
                as_rows(observations, self.observation_names, "observations")[0]
            ).all()
            if not sound or not np.isfinite(decision.action).all():
                raise PbrlError(
                    "observations contain NaN, infinite or impossibly large values, and there is "
                    "no fallback to answer them: OnnxPolicy(file, fallback=...)."
                )
        return decision.action

    def decide(self, observations: Given, names: Sequence[str] | None = None) -> Decision:
        """The policy's decision with uncertainty and light.

        Args:
            observations: numbers ``[S]`` or ``[B, S]`` in the order of ``observation_names``; or a
                mapping or data frame, whose columns are taken by name. It may have more columns;
                a cell that is empty or no number counts as NaN, which is an alarm.
            names: what the columns of plain numbers are; refused unless they are
                ``observation_names`` in their order.
        """
        if names is not None:
            check_order(list(names), self.observation_names)
        return self._decide(observations, None)

    def step(
        self,
        observations: Given,
        actions: Given | None = None,
        names: Sequence[str] | None = None,
    ) -> Decision:
        """The next step of the running episode: as ``decide``, or ``judge`` with ``actions``.

        Scores are counted from one call to the next until ``reset``. ``alarm`` is the light of the
        episode: on from the step at which ``k`` of the last ``n`` scores lay above the threshold,
        and where something is not finite. Rows of a batch ``[B, S]`` are B episodes side by side.
        """
        if names is not None:
            check_order(list(names), self.observation_names)
        return self._decide(observations, actions, self.episode)

    @property
    def judges(self) -> bool:
        """Whether the file can judge an action that is not the policy's own."""
        return len(self._names) > 1

    def judge(self, observations: Given, actions: Given) -> Decision:
        """The same for actions somebody else proposes, ``[A]`` or ``[B, A]``, or by name."""
        if not self.judges:
            raise PbrlError(
                "This file has neither critics nor a guard, so it can judge no action; export it "
                "again with its guard."
            )
        return self._decide(observations, actions)

    def outputs(self, observations: Floats, actions: Floats | None = None) -> dict[str, Floats]:
        """The file's raw outputs for ``[B, S]`` and, optionally, proposed actions ``[B, A]``."""
        feed = {"observation": observations}
        if actions is not None:
            feed["proposed_action"] = actions
        return dict(zip(self._names, self._session.run(None, feed), strict=True))

    def _decide(
        self, observations: Given, actions: Given | None, light: EpisodeLight | None = None
    ) -> Decision:
        s, single = as_rows(observations, self.observation_names, "observations")
        a = None
        if actions is not None:
            a, single_action = as_rows(actions, self.action_names, "actions")
            if single != single_action or len(a) != len(s):
                raise PbrlError("observations and actions must have the same number of rows.")
        out = self.outputs(s, a)
        nothing = np.full(len(s), np.nan, np.float32)
        u, score = out.get("uncertainty", nothing), out.get("guard_score", nothing)
        grid = "guard_quantiles_own" if a is None else "guard_quantiles_proposed"
        rank = self._percentile(grid, score)
        sound = _finite_rows(s, *out.values(), *([] if a is None else [a]))
        alarm = ~sound
        if light is not None:
            alarm |= light.update(np.where(sound, score, np.inf), proposed=a is not None)
        elif self.guarded:
            alarm |= ~(rank <= 100 * self.quantile)  # a NaN among the ranks is an alarm
        own = out["action"]
        action = own.copy() if a is None else a.copy()
        if self.fallback is not None:
            for i in np.flatnonzero(alarm):
                action[i] = self._instead(s[i])
        parts: dict[str, Any] = {
            "action": action,
            "policy_action": own,
            "q_mean": out.get("q_mean", nothing),
            "uncertainty": u,
            "percentile": self._percentile("uncertainty_quantiles", u),
            "score": score,
            "score_percentile": rank,
            "alarm": alarm,
        }
        return Decision(**{k: v[0] if single else v for k, v in parts.items()})

    def _instead(self, observation: Floats) -> Floats:
        """The fallback's action, ``[S] -> [A]``."""
        assert self.fallback is not None
        action = as_numbers(
            self.fallback(observation), f"The fallback must return {self.action_dim}"
        )
        if action.size != self.action_dim or not np.isfinite(action).all():
            raise PbrlError(
                f"The fallback must return {self.action_dim} finite numbers, got {action.tolist()}."
            )
        return action.reshape(self.action_dim)

    def _percentile(self, grid: str, values: Floats) -> Floats:
        if grid not in self._grids:
            return np.full(len(values), np.nan, np.float32)
        quantiles = self._grids[grid]
        shares = np.linspace(0, 100, len(quantiles))
        return np.asarray(np.interp(values, quantiles, shares), np.float32)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise PbrlError(f"There is no file {path}; write one with 'pbrl export'.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise PbrlError(f"Cannot read {path}: {error.strerror}.") from error


def with_checksum(content: bytes) -> bytes:
    """A model whose metadata hold ``CHECKSUM_SPACE``, with the checksum in its place."""
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(CHECKSUM_SPACE.encode(), digest.encode())


def _checked_metadata(content: bytes, found: dict[str, str], name: str) -> dict[str, Any]:
    """What ``pbrl export`` wrote about the model, or PbrlError where the file is not as written."""
    if "pbrl" not in found:
        raise PbrlError(f"{name} was not written by 'pbrl export'.")
    if "sha256" not in found:
        raise PbrlError(f"{name} has no checksum, as an older pbrl wrote it; export it again.")
    written = content.replace(found["sha256"].encode(), CHECKSUM_SPACE.encode())
    if hashlib.sha256(written).hexdigest() != found["sha256"]:
        raise PbrlError(
            f"{name} does not match its checksum: it was damaged or changed after its export; "
            "export it again."
        )
    try:
        return dict(json.loads(found["pbrl"]))
    except (TypeError, ValueError) as error:
        raise PbrlError(f"{name} is damaged ({error}); export it again.") from error


def _quantiles(values: Any) -> NDArray[np.float64]:
    """A grid of quantiles, which must be finite and rise."""
    grid = np.array(values, np.float64)
    if grid.ndim != 1 or len(grid) < 2 or not np.isfinite(grid).all() or (np.diff(grid) < 0).any():
        raise ValueError("its quantiles are no rising finite numbers")
    return grid


def _finite_rows(*arrays: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows that are finite in all of these, ``[B]`` or ``[B, C]`` each, ``-> [B]``."""
    sound = [np.isfinite(x).reshape(len(x), -1).all(1) for x in arrays]
    return np.asarray(np.logical_and.reduce(sound))
