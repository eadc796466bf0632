"""How sure a run is of actions near and far from its data (the paper's Fig. 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import TransitionDataset
from pbrl.deploy.agent import Agent
from pbrl.errors import PbrlError

KINDS = ("offline", "policy", "random", "noise1", "noise2")
NOISE = {"noise1": 0.1, "noise2": 0.5}
DESCRIPTIONS = {
    "offline": "actions of the data",
    "policy": "actions of the learned policy",
    "random": "uniform actions",
    "noise1": "data actions + 0.1 N(0, 1)",
    "noise2": "data actions + 0.5 N(0, 1)",
}


def probe(
    agent: Agent, dataset: TransitionDataset, *, rows: int = 4096, seed: int = 0
) -> dict[str, Any]:
    """U and Q of five kinds of actions at states of the data.

    The noise is in units of the half range of the actions and is not clipped, as in the authors'
    code: noise2 leaves the action bounds on purpose.

    Returns:
        ``{"rows", "kinds": {kind: {"u_mean", "u_std", "u_quantiles", "q_mean", "q_std"}},
        "beta_0"}`` where beta_0 fits min_k Q = mean_k Q - beta_0 * Std_k Q over the policy's
        actions (the paper's remark in appendix B.3).
    """
    if not agent.algorithm.has_critics:
        raise PbrlError(f"{agent.algorithm.name} has no critics, so there is no U to probe.")
    if dataset.observation_dim != agent.observation_dim or dataset.action_dim != agent.action_dim:
        raise PbrlError(
            f"The data have {dataset.observation_dim} observation and {dataset.action_dim} action "
            f"dimensions, the run {agent.observation_dim} and {agent.action_dim}."
        )
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(dataset), min(rows, len(dataset)), replace=False))
    observations = np.asarray(dataset.observations[chosen])
    actions = probe_actions(agent, observations, np.asarray(dataset.actions[chosen]), rng)
    out: dict[str, Any] = {"rows": len(chosen), "seed": seed, "kinds": {}}
    for kind, raw in actions.items():
        q, u = agent.q_values(observations, raw), agent.uncertainty(observations, raw)
        out["kinds"][kind] = {
            "u_mean": float(u.mean()),
            "u_std": float(u.std()),
            "u_quantiles": [float(x) for x in np.quantile(u, [0.05, 0.25, 0.5, 0.75, 0.95])],
            "q_mean": float(q.mean()),
            "q_std": float(q.mean(0).std()),
        }
        if kind == "policy":
            spread = q.std(0)
            gap = q.mean(0) - q.min(0)
            denominator = float((spread * spread).sum())
            out["beta_0"] = float((spread * gap).sum()) / denominator if denominator else None
    return out


def probe_actions(
    agent: Agent,
    observations: NDArray[np.float32],
    data_actions: NDArray[np.float32],
    rng: np.random.Generator,
) -> dict[str, NDArray[np.float32]]:
    """The five kinds of actions at ``observations [B, S]``, raw units, ``[B, A]`` each."""
    maps = agent.preprocessing
    units = maps.actions(data_actions)
    out = {
        "offline": data_actions,
        "policy": agent.act(observations),
        "random": maps.raw_actions(rng.uniform(-1, 1, units.shape)),
    }
    for kind, size in NOISE.items():
        out[kind] = maps.raw_actions(units + size * rng.standard_normal(units.shape))
    return out
