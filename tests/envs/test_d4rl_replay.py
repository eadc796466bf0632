"""Recorded D4RL transitions, replayed: the proof that our environments are D4RL's.

A simulator is put into each recorded state, takes the recorded action, and its reward and next
observation are compared with the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from pbrl.envs import d4rl_adroit, d4rl_locomotion
from pbrl.envs.d4rl_physics import mujoco_version
from pbrl.envs.environments import import_robotics, make_env

Array = NDArray[np.float64]

# task -> (our environment, the one as shipped, bound on the median error)
TASKS = {
    "hopper": ("pbrl/HopperD4RL-v0", "Hopper-v4", 1e-6),
    "halfcheetah": ("pbrl/HalfCheetahD4RL-v0", "HalfCheetah-v4", 1e-5),
    "pen": ("pbrl/PenD4RL-v0", "AdroitHandPen", 1e-5),
    "door": ("pbrl/DoorD4RL-v0", "AdroitHandDoor", 1e-5),
}

# slice -> (task, where its states come from)
SLICES = {
    "hopper_medium-v2": ("hopper", "infos"),
    # These two have constant infos/qpos; all of the state but x, which nothing depends on, is in
    # the observation. The same holds for HalfCheetah, whose infos are of another moment.
    "hopper_medium_replay-v1": ("hopper", "observations"),
    "hopper_random-v1": ("hopper", "observations"),
    "halfcheetah_medium_replay-v1": ("halfcheetah", "observations"),
    # Version 0 does not record the pen's goal; it is in the observation.
    "pen-human-v0": ("pen", "observed goal"),
    "pen-human-v1": ("pen", "desired_orien"),
    "pen-cloned-v1": ("pen", "desired_orien"),
    "pen-expert-v1": ("pen", "desired_orien"),
    "door-human-v1": ("door", "door_body_pos"),
    "door-cloned-v1": ("door", "door_body_pos"),
    "door-expert-v1": ("door", "door_body_pos"),
}


@dataclass
class Errors:
    """Largest absolute differences per replayed row, and whether its episode ended as recorded."""

    reward: Array
    observation: Array
    ends_agree: bool

    def median(self) -> float:
        return float(max(np.median(self.reward), np.median(self.observation)))

    def share_apart(self) -> float:
        """Share of the rows whose next observation differs by more than 1e-3."""
        return float(np.mean(self.observation > 1e-3))


def read_slice(path: Path) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, node: (
                columns.update({name: node[()]}) if isinstance(node, h5py.Dataset) else None
            )
        )
    return columns


def quaternion_from_z(direction: Array) -> Array:
    """A rotation that turns the z axis, along which the pen lies, into ``direction``."""
    z = np.array([0.0, 0.0, 1.0])
    quaternion = np.concatenate([[1.0 + z @ direction], np.cross(z, direction)])
    return np.asarray(quaternion / np.linalg.norm(quaternion))


def put_into_state(env: gymnasium.Env[Any, Any], source: str, data: Any, row: int) -> bool:
    """Restore the recorded state of ``row``; False where the record does not hold it."""
    simulator: Any = env.unwrapped
    if source == "observations":
        seen = np.asarray(data["observations"][row], np.float64)
        positions = simulator.model.nq - 1
        qpos, qvel = np.concatenate([[0.0], seen[:positions]]), seen[positions:]
    else:
        qpos = np.asarray(data["infos/qpos"][row], np.float64)
        qvel = np.asarray(data["infos/qvel"][row], np.float64)
    if source == "observed goal":
        goal = quaternion_from_z(np.asarray(data["observations"][row, 36:39], np.float64))
        simulator.set_env_state({"qpos": qpos, "qvel": qvel, "desired_orien": goal})
        return True
    if source in ("desired_orien", "door_body_pos"):
        extra = np.asarray(data[f"infos/{source}"][row], np.float64)
        simulator.set_env_state({"qpos": qpos, "qvel": qvel, source: extra})
        return True
    if simulator.model.nq == 6 and np.any(np.abs(qvel) >= 10.0):
        return False  # Hopper's recorded velocities are clipped at ±10
    simulator.set_state(qpos, qvel)
    return True


def replay(env: gymnasium.Env[Any, Any], source: str, data: Any) -> Errors:
    env.reset(seed=0)
    rewards = np.asarray(data["rewards"], np.float64).ravel()
    terminals = np.asarray(data["terminals"]).astype(bool)
    ended = terminals | np.asarray(data["timeouts"]).astype(bool)
    reward_errors, observation_errors, ends_agree = [], [], True
    for row in range(len(rewards)):
        if not put_into_state(env, source, data, row):
            continue
        observation, reward, terminated, _, _ = env.unwrapped.step(data["actions"][row])
        reward_errors.append(abs(float(reward) - rewards[row]))
        ends_agree &= terminated == terminals[row]
        if "next_observations" in data:
            following = data["next_observations"][row]
        elif not ended[row]:
            following = data["observations"][row + 1]
        else:
            continue
        observation_errors.append(np.abs(observation - following).max())
    return Errors(np.array(reward_errors), np.array(observation_errors), ends_agree)


def as_shipped(name: str) -> str:
    """The id under which the installed version registers an environment."""
    if not name.startswith("AdroitHand"):
        return name
    gymnasium.register_envs(import_robotics())
    return next(f"{name}-v{v}" for v in (1, 2) if f"{name}-v{v}" in gymnasium.registry)


@pytest.mark.parametrize("name", SLICES)
def test_recorded_actions_give_the_recorded_reward_and_next_observation(
    real_data: Path, name: str
) -> None:
    task, source = SLICES[name]
    ours, _, bound = TASKS[task]
    data = read_slice(real_data / "d4rl-slices" / f"{name}.hdf5")
    errors = replay(make_env(ours), source, data)
    assert len(errors.reward) >= 0.8 * len(data["rewards"])
    assert errors.median() < bound
    # Nearly all rows, not only half of them: one row in ten of door-cloned and one in eighty of
    # door-expert, where the hand lies against a box, differ by up to 0.013 (see the docs).
    left = {"door-cloned-v1": 0.11, "door-expert-v1": 0.02}.get(name, 0.0)
    assert errors.share_apart() <= left
    assert errors.ends_agree


@pytest.mark.parametrize("name", SLICES)
def test_the_environment_as_shipped_does_not_pass_the_same_check(
    real_data: Path, name: str
) -> None:
    task, source = SLICES[name]
    if task == "pen" and mujoco_version() < (3, 3, 0):
        pytest.skip("this MuJoCo still makes contacts as D4RL's did")
    data = read_slice(real_data / "d4rl-slices" / f"{name}.hdf5")
    _, shipped, bound = TASKS[task]
    errors = replay(make_env(as_shipped(shipped)), source, data)
    assert errors.median() > 10 * bound or errors.share_apart() > 0.25


@pytest.mark.parametrize("left_out", ["restore_capsule_inertia", "restore_contact_margin"])
def test_hopper_needs_each_correction(
    real_data: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    if left_out == "restore_contact_margin" and mujoco_version() < (3, 5, 0):
        pytest.skip("this MuJoCo still combines margins as D4RL's did")
    monkeypatch.setattr(d4rl_locomotion, left_out, lambda *_: None)
    data = read_slice(real_data / "d4rl-slices" / "hopper_medium-v2.hdf5")
    errors = replay(make_env("pbrl/HopperD4RL-v0"), "infos", data)
    assert errors.share_apart() > 0.25


@pytest.mark.parametrize("left_out", ["restore_collision_code", "restore_contact_margin"])
def test_pen_needs_each_correction(
    real_data: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    since = {"restore_collision_code": (3, 3, 0), "restore_contact_margin": (3, 5, 0)}[left_out]
    if mujoco_version() < since:
        pytest.skip("this MuJoCo still does here as D4RL's did")
    monkeypatch.setattr(d4rl_adroit, left_out, lambda *_: None)
    data = read_slice(real_data / "d4rl-slices" / "pen-expert-v1.hdf5")
    errors = replay(make_env("pbrl/PenD4RL-v0"), "desired_orien", data)
    assert errors.share_apart() > 0.25


def run_open_loop(env_id: str, data: Any, start: int, stop: int) -> tuple[float, int]:
    """Return and length of an episode that repeats the recorded actions and never looks."""
    env = make_env(env_id)
    env.reset(seed=0)
    simulator: Any = env.unwrapped
    simulator.set_state(data["infos/qpos"][start], data["infos/qvel"][start])
    total = 0.0
    for row in range(start, stop):
        _, reward, terminated, _, _ = env.step(data["actions"][row])
        total += float(reward)
        if terminated:
            break
    return total, row + 1 - start


@pytest.mark.parametrize("episode", [0, 1])
def test_a_whole_hopper_episode_replays_to_its_recorded_return(
    real_data: Path, episode: int
) -> None:
    data = read_slice(real_data / "d4rl-slices" / "hopper_medium-v2.hdf5")
    bounds = [0, *(np.flatnonzero(data["terminals"]) + 1)]
    start, stop = bounds[episode], bounds[episode + 1]
    recorded = data["rewards"][start:stop].sum(dtype=np.float64)
    total, length = run_open_loop("pbrl/HopperD4RL-v0", data, start, stop)
    assert length == stop - start
    assert total == pytest.approx(recorded, rel=1e-5)
    shipped, shipped_length = run_open_loop("Hopper-v4", data, start, stop)
    assert shipped_length < length
    assert shipped < 0.6 * recorded


def test_d4rls_own_hopper_policy_scores_what_d4rls_data_score(real_data: Path) -> None:
    """Twenty episodes of the policy that D4RL stored with hopper-medium-v2, mean return 1422.

    The docs give the figure over 300 episodes; twenty have a standard error of about 80.
    """
    data = read_slice(real_data / "d4rl-slices" / "hopper_medium-v2.hdf5")

    def layer(name: str, x: Array) -> Array:
        weight = data[f"metadata/policy/{name}/weight"].astype(np.float64)
        return np.asarray(x @ weight.T + data[f"metadata/policy/{name}/bias"])

    rng = np.random.default_rng(0)
    envs = [make_env("pbrl/HopperD4RL-v0") for _ in range(20)]
    observations = np.stack([env.reset(seed=100 + i)[0] for i, env in enumerate(envs)])
    returns, running = np.zeros(len(envs)), np.ones(len(envs), bool)
    while running.any():
        hidden = np.maximum(layer("fc1", np.maximum(layer("fc0", observations), 0.0)), 0.0)
        mean, log_std = layer("last_fc", hidden), layer("last_fc_log_std", hidden)
        noise = rng.standard_normal(mean.shape)
        actions = np.tanh(mean + np.exp(np.clip(log_std, -20.0, 2.0)) * noise)
        for i in np.flatnonzero(running):
            observations[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            returns[i] += float(reward)
            running[i] = not (terminated or truncated)
    assert returns.mean() == pytest.approx(1422.0, abs=240.0)
