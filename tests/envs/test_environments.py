"""Environments by name: D4RL's seven, any of Gymnasium's, and clear refusals."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.mujoco.mujoco_env import expand_model_path
from numpy.typing import NDArray

from pbrl.envs import d4rl_physics
from pbrl.envs.environments import (
    D4RL_ENVIRONMENTS,
    import_robotics,
    make_env,
    register_environments,
)
from pbrl.errors import PbrlError

# task -> observation, action, longest episode (D4RL's own figures)
SHAPES = {
    "hopper": (11, 3, 1000),
    "walker2d": (17, 6, 1000),
    "halfcheetah": (17, 6, 1000),
    "pen": (45, 24, 100),
    "hammer": (46, 26, 200),
    "door": (39, 28, 200),
    "relocate": (39, 30, 200),
}


def simulator(task: str) -> Any:
    env = make_env(D4RL_ENVIRONMENTS[task])
    env.reset(seed=0)
    return env.unwrapped


# --- construction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SHAPES)
def test_shapes_and_horizon_are_d4rls(task: str) -> None:
    observation_dim, action_dim, steps = SHAPES[task]
    env = make_env(D4RL_ENVIRONMENTS[task])
    observation, _ = env.reset(seed=0)
    assert observation.shape == env.observation_space.shape == (observation_dim,)
    assert env.action_space == spaces.Box(-1.0, 1.0, (action_dim,), np.float32)
    assert env.spec is not None
    assert env.spec.max_episode_steps == steps


@pytest.mark.parametrize("task", ["halfcheetah", "door", "hammer", "relocate"])
def test_an_episode_without_termination_lasts_exactly_the_horizon(task: str) -> None:
    env = make_env(D4RL_ENVIRONMENTS[task])
    env.reset(seed=0)
    action = np.zeros(SHAPES[task][1], np.float32)
    steps, truncated = 0, False
    while not truncated:
        _, _, terminated, truncated, _ = env.step(action)
        steps += 1
        assert not terminated
    assert steps == SHAPES[task][2]


def test_the_same_seed_gives_the_same_episode() -> None:
    starts = [make_env("pbrl/HopperD4RL-v0").reset(seed=s)[0] for s in (3, 3, 4)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert np.any(starts[0] != starts[2])


def test_gymnasium_make_knows_our_ids_after_registering_twice() -> None:
    register_environments()
    register_environments()
    env = gymnasium.make("pbrl/HopperD4RL-v0")
    assert env.unwrapped.model.body_mass[1] == pytest.approx(3.5342917)  # type: ignore[attr-defined]


def test_gymnasium_alone_makes_our_environments() -> None:
    """Gymnasium's ``module:Id`` is all it takes; afterwards it knows the plain id too."""
    code = (
        "import gymnasium;"
        "gymnasium.make('pbrl.envs.registered:pbrl/HopperD4RL-v0');"
        "gymnasium.make('pbrl/PenD4RL-v0')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_wrapper_but_the_time_limit() -> None:
    env = make_env("pbrl/HopperD4RL-v0")
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    assert env.env is env.unwrapped


@pytest.mark.parametrize("env_id", ["Hopper-v4", "Hopper-v5", "HalfCheetah-v4", "Pendulum-v1"])
def test_plain_gymnasium_environments_work_without_warnings(env_id: str) -> None:
    env = make_env(env_id)
    env.reset(seed=0)
    env.step(env.action_space.sample())


def test_plain_adroit_is_available_as_shipped() -> None:
    gymnasium.register_envs(import_robotics())
    env = make_env(next(name for name in gymnasium.registry if name.startswith("AdroitHandDoor-")))
    assert env.unwrapped.model.geom_margin[0] == 0.0005  # type: ignore[attr-defined]


def test_importing_the_module_does_not_import_the_simulators() -> None:
    code = (
        "import sys, pbrl.envs.environments;"
        "sys.exit(any(m in sys.modules for m in ('mujoco', 'gymnasium_robotics')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_making_adroit_prints_nothing() -> None:
    code = "from pbrl.envs.environments import make_env; make_env('pbrl/DoorD4RL-v0').reset()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, check=True, text=True
    )
    assert done.stdout == ""
    assert done.stderr == ""


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("Hoper-v4", "Hopper-v4"),
        ("hopper", "pbrl/HopperD4RL-v0"),
        ("pen-human-v1", "pbrl/PenD4RL-v0"),
        ("pbrl/HopperD4RL-v1", "pbrl/HopperD4RL-v0"),
        ("pbrl/Walker2DD4RL-v0", "pbrl/Walker2dD4RL-v0"),
        ("Pendulum", "Pendulum-v1"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(PbrlError, match=rf"Unknown environment '{wrong}'. Did you mean '{meant}'"):
        make_env(wrong)


@pytest.mark.parametrize("wrong", ["", "xyzzy/Nothing-v0"])
def test_a_name_near_nothing_is_answered_with_ours(wrong: str) -> None:
    with pytest.raises(PbrlError, match=r"Unknown environment.*pbrl/HopperD4RL-v0") as caught:
        make_env(wrong)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("env_id", ["nomodule:Thing-v0", "Hopper-v3"])
def test_an_environment_that_cannot_be_made_says_why(env_id: str) -> None:
    with pytest.raises(PbrlError, match=f"'{env_id}' cannot be made here: .*No module named"):
        make_env(env_id)


class Odd(gymnasium.Env[Any, Any]):
    """An environment of nothing but its spaces."""

    def __init__(self, **given: Any) -> None:
        self.observation_space = given["observation"]
        self.action_space = given["action"]


VECTOR = spaces.Box(-1.0, 1.0, (2,))
ODD: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], str]] = {
    "Dict": (spaces.Dict({"seen": VECTOR}), VECTOR, "observations of the form Dict"),
    "Image": (
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        VECTOR,
        r"observations of the form Box with shape \(8, 8, 3\)",
    ),
    "DiscreteSeen": (spaces.Discrete(3), VECTOR, "observations of the form Discrete"),
    "Discrete": (VECTOR, spaces.Discrete(3), "actions of the form Discrete"),
    "Multi": (VECTOR, spaces.MultiDiscrete([2, 2]), "actions of the form MultiDiscrete"),
    "Matrix": (VECTOR, spaces.Box(-1.0, 1.0, (2, 2)), r"actions of the form Box with shape"),
}


@pytest.fixture
def odd_environments() -> Iterator[None]:
    for name, (observation, action, _) in ODD.items():
        gymnasium.register(
            f"odd/{name}-v0", Odd, kwargs={"observation": observation, "action": action}
        )
    yield
    for name in ODD:
        del gymnasium.registry[f"odd/{name}-v0"]


@pytest.mark.usefixtures("odd_environments")
@pytest.mark.parametrize("name", ODD)
def test_spaces_that_are_not_continuous_vectors_are_refused(name: str) -> None:
    with pytest.raises(PbrlError, match=ODD[name][2] + ".*Box of rank 1"):
        make_env(f"odd/{name}-v0")


@pytest.mark.parametrize("env_id", ["AdroitHandDoor-v1", "pbrl/DoorD4RL-v0"])
def test_without_gymnasium_robotics_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, env_id: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "gymnasium_robotics"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    monkeypatch.delitem(sys.modules, "pbrl.envs.d4rl_adroit", raising=False)
    with pytest.raises(PbrlError, match=r'pip install "pbrl\[adroit\]"'):
        make_env(env_id)


# --- MuJoCo's warnings ----------------------------------------------------------------------------


def test_mujoco_warnings_go_to_the_log_and_not_into_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    env = make_env("pbrl/HopperD4RL-v0")
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = np.nan  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "pbrl.mujoco"):
        env.step(np.zeros(3, np.float32))
    assert list(tmp_path.iterdir()) == []
    assert any("unstable" in record.message for record in caplog.records)


def test_a_warning_handler_of_the_users_own_stays() -> None:
    def own(message: str) -> None:
        raise AssertionError(message)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(own)
    try:
        make_env("pbrl/HopperD4RL-v0")
        assert mujoco.get_mju_user_warning() is own
    finally:
        mujoco.set_mju_user_warning(before)


# --- physics --------------------------------------------------------------------------------------


def test_old_capsule_inertia_by_hand() -> None:
    """Hopper's torso: radius 0.05 and half-length 0.2, so a cylinder of radius 0.05, height 0.45.

    Mass π·0.0025·0.45·1000 = 3.534292; across m(3·0.0025 + 0.2025)/12 = 0.0618501;
    along m·0.0025/2 = 0.00441786.
    """
    model = simulator("hopper").model
    assert model.body("torso").mass[0] == pytest.approx(3.534292, rel=1e-6)
    inertia = sorted(model.body("torso").inertia)
    assert inertia == pytest.approx([0.00441786, 0.0618501, 0.0618501], rel=1e-5)


def cylinder_model(xml: str) -> Any:
    """The model with a cylinder, half a radius longer at both ends, in the place of each capsule.

    MuJoCo's own compiler then works out masses, centres and inertias: an independent source.
    """
    compiled = mujoco.MjModel.from_xml_path(expand_model_path(xml))
    spec = mujoco.MjSpec.from_file(expand_model_path(xml))
    for index, geom in enumerate(spec.geoms):
        if compiled.geom_type[index] == mujoco.mjtGeom.mjGEOM_CAPSULE:
            radius, half_length, _ = compiled.geom_size[index]
            geom.type = mujoco.mjtGeom.mjGEOM_CYLINDER
            geom.fromto = np.full(6, np.nan)
            geom.pos, geom.quat = compiled.geom_pos[index], compiled.geom_quat[index]
            geom.size = [radius, half_length + radius / 2.0, 0.0]
    total_mass = spec.compiler.settotalmass
    spec.compiler.settotalmass = -1.0  # MuJoCo warns of this attribute; its function does the same
    model = spec.compile()
    if total_mass > 0.0:
        mujoco.mj_setTotalmass(model, total_mass)
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


@pytest.mark.parametrize(
    ("task", "xml"),
    [("hopper", "hopper.xml"), ("walker2d", "walker2d.xml"), ("halfcheetah", "half_cheetah.xml")],
)
def test_bodies_and_motion_are_those_of_cylinders(task: str, xml: str) -> None:
    ours, expected = simulator(task).model, cylinder_model(xml)
    np.testing.assert_allclose(ours.body_mass, expected.body_mass, rtol=1e-12)
    np.testing.assert_allclose(ours.body_ipos, expected.body_ipos, atol=1e-12)
    np.testing.assert_allclose(ours.body_subtreemass, expected.body_subtreemass, rtol=1e-12)
    np.testing.assert_allclose(ours.dof_invweight0, expected.dof_invweight0, rtol=1e-9)
    np.testing.assert_allclose(ours.body_invweight0, expected.body_invweight0, rtol=1e-9)
    # Each body's inertia in the world frame, and the acceleration without contacts.
    rng = np.random.default_rng(0)
    state = rng.normal(0.0, 0.5, (3, ours.nq + ours.nv + ours.nu))
    for row in state:
        accelerations, inertias = [], []
        for model in (ours, expected):
            data = mujoco.MjData(model)
            data.qpos[:], data.qvel[:] = row[: model.nq], row[model.nq : model.nq + model.nv]
            data.ctrl[:] = row[-model.nu :]
            mujoco.mj_forward(model, data)
            accelerations.append(data.qacc_smooth.copy())
            inertias.append(data.cinert.copy())
        np.testing.assert_allclose(accelerations[0], accelerations[1], rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(inertias[0], inertias[1], rtol=1e-8, atol=1e-9)


def test_halfcheetah_weighs_14_kilograms() -> None:
    assert simulator("halfcheetah").model.body_mass.sum() == pytest.approx(14.0)


def test_walker2d_has_the_feet_of_v4() -> None:
    model = simulator("walker2d").model
    assert model.geom("foot_geom").friction[0] == 0.9
    assert model.geom("foot_left_geom").friction[0] == 1.9


@pytest.mark.parametrize(("gap", "touches"), [(0.0009, True), (0.0011, False)])
def test_hopper_meets_the_floor_at_a_margin_of_one_millimetre(gap: float, touches: bool) -> None:
    env = simulator("hopper")
    qpos = env.init_qpos.copy()
    env.set_state(qpos, env.init_qvel)
    lowest = env.data.geom("foot_geom").xpos[2] - env.model.geom("foot_geom").size[0]
    qpos[1] += gap - lowest
    env.set_state(qpos, env.init_qvel)
    assert (env.data.ncon > 0) == touches


@pytest.mark.parametrize(("version", "margin"), [((3, 4, 0), 0.001), ((3, 5, 0), 0.0005)])
def test_the_margin_is_corrected_only_where_mujoco_changed_it(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], margin: float
) -> None:
    monkeypatch.setattr(d4rl_physics, "mujoco_version", lambda: version)
    np.testing.assert_array_equal(simulator("hopper").model.geom_margin, margin)


@pytest.mark.parametrize("task", ["pen", "hammer", "door", "relocate"])
def test_adroit_uses_the_old_collision_code_and_margin(task: str) -> None:
    model = simulator(task).model
    assert len(np.unique(model.geom_margin)) == 1
    for name in ("mjDSBL_NATIVECCD", "mjDSBL_MULTICCD"):
        flag = getattr(mujoco.mjtDisableBit, name, None)
        if flag is not None:
            assert model.opt.disableflags & int(flag)


def test_a_body_that_is_not_made_of_capsules_is_refused() -> None:
    xml = "<mujoco><worldbody><body><geom size='.1'/><joint/></body></worldbody></mujoco>"
    model = mujoco.MjModel.from_xml_string(xml)
    with pytest.raises(ValueError, match="not made of capsules"):
        d4rl_physics.restore_capsule_inertia(model, mujoco.MjData(model))


# --- rewards and episode ends ---------------------------------------------------------------------


def test_walker2d_reward_and_fall() -> None:
    env = simulator("walker2d")
    rng = np.random.default_rng(0)
    for _ in range(200):
        before, action = env.data.qpos[0], rng.uniform(-1.0, 1.0, 6)
        _, reward, terminated, _, _ = env.step(action)
        expected = (env.data.qpos[0] - before) / 0.008 + 1.0 - 1e-3 * np.sum(action**2)
        assert reward == pytest.approx(expected)
        height, angle = env.data.qpos[1:3]
        assert terminated == (not (0.8 < height < 2.0 and -1.0 < angle < 1.0))
        if terminated:  # the healthy reward is paid on this step too, unlike in v5
            break
    assert terminated


def norm(x: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.sum(x * x)))


def door_reward(env: Any) -> float:
    angle = env.data.joint("door_hinge").qpos[0]
    reward = -0.1 * norm(env.data.site("S_grasp").xpos - env.data.site("S_handle").xpos)
    reward += -0.1 * (angle - 1.57) ** 2 - 1e-5 * np.sum(env.data.qvel**2)
    bonus = 20.0 if angle > 1.35 else 10.0 if angle > 1.0 else 2.0 if angle > 0.2 else 0.0
    return float(reward + bonus)


def hammer_reward(env: Any) -> float:
    palm, tool = env.data.site("S_grasp").xpos, env.data.site("tool").xpos
    nail, goal = env.data.site("S_target").xpos, env.data.site("nail_goal").xpos
    hammer = env.data.body("Object").xpos
    reward = -0.1 * norm(palm - hammer) - norm(tool - nail) - 10.0 * norm(nail - goal)
    reward -= 0.01 * norm(env.data.qvel)
    lifted = 2.0 if hammer[2] > 0.04 and tool[2] > 0.04 else 0.0
    left = norm(nail - goal)
    return reward + lifted + (100.0 if left < 0.01 else 25.0 if left < 0.02 else 0.0)


def relocate_reward(env: Any) -> float:
    palm, ball = env.data.site("S_grasp").xpos, env.data.body("Object").xpos
    target = env.data.site("target").xpos
    reward = -0.1 * norm(palm - ball)
    if ball[2] > 0.04:
        reward += 1.0 - 0.5 * norm(palm - target) - 0.5 * norm(ball - target)
    away = norm(ball - target)
    return reward + (30.0 if away < 0.05 else 10.0 if away < 0.1 else 0.0)


def set_joint(env: Any, joint: str, value: float) -> None:
    qpos = env.data.qpos.copy()
    qpos[env.model.joint(joint).qposadr[0]] = value
    env.set_state(qpos, env.data.qvel.copy())


def put_target(env: Any, above_ball: float) -> None:
    ball = env.data.body("Object").xpos
    env.model.site_pos[env.target_obj_site_id] = ball + np.array([0.0, 0.0, above_ball])
    env.set_state(env.data.qpos.copy(), env.data.qvel.copy())


# task -> plain reward, and situations with the bonus they must reach (None: as it starts)
REWARDS: dict[str, tuple[Any, list[tuple[Any, float]]]] = {
    "door": (
        door_reward,
        [
            (lambda env: None, -2.0),
            (lambda env: set_joint(env, "door_hinge", 0.3), 1.0),
            (lambda env: set_joint(env, "door_hinge", 1.1), 9.0),
            (lambda env: set_joint(env, "door_hinge", 1.45), 19.0),
        ],
    ),
    "hammer": (
        hammer_reward,
        [
            (lambda env: None, -5.0),
            (lambda env: set_joint(env, "OBJTz", 0.2), -2.0),
            (lambda env: set_joint(env, "nail_dir", 0.075), 20.0),
            (lambda env: set_joint(env, "nail_dir", 0.09), 90.0),
        ],
    ),
    "relocate": (
        relocate_reward,
        [
            (lambda env: None, -1.0),
            (lambda env: set_joint(env, "OBJTz", 0.2), 0.3),
            (lambda env: put_target(env, 0.07), 9.0),
            (lambda env: put_target(env, 0.02), 29.0),
        ],
    ),
}


@pytest.mark.parametrize("task", REWARDS)
def test_adroit_rewards_are_d4rls_formulas(task: str) -> None:
    formula, situations = REWARDS[task]
    env = simulator(task)
    rng = np.random.default_rng(0)
    for prepare, at_least in situations:
        env.reset(seed=0)
        prepare(env)
        for step in range(10):
            _, reward, terminated, truncated, _ = env.step(rng.uniform(-0.2, 0.2, env.model.nu))
            assert reward == pytest.approx(formula(env), abs=1e-9)
            if step == 0:
                assert reward > at_least
            assert not terminated
            assert not truncated


def test_reaching_is_rewarded_and_not_punished() -> None:
    """The sign that Gymnasium-Robotics v1 has wrong: farther from the ball must be worse."""
    env = simulator("relocate")
    rewards = []
    for height in (0.0, 0.2):
        env.reset(seed=0)
        set_joint(env, "ARTz", height)
        rewards.append(env.step(np.zeros(env.model.nu))[1])
    far = norm(env.data.site("S_grasp").xpos - env.data.body("Object").xpos)
    assert rewards[1] == pytest.approx(-0.1 * far)


def test_pen_ends_the_episode_when_the_pen_drops() -> None:
    env = simulator("pen")
    _, _, terminated, _, _ = env.step(np.zeros(24))
    assert not terminated
    set_joint(env, "OBJTx", 0.25)  # the pen lies, and its x axis points down
    _, reward, terminated, _, _ = env.step(np.zeros(24))
    assert env.data.body("Object").xpos[2] < 0.075
    assert terminated is True
    assert reward < -4.0
