"""From an agent to one ONNX file that needs neither torch nor this package to run.

The file takes raw observations and gives raw actions: normalisation and action bounds are inside.

    input    observation            [batch, S]
    outputs  action                 [batch, A]   the deterministic policy's
             q_mean                 [batch]      mean Q of the critics at that action
             uncertainty            [batch]      U of Eq. 3 at that action
             guard_score            [batch]      where a guard was fitted, see pbrl.deploy.guard;
                                                 infinite where anything is not finite

``q_mean`` and ``uncertainty`` are absent where the algorithm has no critics. An optional second
input ``proposed_action [batch, A]`` (NaN when omitted) makes the last three speak of that action
instead of the policy's own: for judging what another controller is about to do.

Every export is run through onnxruntime and compared with the agent before it is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbrl.algorithms.base import Parts
from pbrl.algorithms.uwac import keep_mask
from pbrl.deploy import guard as g
from pbrl.deploy.agent import Agent
from pbrl.deploy.agreement import check_model
from pbrl.deploy.episodes import ALPHA, EpisodeCalibration, check_alpha
from pbrl.deploy.onnx_graph import Graph
from pbrl.deploy.onnx_policy import CHECKSUM_SPACE, with_checksum
from pbrl.errors import PbrlError, optional_import
from pbrl.nn.critics import Critics
from pbrl.nn.ensemble import EnsembleMLP
from pbrl.nn.policy import DeterministicPolicy, TanhGaussianPolicy

FORMAT_VERSION = 3  # from 2 on with a checksum, from 3 on with episodes
CHECK_ROWS = 256


@dataclass(frozen=True)
class ExportReport:
    """What was written and how closely it agrees with the agent.

    Attributes:
        path: the ONNX file.
        size: bytes.
        outputs: names of its outputs.
        action_error: largest difference of actions, in units of half the action range.
        value_error: largest difference of Q and U, relative to the largest |Q|; None without
            critics.
        guarded: whether the warning light is inside.
        notes: sentences for the user.
    """

    path: Path
    size: int
    outputs: tuple[str, ...]
    action_error: float
    value_error: float | None
    guarded: bool
    notes: tuple[str, ...]


def export_onnx(
    agent: Agent,
    path: str | Path,
    *,
    guard: bool = True,
    alpha: float = ALPHA,
    observations: NDArray[Any] | None = None,
) -> ExportReport:
    """Write ``agent`` as one ONNX file, after checking it against the agent with onnxruntime.

    Args:
        agent: a trained agent.
        path: where to write, usually ``policy.onnx``.
        guard: put the warning light in; fits it first where the agent has none yet.
        alpha: at most this share of episodes like the log raises an alarm.
        observations: raw rows ``[N, S]`` to check on; draws around the training data when omitted.

    Raises:
        PbrlError: when the two do not agree; nothing is written then.
    """
    optional_import("onnxruntime", "export")
    check_alpha(alpha)
    light = agent.require_guard() if guard else None
    notes = []
    if not agent.algorithm.has_critics:
        notes.append(
            f"{agent.algorithm.name} has no critics: the file gives no q_mean and no uncertainty"
            + (", and its guard watches the state alone." if guard else ".")
        )
    if light is not None:
        notes += episode_notes(light.episodes, alpha)
    content, outputs = build_model(agent, light, alpha)
    if observations is None:
        observations = _check_rows(agent)
    action_error, value_error = check_model(content, agent, observations)
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PbrlError(f"Cannot write {path}: {error.strerror}.") from error
    return ExportReport(
        path, len(content), outputs, action_error, value_error, light is not None, tuple(notes)
    )


def episode_notes(episodes: EpisodeCalibration | None, alpha: float) -> list[str]:
    """What the light of episodes promises, in sentences."""
    if episodes is None:
        return [
            "No light for whole episodes: the log has fewer than ten, too few to hold any out, or "
            "all are shorter than the window. Calibrate on others, with --calibrate-on."
        ]
    k, n = episodes.window
    said = f"Light of episodes ({k} of {n} steps): {episodes.threshold(alpha).sentence()}"
    if episodes.unseen:
        return [said]
    return [
        said,
        "The critics learned from these episodes too, so their disagreement there may be smaller "
        "than on new ones, and alarms in deployment more frequent than that.",
    ]


def build_model(
    agent: Agent, guard: g.Guard | None = None, alpha: float = ALPHA
) -> tuple[bytes, tuple[str, ...]]:
    """The ONNX file of an agent, not yet compared with it, and the names of its outputs."""
    graph, maps = Graph(), agent.preprocessing
    parts = _parts(agent)
    policy, critics, noise = parts.policy, parts.critics, parts.candidate_noise
    s = "observation"
    if maps.changes_observations:
        shifted = graph.node("Sub", s, graph.constant(maps.observation_shift))
        s = graph.node("Div", shifted, graph.constant(maps.observation_scale))
    own = _action(graph, policy, critics, noise, s, agent.action_dim)  # in [-1, 1]
    middle, half = (
        (maps.action_high + maps.action_low) / 2,
        (maps.action_high - maps.action_low) / 2,
    )
    if maps.changes_actions:
        graph.affine(own, half, middle, name="action")
    else:
        graph.node("Identity", own, name="action")
    outputs: dict[str, list[int | str]] = {"action": ["batch", agent.action_dim]}
    inputs: dict[str, list[int | str]] = {"observation": ["batch", agent.observation_dim]}

    if critics is not None or guard is not None:
        inputs["proposed_action"] = ["proposals", agent.action_dim]
        graph.default("proposed_action", np.full((1, agent.action_dim), np.nan))
        proposed = "proposed_action"
        if maps.changes_actions:
            centred = graph.node("Sub", proposed, graph.constant(middle))
            proposed = graph.node("Div", centred, graph.constant(half))
        # A proposal is absent where all of it is NaN; a single NaN is a fault of the proposer.
        missing = graph.node("Cast", graph.node("IsNaN", "proposed_action"), to=1)
        share = graph.node("ReduceMin", missing, graph.axes(1), keepdims=1)
        absent = graph.node("Greater", share, graph.constant(np.float32(0.5)))  # [P, 1]
        a = graph.node("Where", absent, own, proposed)
    uncertainty = None
    if critics is not None:
        x = graph.node("Concat", s, a, axis=1)
        correction = agent.algorithm.std_correction
        uncertainty = _judgement(graph, critics, x, parts.dropout_passes, correction)
        outputs |= {"q_mean": ["batch"], "uncertainty": ["batch"]}
    if guard is not None:
        _guard(graph, guard, s, a, absent, uncertainty)
        outputs["guard_score"] = ["batch"]
    model = graph.model(inputs, outputs, _metadata(agent, guard, alpha))
    return with_checksum(model.SerializeToString()), tuple(outputs)


def _parts(agent: Agent) -> Parts:
    """The networks of an algorithm, if they have a form here."""
    parts = agent.algorithm.parts()
    known = isinstance(parts.policy, TanhGaussianPolicy | DeterministicPolicy)
    if not known or not (parts.critics is None or isinstance(parts.critics, Critics)):
        raise PbrlError(f"Networks of {agent.algorithm.name} have no ONNX form here.")
    return parts


def _action(
    graph: Graph,
    policy: Any,
    critics: Critics | None,
    noise: Tensor | None,
    s: str,
    action_dim: int,
) -> str:
    """The deterministic policy in [-1, 1], ``[N, S] -> [N, A]``."""
    if isinstance(policy, DeterministicPolicy):
        return graph.node("Tanh", graph.mlp(policy.network, s))
    mean, log_std = graph.gaussian(policy.network, s, action_dim)
    if noise is None:
        return graph.node("Tanh", mean)
    # BEAR and UWAC: the best of a fixed set of candidates by the first critic.
    assert critics is not None
    spread = graph.node("Mul", graph.node("Exp", log_std), graph.constant(noise))  # [n, N, A]
    candidates = graph.node("Tanh", graph.node("Add", mean, spread))
    one = graph.node("Unsqueeze", s, graph.axes(0))
    like = graph.node("Shape", candidates)
    count_rows = graph.node("Slice", like, graph.axes(0), graph.axes(2), graph.axes(0))
    width = critics.main.in_dim - action_dim
    shape = graph.node("Concat", count_rows, graph.axes(width), axis=0)
    states = graph.node("Expand", one, shape)  # [n, N, S]
    x = graph.node("Concat", states, candidates, axis=2)
    flat = graph.node("Reshape", x, graph.axes(-1, critics.main.in_dim))
    q = graph.critics(critics, flat, member=0)  # [1, n * N]
    q = graph.node("Reshape", q, count_rows)  # [n, N]
    best = graph.node("ArgMax", q, axis=0, keepdims=1)  # [1, N]
    index = graph.node("Unsqueeze", best, graph.axes(2))  # [1, N, 1]
    wide = graph.node("Expand", index, graph.constant([1, 1, action_dim], dtype=np.int64))
    picked = graph.node("GatherElements", candidates, wide, axis=0)  # [1, N, A]
    return graph.node("Squeeze", picked, graph.axes(0))


def _judgement(graph: Graph, critics: Critics, x: str, dropout_passes: int, correction: int) -> str:
    """Outputs ``q_mean`` and ``uncertainty`` at ``x [N, S + A]``."""
    q = graph.critics(critics, x)  # [K, N]
    mean = graph.node("ReduceMean", q, graph.axes(0), keepdims=0, name="q_mean")
    if dropout_passes:
        return _dropout_deviation(graph, critics.main, dropout_passes, x)
    return graph.deviation(q, mean, critics.members, correction, "uncertainty")


def _dropout_deviation(graph: Graph, network: EnsembleMLP, passes: int, x: str) -> str:
    """UWAC's uncertainty: the same fixed dropout masks as the agent's, stored in the file."""
    generator, keep = torch.Generator().manual_seed(0), 1 - network.dropout
    *weights, head = network._effective_weights()

    def drop(h: str, width: int) -> str:  # [K, M or 1, N, H]
        mask = keep_mask((network.members, passes, 1, width), network.dropout, generator)
        kept = graph.node("Cast", graph.constant(mask, dtype=np.bool_), to=1)
        return graph.node("Mul", h, kept)

    h = x
    for i, (weight, bias) in enumerate(zip(weights, network.biases, strict=True)):
        stacked = (weight if i == 0 else weight / keep).unsqueeze(1)  # [K, 1, in, H]
        product = graph.node("MatMul", h, graph.constant(stacked))
        z = graph.node("Add", product, graph.constant(bias.unsqueeze(1)))
        h = drop(graph.node("Relu", z), weight.shape[2])
    product = graph.node("MatMul", h, graph.constant((head / keep).mT.unsqueeze(1)))
    values = graph.node("Squeeze", product, graph.axes(3))  # [K, M, N]; a bias has no variance
    mean = graph.node("ReduceMean", values, graph.axes(1), keepdims=1)
    squares = graph.node("ReduceSumSquare", graph.node("Sub", values, mean), graph.axes(0, 1))
    total = graph.node("Reshape", squares, graph.axes(-1))
    scaled = graph.node("Mul", total, graph.constant(np.float32(1 / passes)))
    return graph.node("Sqrt", scaled, name="uncertainty")


def _guard(
    graph: Graph, guard: g.Guard, s: str, a: str, absent: str, uncertainty: str | None
) -> None:
    """Output ``guard_score``, as ``GuardModel.score`` computes it."""
    model = guard.model
    # Not s / scale - shift / scale: of a column that never varies both are huge.
    centred = graph.node("Sub", s, graph.constant(model.shift))
    standard = graph.node("Div", centred, graph.constant(model.scale))
    x = graph.node("MatMul", standard, graph.constant(model.whitening))
    own_square = graph.node("ReduceSumSquare", x, graph.axes(1), keepdims=1)
    cross = graph.node("MatMul", x, graph.constant(-2 * model.prototypes.mT))
    squares = graph.node("Add", graph.node("Add", own_square, cross),
                         graph.constant(model.prototypes.square().sum(1)))  # fmt: skip
    nearest = graph.node("ReduceMin", squares, graph.axes(1), keepdims=0)
    # onnxruntime's Relu and ReduceMin may lose a NaN, so everything is looked at before them.
    doubts = [graph.doubt(x) for x in ("observation", s, standard, squares, "action", a)]
    parts = [graph.node("Sqrt", graph.node("Relu", nearest))]
    if uncertainty is not None:
        parts.append(uncertainty)
    limit = [graph.constant(np.float32(x)) for x in (-g.OBSERVATION_LIMIT, g.OBSERVATION_LIMIT)]
    mean, log_std = graph.gaussian(
        model.behaviour,
        graph.node("Clip", standard, *limit),
        model.behaviour.head.out_features // 2,
        g.LOG_STD_LIMITS,
    )
    bounds = [graph.constant(np.float32(x)) for x in (-g.ACTION_LIMIT, g.ACTION_LIMIT)]
    u = graph.node("Atanh", graph.node("Clip", a, *bounds))
    inverse = graph.node("Exp", graph.node("Neg", log_std))
    z = graph.node("Mul", graph.node("Sub", u, mean), inverse)
    half = graph.node("Mul", graph.node("Mul", z, z), graph.constant(np.float32(0.5)))
    parts.append(
        graph.node("ReduceSum", graph.node("Add", half, log_std), graph.axes(1), keepdims=0)
    )
    places = [0, 1, 2] if uncertainty is not None else [0, 2]
    scaled = []
    for place, part in zip(places, parts, strict=True):
        factor = 1 / float(model.spreads[place])
        scaled.append(
            graph.affine(
                part, np.float32(factor), np.float32(-float(model.medians[place]) * factor)
            )
        )
    doubts += [graph.doubt(graph.node("Unsqueeze", x, graph.axes(1))) for x in scaled]
    # As in GuardModel.score: the action leads where one is proposed, else the state; the others
    # count beyond 1 alone.
    is_own = graph.node("Squeeze", absent, graph.axes(1))
    nothing, one = graph.constant(np.float32(g.LARGE_NEGATIVE)), graph.constant(np.float32(1))
    state, *middle, action = scaled
    gated = [
        graph.node("Where", graph.node("Greater", part, one), part, nothing)
        for part in (state, *middle)
    ]
    first = graph.node("Where", is_own, state, action)
    score = graph.node("Max", first, *gated)
    unsound = graph.node("IsNaN", graph.node("Sum", *doubts))
    graph.node("Where", unsound, graph.infinity(), score, name="guard_score")


# ------------------------------------------------------------------------------- metadata


def _metadata(agent: Agent, guard: g.Guard | None, alpha: float) -> dict[str, str]:
    info, algorithm = agent.info, agent.algorithm
    data, maps = info.get("data", {}), agent.preprocessing
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "algorithm": algorithm.name,
        "observation_dim": agent.observation_dim,
        "action_dim": agent.action_dim,
        "observation_names": list(agent.observation_names),
        "action_names": list(agent.action_names),
        "action_low": [float(x) for x in maps.action_low],
        "action_high": [float(x) for x in maps.action_high],
        "dataset": data.get("name"),
        "data_fingerprint": data.get("fingerprint"),
        "env_id": data.get("env_id"),
        "versions": info.get("versions", {}),
        "git_revision": info.get("git_revision"),
        "config": info.get("config", {}),
    }
    if guard is not None:
        values["guard"] = guard.about
        values["alpha"] = alpha
        values["episodes"] = None if guard.episodes is None else guard.episodes.to_json()
        values["guard_quantiles_own"] = [float(f"{x:.6g}") for x in guard.own]
        values["guard_quantiles_proposed"] = [float(f"{x:.6g}") for x in guard.proposed]
        if not np.isnan(guard.uncertainty).any():
            values["uncertainty_quantiles"] = [float(f"{x:.6g}") for x in guard.uncertainty]
    plain = {name: str(values[name]) for name in ("algorithm", "dataset", "data_fingerprint")}
    return {"pbrl": json.dumps(values), "sha256": CHECKSUM_SPACE, **plain}


def _check_rows(agent: Agent) -> NDArray[np.float32]:
    """Observations to compare on: around the guard's prototypes, else standard normal."""
    rng = np.random.default_rng(0)
    guard, maps = agent.fitted_guard, agent.preprocessing
    unit = rng.normal(size=(CHECK_ROWS, agent.observation_dim))
    if guard is not None:
        model = guard.model
        unit = model.shift.cpu().numpy() + model.scale.cpu().numpy() * unit
    return np.asarray(unit * maps.observation_scale + maps.observation_shift, np.float32)
