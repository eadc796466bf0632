"""The guard's light over whole episodes: false alarms, and what it sees of a changed world.

    OMP_NUM_THREADS=1 python results/decide/measure_alarms.py --work DIR [--tasks point demo]

point   Five logs of 400 episodes of 40 steps of the point task (seeds 0 to 4). PBRL (small
        networks, 1,500 steps) learns from 300 of them and so does the guard; 100 calibrate the
        light. Then 200 fresh episodes of the *log's own behaviour* under the same and under changed
        conditions.
demo    The embedded data: PBRL's demo preset, 4,000 steps. 100 episodes of 200 steps of the
        *policy itself* calibrate the light (pbrl export --calibrate-on); 200 fresh ones follow.

An alarm takes 3 of 5 steps in a row above the threshold. Two lights: of the policy's own action at
each state, and (point) of the action that was taken. Writes alarms-point.json, alarms-demo.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from point_task import Point, as_log, regulator

from pbrl import Agent, TransitionDataset, load_agent, load_dataset, train
from pbrl.data.episodes import pick_episodes
from pbrl.deploy.episodes import EpisodeLight
from pbrl.envs.player import Player

HERE = Path(__file__).resolve().parent
ALPHAS, FRESH = (0.1, 0.05), 200
POINT = {
    "the same": Point(),
    "mass +50 %": Point(mass=1.5),
    "friction +50 %": Point(friction=0.45),
    "sensor offset 0.5": Point(offset=0.5),
    "sensor offset 1.5": Point(offset=1.5),
    "pushed by 1": Point(push=1.0),
    "pushed by 2": Point(push=2.0),
}
SMALL: dict[str, Any] = {"hidden": (32, 32), "policy_hidden": (32, 32), "ensemble_size": 4,
                         "n_ood": 4, "batch_size": 128, "gamma": 0.95}  # fmt: skip


def alarms(
    agent: Agent, light: EpisodeLight, log: TransitionDataset, proposed: bool
) -> NDArray[np.int64]:
    """The step of every episode's first alarm, -1 without one."""
    first = []
    for rows in log.episodes():
        s, a = log.observations[rows], log.actions[rows]
        scores = agent.guard(s, a if proposed else None).score
        light.reset()
        on = [bool(light.update(score, proposed)[0]) for score in scores]
        first.append(on.index(True) if True in on else -1)
    return np.array(first)


def told(first: NDArray[np.int64], since: int = 0) -> dict[str, Any]:
    """Share of episodes with an alarm, and the median step of it, counted from ``since``."""
    on = first[first >= 0]
    return {"alarms": len(on), "episodes": len(first),
            "median_step": float(np.median(on) - since) if len(on) else None}  # fmt: skip


def point(work: Path, seeds: int = 5) -> dict[str, Any]:
    """All conditions of the point task."""
    behaviour, noise = regulator(0.8, 0.5), 0.25
    table: dict[str, Any] = {}
    for seed in range(seeds):
        log = Point().log(behaviour, 400, seed, noise)
        run = train(
            log, preset="demo", run_dir=work / f"point{seed}", steps=1500, seed=seed, eval=False,
            hold_out=0.25, threads=1, quiet=True, resume=True, tensorboard=False, **SMALL,
        )  # fmt: skip
        agent, held = run.agent(), run.info["data"]["held_out_episodes"]
        taught = np.setdiff1d(np.arange(400), held)
        agent.fit_guard(pick_episodes(log, taught), seed=seed)
        agent.calibrate_guard(pick_episodes(log, held))
        for name, task in POINT.items():
            fresh = as_log(task.play(behaviour, FRESH, 10_000 + seed, noise))
            for alpha in ALPHAS:
                for proposed in (False, True):
                    light = agent.episode_light(alpha)
                    since = 40 // 3 if task.push else 0
                    found = told(alarms(agent, light, fresh, proposed), since)
                    key = f"{name} | alpha {alpha} | {'action taken' if proposed else 'own'}"
                    table.setdefault(key, []).append(found)
        print(seed, {k: v[-1]["alarms"] for k, v in table.items()}, flush=True)
    return table


def changed(player: Player, mass: float = 1.0, friction: float = 1.0) -> None:
    """Change the simulators' masses and joint damping, from what they are."""
    for env in player._envs:
        model = env.unwrapped.model  # type: ignore[attr-defined]
        model.body_mass[:] *= mass
        model.body_inertia[:] *= mass
        model.dof_damping[:] *= friction


def demo(work: Path, longest: int = 200) -> dict[str, Any]:
    """All conditions of the embedded task."""
    run = work / "demo"
    train("demo", preset="demo", steps=4000, run_dir=run, eval=False, threads=1, quiet=True,
          resume=True, tensorboard=False)  # fmt: skip
    agent, data = load_agent(run), load_dataset("demo")
    agent.fit_guard(data)
    assert data.info.env_id is not None
    spread = data.observations.std(0)

    def play(seeds: range, see: Callable[[Any], Any], player: Player) -> TransitionDataset:
        """Episodes of the policy, which sees through ``see``."""
        seen: dict[int, list[Any]] = {i: [] for i in range(len(seeds))}
        for step in player.play(lambda s: agent.act(see(s)), list(seeds), longest):
            for i, s in zip(step.episodes, see(step.observations), strict=True):
                seen[int(i)].append(s)
        return as_rows(list(seen.values()))

    def as_rows(episodes: list[list[Any]]) -> TransitionDataset:
        s = np.concatenate([np.stack(e) for e in episodes]).astype(np.float32)
        ends = np.zeros(len(s), bool)
        ends[np.cumsum([len(e) for e in episodes]) - 1] = True
        never = np.zeros(len(s), bool)
        return TransitionDataset(s, agent.act(s), np.zeros(len(s), "f4"), s, never, ends)

    def straight(s: Any) -> Any:
        return s

    player, table = Player(data.info.env_id), {}
    agent.calibrate_guard(play(range(1000, 1100), straight, player))
    player.close()
    conditions: dict[str, tuple[dict[str, float], Callable[[Any], Any]]] = {
        "the same": ({}, straight),
        "mass +50 %": ({"mass": 1.5}, straight),
        "joint damping +50 %": ({"friction": 1.5}, straight),
        "sensor offset 1 deviation": ({}, lambda s: s + np.eye(9, dtype="f4")[0] * spread[0]),
        "sensor offset 3 deviations": ({}, lambda s: s + 3 * np.eye(9, dtype="f4")[0] * spread[0]),
    }
    for name, (changes, see) in conditions.items():
        player = Player(data.info.env_id)
        for _ in player.play(agent.act, list(range(FRESH)), 1):
            pass  # so that all simulators are there
        if changes:
            changed(player, **changes)
        fresh = play(range(5000, 5000 + FRESH), see, player)
        player.close()
        for alpha in ALPHAS:
            light = agent.episode_light(alpha)
            key = f"{name} | alpha {alpha} | own"
            table[key] = [told(alarms(agent, light, fresh, False))]
            table[key][0]["mean_steps"] = len(fresh) / FRESH
            print(key, table[key], flush=True)
    return table


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["point", "demo"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for task in arguments.tasks:
        start = time.process_time()
        table = {"point": point, "demo": demo}[task](arguments.work)
        shares = {k: sum(v["alarms"] for v in x) / sum(v["episodes"] for v in x)
                  for k, x in table.items()}  # fmt: skip
        result = {"share_with_alarm": shares, "rows": table,
                  "cpu_seconds": time.process_time() - start}  # fmt: skip
        (HERE / f"alarms-{task}.json").write_text(json.dumps(result, indent=1) + "\n")
        for key, share in shares.items():
            print(f"{share:.3f}  {key}")


if __name__ == "__main__":
    main()
