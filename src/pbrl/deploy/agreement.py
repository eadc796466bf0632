"""Whether an ONNX file says what the agent says: the test every export has to pass.

Both answer the same observations, one row and many, with and without proposed actions. Where a
policy is the best of many candidates by a critic (BEAR, UWAC), two of them can be equal up to
rounding, and either is right: there the values are compared, and the action must be a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbrl.deploy.agent import Agent
from pbrl.deploy.onnx_policy import OnnxPolicy
from pbrl.errors import PbrlError

Floats = NDArray[np.float32]

ACTION_TOLERANCE = 1e-5  # of half the action range
VALUE_TOLERANCE = 1e-5  # of the largest |Q|
SCORE_TOLERANCE = 1e-2  # of scores above 1; a small distance is a difference of large squares


@dataclass
class _Differences:
    """The largest differences so far, in the units of the tolerances."""

    action: float = 0.0
    value: float = 0.0
    score: float = 0.0

    def refuse(self) -> None:
        """PbrlError where they are more than rounding, or NaN."""
        for what, off, limit in (
            ("policy's actions", self.action, ACTION_TOLERANCE),
            ("critics' values", self.value, VALUE_TOLERANCE),
            ("guard's scores", self.score, SCORE_TOLERANCE),
        ):
            if not off <= limit:
                raise PbrlError(f"The exported {what} are off by {off:.2g}; not written.")


def check_model(
    content: bytes, agent: Agent, observations: NDArray[Any]
) -> tuple[float, float | None]:
    """Run a file in onnxruntime beside its agent.

    Args:
        content: the file.
        agent: with its guard, where the file has one.
        observations: raw rows ``[N, S]`` to compare on.

    Returns:
        The largest differences of actions and of Q and U (None without critics).

    Raises:
        PbrlError: when they are more than rounding.
    """
    exported, worst, maps = OnnxPolicy(content), _Differences(), agent.preprocessing
    rng, low, high = np.random.default_rng(1), maps.action_low, maps.action_high
    proposed = rng.uniform(low, high, (len(observations), len(low))).astype(np.float32)
    for actions in (None, proposed) if exported.judges else (None,):
        for rows in (slice(None), slice(0, 1)):
            s = np.asarray(observations[rows], np.float32)
            _compare(worst, exported, agent, s, None if actions is None else actions[rows])
    worst.refuse()
    return worst.action, worst.value if agent.algorithm.has_critics else None


def _compare(
    worst: _Differences, exported: OnnxPolicy, agent: Agent, s: Floats, proposed: Floats | None
) -> None:
    """Take in the differences at ``s [N, S]`` and, where given, of proposals ``[N, A]``."""
    got = exported.outputs(s, proposed)
    judged, size = got["action"] if proposed is None else proposed, 1.0
    if agent.algorithm.has_critics:
        q, u = agent.q_values(s, judged), agent.uncertainty(s, judged)
        size = max(float(np.abs(q).max()), 1e-6)
        worst.value = _larger(worst.value, (got["q_mean"] - q.mean(0)) / size)
        worst.value = _larger(worst.value, (got["uncertainty"] - u) / size)
    worst.action = _larger(worst.action, _off_by(agent, s, got["action"], VALUE_TOLERANCE * size))
    if "guard_score" in got:
        score = _score(agent, s, judged, proposed is None)
        off = (got["guard_score"] - score) / np.maximum(1, np.abs(score))
        worst.score = _larger(worst.score, off)


def _larger(known: float, differences: NDArray[Any]) -> float:
    """The largest size among all; NaN wins."""
    return float(np.max([known, np.abs(differences).max()]))


def _off_by(agent: Agent, s: Floats, actions: Floats, tie: float) -> NDArray[Any]:
    """How far ``actions [N, A]`` are from right ones, in half ranges, ``[N]``."""
    half = (agent.preprocessing.action_high - agent.preprocessing.action_low) / 2
    right = agent.act(s)
    off: NDArray[Any] = (np.abs(actions - right) / half).max(1)
    parts = agent.algorithm.parts()
    if parts.candidate_noise is not None:
        gap = agent.q_values(s, actions)[0] - agent.q_values(s, right)[0]
        tied = (off > ACTION_TOLERANCE) & (np.abs(gap) <= tie)
        if tied.any():
            some = torch.from_numpy(agent.preprocessing.observations(s[tied]))
            with torch.no_grad():
                mean, log_std = parts.policy(some.to(agent.algorithm.device))
                unit = torch.tanh(mean + log_std.exp() * parts.candidate_noise)  # [n, N, A]
            candidates = agent.preprocessing.raw_actions(unit.cpu().numpy())
            off[tied] = (np.abs(actions[tied] - candidates) / half).max(2).min(0)
    return off


def _score(agent: Agent, s: Floats, judged: Floats, own: bool) -> Floats:
    """The guard's score of ``judged [N, A]``, as the policy's own actions or as proposals."""
    device, maps = agent.algorithm.device, agent.preprocessing
    states = torch.from_numpy(maps.observations(s)).to(device)
    units = torch.from_numpy(maps.actions(judged)).to(device)
    u = agent.algorithm.uncertainty(states, units) if agent.algorithm.has_critics else None
    with torch.no_grad():
        score = agent.require_guard().model.score(states, u, None if own else units)
    return np.asarray(score.cpu().numpy(), np.float32)
