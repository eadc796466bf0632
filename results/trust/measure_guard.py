"""How well warning lights tell unfamiliar actions and states from familiar ones (AUROC).

    python results/trust/measure_guard.py --data demo --work DIR
    python results/trust/measure_guard.py --data PATH/hopper-medium-regen.hdf5 --work DIR

A tenth of the episodes is held out of training, of the guard and of everything else. The rest
trains a run (demo preset, --steps) unless DIR has it already. Four questions on held-out rows:

    a  logged actions, or the same with noise 0.5 (clipped to the bounds)?
    b  logged actions, or uniform ones?
    c  logged observations, or the same moved by 3 deviations (up or down) in three dimensions?
    d  logged observations, or those 1 to 5 steps after a push (all joint velocities + 2 N(0,1))?

a and b judge (observation, action); c and d judge what the policy itself would do there. Writes
results/trust/guard-NAME.json and .png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbrl import Agent, TransitionDataset, load_agent, load_dataset, make_env, train

HERE = Path(__file__).resolve().parent
Score = Callable[[NDArray[Any], NDArray[Any] | None], NDArray[Any]]


def split(dataset: TransitionDataset) -> tuple[TransitionDataset, TransitionDataset]:
    """Nine tenths of the episodes and one tenth."""
    episodes = list(dataset.episodes())
    out = set(np.random.default_rng(0).permutation(len(episodes))[: len(episodes) // 10].tolist())
    rows = [np.arange(e.start, e.stop) for e in episodes]
    kept = np.concatenate([r for i, r in enumerate(rows) if i not in out])
    held = np.concatenate([r for i, r in enumerate(rows) if i in out])
    return dataset.rows(kept), dataset.rows(held)


def auroc(usual: NDArray[Any], odd: NDArray[Any]) -> float:
    """Chance that an odd case scores above a usual one."""
    both = np.concatenate([usual, odd])
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n, m = len(usual), len(odd)
    return float((ranks[n:].sum() - m * (m + 1) / 2) / (n * m))


def pushed_states(agent: Agent, env_id: str, count: int = 1000) -> NDArray[np.float32]:
    """Observations 1 to 5 steps after a push, the policy acting."""
    env, rng, found, episode = make_env(env_id), np.random.default_rng(3), [], 0
    inner: Any = env.unwrapped
    while len(found) < count and episode < 400:
        observation, _ = env.reset(seed=episode)
        episode += 1
        next_push, since = int(rng.integers(10, 40)), 99
        for step in range(1000):
            if step == next_push:
                velocity = inner.data.qvel.copy()
                push = 2 * rng.normal(size=velocity.shape)
                inner.set_state(inner.data.qpos.copy(), velocity + push)
                next_push, since = step + int(rng.integers(20, 60)), 0
            observation, _, terminated, truncated, _ = env.step(agent.act(observation))
            since += 1
            if since <= 5:
                found.append(observation.astype(np.float32))
            if terminated or truncated:
                break
    env.close()
    return np.array(found[:count])


def lights(agent: Agent, training: TransitionDataset) -> dict[str, Score]:
    """The candidates. Each takes observations and proposed actions; None: the policy's own."""
    model, maps = agent.require_guard().model, agent.preprocessing

    def units(s: NDArray[Any], a: NDArray[Any] | None) -> tuple[Any, Any]:
        a = agent.act(s) if a is None else a
        return torch.from_numpy(maps.observations(s)), torch.from_numpy(maps.actions(a))

    def own(s: NDArray[Any], a: NDArray[Any] | None) -> NDArray[Any]:
        return agent.act(s) if a is None else a

    def around(s: NDArray[Any], a: NDArray[Any] | None) -> NDArray[Any]:
        """U over the mean U of eight uniform actions at the same state."""
        rng = np.random.default_rng(0)
        low, high = maps.action_low, maps.action_high
        other = [agent.uncertainty(s, rng.uniform(low, high, (len(s), len(low)))) for _ in range(8)]
        return agent.uncertainty(s, own(s, a)) / (np.mean(other, 0) + 1e-6)

    s_all = training.observations
    mean, deviation = s_all.mean(0), s_all.std(0) + 1e-6
    inverse = np.linalg.inv(np.cov(((s_all - mean) / deviation).T) + 1e-3 * np.eye(len(mean)))

    def mahalanobis(s: NDArray[Any], a: NDArray[Any] | None) -> NDArray[Any]:
        z = (s - mean) / deviation
        return np.sqrt(np.einsum("ni,ij,nj->n", z, inverse, z))

    return {
        "raw U": lambda s, a: agent.uncertainty(s, own(s, a)),
        "U over U of the policy's action": lambda s, a: (
            agent.uncertainty(s, own(s, a)) / (agent.uncertainty(s, agent.act(s)) + 1e-6)
        ),
        "U over U of uniform actions": around,
        "U over |Q|": lambda s, a: (
            agent.uncertainty(s, own(s, a)) / (np.abs(agent.q_values(s, own(s, a)).mean(0)) + 1e-6)
        ),
        "Mahalanobis distance of the state": mahalanobis,
        "nearest logged state (whitened)": lambda s, a: model.state(units(s, a)[0]).numpy(),
        "behaviour model of the action": lambda s, a: model.action(*units(s, a)).numpy(),
        "guard (default)": lambda s, a: agent.guard(s, a).score,
    }


def main() -> None:
    """Measure one dataset."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="demo")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load_dataset(arguments.data)
    name, env_id = dataset.info.name, dataset.info.env_id
    assert env_id is not None
    training, held = split(dataset)
    run = arguments.work / f"guard-{name}"
    if not (run / "summary.json").exists():
        train(training, preset="demo", run_dir=run, steps=arguments.steps, threads=1, eval=False,
              tensorboard=False, quiet=True, resume=True, ensemble_size=10)  # fmt: skip
    agent = load_agent(run)
    agent.fit_guard(training)

    rng = np.random.default_rng(1)
    rows = rng.permutation(len(held))[:2000]
    s, a = held.observations[rows], held.actions[rows]
    low, high = agent.preprocessing.action_low, agent.preprocessing.action_high
    half = (high - low) / 2
    noisy = np.clip(a + 0.5 * half * rng.normal(size=a.shape), low, high).astype(np.float32)
    uniform = rng.uniform(low, high, a.shape).astype(np.float32)
    shifted = s.copy()
    deviation = training.observations.std(0)
    for i in range(len(s)):
        columns = rng.choice(s.shape[1], min(3, s.shape[1]), replace=False)
        shifted[i, columns] += 3 * deviation[columns] * rng.choice([-1, 1], len(columns))
    pushed = pushed_states(agent, env_id)
    table = {}
    for label, score in lights(agent, training).items():
        proposed, alone = score(s, a), score(s, None)
        table[label] = {
            "a noise 0.5": auroc(proposed, score(s, noisy)),
            "b uniform": auroc(proposed, score(s, uniform)),
            "c shifted": auroc(alone, score(shifted, None)),
            "d pushed": auroc(alone, score(pushed, None)),
        }
        print(f"{label:36s}", {k: round(v, 3) for k, v in table[label].items()}, flush=True)
    alarms = {
        "held-out states, own action": float(agent.guard(s).alarm.mean()),
        "held-out states, logged action": float(agent.guard(s, a).alarm.mean()),
        "shifted": float(agent.guard(shifted).alarm.mean()),
        "pushed": float(agent.guard(pushed).alarm.mean()),
        "noisy action": float(agent.guard(s, noisy).alarm.mean()),
        "uniform action": float(agent.guard(s, uniform).alarm.mean()),
    }
    print({k: round(v, 3) for k, v in alarms.items()})
    result = {
        "data": name,
        "regenerated": "regen" in name,
        "run_steps": agent.info["config"]["steps"],
        "held_out_rows": len(rows),
        "pushed_states": len(pushed),
        "auroc": table,
        "alarm_rate_at_quantile_0.99": alarms,
    }
    (HERE / f"guard-{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(table, name)


def draw(table: dict[str, dict[str, float]], name: str) -> None:
    """One row of points a light."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    labels = list(table)
    for i, question in enumerate(next(iter(table.values()))):
        values = [table[label][question] for label in labels]
        axes.plot(values, np.arange(len(labels)) + 0.12 * (i - 1.5), "o", label=question)
    axes.axvline(0.9, color="0.6", linestyle="--")
    axes.set(yticks=range(len(labels)), yticklabels=labels, xlabel="AUROC", title=name)
    axes.legend(fontsize="small")
    figure.savefig(HERE / f"guard-{name}.png", dpi=90)


if __name__ == "__main__":
    main()
