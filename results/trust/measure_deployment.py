"""Guarded deployment in the embedded environment, and speed and size of exported files.

    python results/trust/measure_deployment.py --run RUN --work DIR    # writes deployment.json

The policy runs from its ONNX file. At random times (each step with probability 0.02) its action is
replaced by a uniform one: a stuck cable, a jammed valve. (Three such steps in a row threw the
pendulum over whoever held it, the fallback included.) Four controllers play the same 20 episodes:
same starts, same disturbances, and others than those the light's quantile (0.95) was tried on.

    policy      the exported policy alone
    guarded     hands over to the fallback for ten steps whenever the light is on
    at random   hands over for ten steps at random times, as often as the guarded one did
    fallback    the fallback alone

The fallback is a linear regulator of the upright pendulum, computed from the simulator: the kind of
simple controller a plant already has. ``at random`` tells whether the light knows when.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbrl import Agent, Preprocessing, load_agent, load_dataset, make_env
from pbrl.algorithms import ALGORITHMS
from pbrl.deploy.export import export_onnx
from pbrl.deploy.onnx_policy import OnnxPolicy

HERE = Path(__file__).resolve().parent
ENV = "InvertedDoublePendulum-v5"
EPISODES, HOLD, DISTURBED, CHANCE, QUANTILE = 20, 10, 1, 0.02, 0.95


def regulator() -> NDArray[np.float64]:
    """Feedback gain of a discrete LQR at the upright position, from finite differences."""
    env = make_env(ENV)
    env.reset(seed=0)
    inner: Any = env.unwrapped
    n, step = 3, 1e-4

    def after(x: NDArray[Any], u: float) -> NDArray[Any]:
        inner.set_state(x[:n], x[n:])
        inner.do_simulation(np.array([u]), inner.frame_skip)
        return np.concatenate([inner.data.qpos, inner.data.qvel])

    origin = np.zeros(2 * n)
    a = np.stack([(after(e, 0) - after(-e, 0)) / (2 * step) for e in step * np.eye(2 * n)], axis=1)
    b = ((after(origin, step) - after(origin, -step)) / (2 * step))[:, None]
    cost, effort = np.diag([1.0, 10, 10, 0.1, 1, 1]), np.array([[0.1]])
    p = cost.copy()
    for _ in range(2000):
        gain = np.linalg.solve(effort + b.T @ p @ b, b.T @ p @ a)
        p = cost + a.T @ p @ (a - b @ gain)
    env.close()
    return gain[0]


def joint_state(observation: NDArray[Any]) -> NDArray[np.float64]:
    """qpos and qvel from an observation: x, sines, cosines, velocities, constraint force."""
    x, sin1, sin2, cos1, cos2, *rest = observation
    return np.array([x, np.arctan2(sin1, cos1), np.arctan2(sin2, cos2), *rest[:3]])


def play(policy: OnnxPolicy, how: str, gain: NDArray[Any], share: float) -> dict[str, Any]:
    """Twenty disturbed episodes."""
    returns, handed, steps = [], 0, 0
    env = make_env(ENV)
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=8000 + episode)
        world = np.random.default_rng(300 + episode)  # the disturbances: the same for everyone
        dice = np.random.default_rng(70 + episode)
        total, hold, jam = 0.0, 0, 0
        for _ in range(1000):
            decision = policy.decide(observation)
            alarm = how == "guarded" and bool(decision.alarm)
            whim = how == "at random" and hold == 0 and dice.random() < share
            if alarm or whim:
                hold = HOLD
            action = np.atleast_1d(decision.policy_action)
            if how == "fallback" or hold > 0:
                action = np.array([-gain @ joint_state(observation)])
                handed += 1
                hold -= 1
            jam = DISTURBED if jam == 0 and world.random() < CHANCE else max(0, jam - 1)
            wild = world.uniform(-1, 1, 1)
            action = wild if jam > 0 else np.clip(action, -1, 1)
            observation, reward, terminated, truncated, _ = env.step(action.astype(np.float32))
            total += float(reward)
            steps += 1
            if terminated or truncated:
                break
        returns.append(total)
    env.close()
    return {
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "share_handed_over": handed / steps,
        "returns": returns,
    }


def speed_and_size(work: Path) -> dict[str, Any]:
    """Files of the paper's networks (K = 10, three layers of 256) at Hopper's size, with guard."""
    rng = np.random.default_rng(0)
    out = {}
    rows = 3000
    s = rng.normal(size=(rows, 11)).astype(np.float32)
    a = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    from pbrl import TransitionDataset

    ends = np.arange(rows) % 100 == 99
    data = TransitionDataset(s, a, np.ones(rows, np.float32), s, ends & False, ends)
    for name in ("pbrl", "pbrl-prior"):
        cls = ALGORITHMS[name]
        agent = Agent(cls(cls.Config(), 11, 3), Preprocessing.identity(11, 3))
        agent.fit_guard(data, steps=10)
        report = export_onnx(agent, work / f"{name}.onnx")
        policy = OnnxPolicy(report.path)
        one, seconds = s[0], []
        for _ in range(50):
            policy.decide(one)
        for i in range(500):
            start = time.perf_counter()
            policy.decide(s[i])
            seconds.append(time.perf_counter() - start)
        out[name] = {
            "megabytes": report.size / 1e6,
            "median_ms": 1e3 * float(np.median(seconds)),
            "p95_ms": 1e3 * float(np.quantile(seconds, 0.95)),
            "action_error": report.action_error,
            "value_error": report.value_error,
        }
        print(name, out[name], flush=True)
    return out


def main() -> None:
    """Play, time, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    agent = load_agent(arguments.run)
    if agent.info["config"]["dataset"] == "demo":
        agent.fit_guard(load_dataset("demo"))
    export_onnx(agent, arguments.work / "demo.onnx")
    policy, gain = OnnxPolicy(arguments.work / "demo.onnx", quantile=QUANTILE), regulator()
    table, share = {}, 0.0
    for how in ("policy", "guarded", "at random", "fallback"):
        table[how] = play(policy, how, gain, share)
        handed = table[how]["share_handed_over"]
        if how == "guarded":  # starts a step that give the same share of steps handed over
            share = handed / (HOLD * max(1e-9, 1 - handed))
        print(how, {k: v for k, v in table[how].items() if k != "returns"}, flush=True)
    pairs = np.array(table["guarded"]["returns"]) - np.array(table["policy"]["returns"])
    result = {
        "episodes": EPISODES,
        "quantile": QUANTILE,
        "run_steps": agent.info["config"]["steps"],
        "controllers": table,
        "guarded_minus_policy": {
            "mean": float(pairs.mean()),
            "standard_error": float(pairs.std(ddof=1) / np.sqrt(len(pairs))),
        },
        "onnx": speed_and_size(arguments.work),
    }
    (HERE / "deployment.json").write_text(json.dumps(result, indent=1) + "\n")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.boxplot([row["returns"] for row in table.values()], tick_labels=list(table))
    axes.set(ylabel="return of 20 disturbed episodes", title=ENV)
    figure.savefig(HERE / "deployment.png", dpi=90)


if __name__ == "__main__":
    main()
