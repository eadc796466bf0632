"""Running an exported policy with onnxruntime and NumPy alone: no torch, and a warning light.

    policy = OnnxPolicy("policy.onnx", fallback=lambda observation: safe_action)
    action = policy(observation)            # the fallback's where the light is on
    decision = policy.decide(observation)   # action, uncertainty, percentile, alarm

This module imports nothing heavy; it can also be copied out of the package and used on its own
together with ``pbrl/errors.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbrl.errors import PbrlError, optional_import

Floats = NDArray[np.float32]
# A raw observation [S] -> a raw action [A].
Fallback = Callable[[Floats], ArrayLike]


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
        alarm: whether that is above the chosen quantile.
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
        quantile: the light is on beyond this quantile of held-out logged data.
        fallback: what to do instead where the light is on; None keeps the policy's action.
        threads: of onnxruntime; one is fastest for single decisions.
    """

    def __init__(
        self,
        model: str | Path | bytes,
        *,
        quantile: float = 0.99,
        fallback: Fallback | None = None,
        threads: int = 1,
    ) -> None:
        if not 0 < quantile < 1:
            raise PbrlError(f"quantile must lie between 0 and 1, got {quantile}.")
        runtime = optional_import("onnxruntime", "export")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        source = model if isinstance(model, bytes) else str(model)
        if not isinstance(model, bytes) and not Path(model).is_file():
            raise PbrlError(f"There is no file {model}; write one with 'pbrl export'.")
        try:
            self._session = runtime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
            found = self._session.get_modelmeta().custom_metadata_map
            self.metadata: dict[str, Any] = json.loads(found["pbrl"])
        except KeyError as error:
            raise PbrlError(f"{model!r} was not written by 'pbrl export'.") from error
        except Exception as error:  # onnxruntime's own exceptions have no common base
            name = "the model" if isinstance(model, bytes) else str(model)
            raise PbrlError(f"onnxruntime cannot read {name}: {error}") from error
        self.quantile, self.fallback = quantile, fallback
        self.observation_dim = int(self.metadata["observation_dim"])
        self.action_dim = int(self.metadata["action_dim"])
        self._names = [output.name for output in self._session.get_outputs()]
        self._grids = {
            name: np.array(self.metadata[name], np.float64)
            for name in ("guard_quantiles_own", "guard_quantiles_proposed", "uncertainty_quantiles")
            if name in self.metadata
        }

    @property
    def guarded(self) -> bool:
        """Whether the file has a warning light inside."""
        return "guard_score" in self._names

    def __call__(self, observations: ArrayLike) -> Floats:
        """What to do, ``[S] -> [A]`` or ``[B, S] -> [B, A]``."""
        return self.decide(observations).action

    def decide(self, observations: ArrayLike) -> Decision:
        """The policy's decision with uncertainty and light, for ``[S]`` or ``[B, S]``."""
        return self._decide(observations, None)

    @property
    def judges(self) -> bool:
        """Whether the file can judge an action that is not the policy's own."""
        return len(self._names) > 1

    def judge(self, observations: ArrayLike, actions: ArrayLike) -> Decision:
        """The same for actions somebody else proposes, ``[A]`` or ``[B, A]``."""
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

    def _decide(self, observations: ArrayLike, actions: ArrayLike | None) -> Decision:
        s, single = _rows(observations, self.observation_dim, "observations")
        a = None
        if actions is not None:
            a, single_action = _rows(actions, self.action_dim, "actions")
            if single != single_action or len(a) != len(s):
                raise PbrlError("observations and actions must have the same number of rows.")
        out = self.outputs(s, a)
        nothing = np.full(len(s), np.nan, np.float32)
        u, score = out.get("uncertainty", nothing), out.get("guard_score", nothing)
        grid = "guard_quantiles_own" if a is None else "guard_quantiles_proposed"
        rank = self._percentile(grid, score)
        alarm = rank > 100 * self.quantile  # NaN, where there is no guard, is never an alarm
        own = out["action"]
        action = own.copy() if a is None else a.copy()
        if self.fallback is not None:
            for i in np.flatnonzero(alarm):
                action[i] = np.asarray(self.fallback(s[i]), np.float32)
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

    def _percentile(self, grid: str, values: Floats) -> Floats:
        if grid not in self._grids:
            return np.full(len(values), np.nan, np.float32)
        quantiles = self._grids[grid]
        shares = np.linspace(0, 100, len(quantiles))
        return np.asarray(np.interp(values, quantiles, shares), np.float32)


def _rows(values: ArrayLike, size: int, what: str) -> tuple[Floats, bool]:
    try:
        array = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise PbrlError(f"{what} must be numbers of shape [{size}] or [B, {size}].") from error
    if array.ndim not in (1, 2) or array.shape[-1] != size:
        raise PbrlError(f"{what} must have shape [{size}] or [B, {size}], got {list(array.shape)}.")
    if not np.isfinite(array).all():
        raise PbrlError(f"{what} contain NaN or infinite values; the policy cannot answer them.")
    return np.ascontiguousarray(np.atleast_2d(array)), array.ndim == 1
