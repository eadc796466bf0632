"""Looking back at kept checkpoints: the five kinds of Fig. 3, the trajectories of appendix D.

Both are computed once for a run and kept in its directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from pbrl.data.dataset import TransitionDataset
from pbrl.deploy.agent import Agent
from pbrl.errors import PbrlError
from pbrl.evaluation.probe import probe
from pbrl.evaluation.rollout import Evaluator
from pbrl.training.checkpoint import list_checkpoints
from pbrl.training.files import write_json
from pbrl.training.run import Run

PROBE_CURVES, TRAJECTORY_CURVES = "probe_curves.json", "trajectory_curves.json"
PROBE_ROWS = 1024
EPISODES, STATES = 3, 1000


def kept_steps(run: Run) -> list[int]:
    """Steps of the checkpoints a run kept."""
    return [int(path.name.removeprefix("step_")) for path in list_checkpoints(run.checkpoints)]


def probe_curves(run: Run) -> list[dict[str, Any]]:
    """U and Q of the five kinds of actions at every kept checkpoint.

    Returns:
        ``[{"step", "beta_0", "kinds": {kind: {"u_mean", "q_mean", …}}}, …]``.
    """
    data: list[TransitionDataset] = []

    def look(agent: Agent, step: int) -> dict[str, Any]:
        if not data:
            data.append(_data_of(run))
        return probe(agent, data[0], rows=PROBE_ROWS, seed=0)

    return _at_checkpoints(run, PROBE_CURVES, look)


def trajectory_curves(run: Run) -> list[dict[str, Any]]:
    """Q and U of the policy's own actions along its own trajectories at every kept checkpoint.

    Returns:
        ``[{"step", "trajectory_q", "trajectory_u", "states"}, …]``.
    """
    if run.env_id is None:
        raise PbrlError(f"{run.path} has no environment to follow the policy in.")
    evaluator = Evaluator(run.env_id)

    def look(agent: Agent, step: int) -> dict[str, Any]:
        seen: list[Any] = []

        def policy(observations: Any) -> Any:
            seen.append(observations)
            return agent.act(observations)

        evaluator.evaluate(policy, EPISODES, seed=step)
        states = np.concatenate(seen)[:: max(1, sum(map(len, seen)) // STATES)]
        actions = agent.act(states)
        return {
            "trajectory_q": float(agent.q_values(states, actions).mean()),
            "trajectory_u": float(agent.uncertainty(states, actions).mean()),
            "states": len(states),
        }

    try:
        return _at_checkpoints(run, TRAJECTORY_CURVES, look)
    finally:
        evaluator.close()


def _at_checkpoints(
    run: Run, name: str, look: Callable[[Agent, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    file, steps = run.path / name, kept_steps(run)
    if file.exists():
        stored: list[dict[str, Any]] = json.loads(file.read_text())
        if [record["step"] for record in stored] == steps:
            return stored
    records = [{"step": step, **look(run.agent(step), step)} for step in steps]
    write_json(file, records)
    return records


def _data_of(run: Run) -> TransitionDataset:
    config = run.config
    data = config.load_dataset()
    if data.fingerprint != run.info["data"]["fingerprint"]:
        raise PbrlError(f"{config.dataset} is no longer the data that {run.path} was trained on.")
    return data
