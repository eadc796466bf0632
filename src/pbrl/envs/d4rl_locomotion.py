"""Hopper, Walker2d and HalfCheetah as D4RL recorded them.

Gymnasium's v4 classes have D4RL's models, rewards and terminations, and step as they are; only the
physics is put back to that of the MuJoCo of the time.
"""

from __future__ import annotations

from typing import Any

from gymnasium.envs.mujoco.half_cheetah_v4 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v4 import HopperEnv
from gymnasium.envs.mujoco.walker2d_v4 import Walker2dEnv

from pbrl.envs.d4rl_physics import (
    keep_mujoco_quiet,
    restore_capsule_inertia,
    restore_contact_margin,
)


class HopperD4RL(HopperEnv):
    """Hopper with the old capsule inertia and contact margin. Observation [11], action [3]."""

    def _initialize_simulation(self) -> tuple[Any, Any]:
        keep_mujoco_quiet()
        model, data = super()._initialize_simulation()
        restore_contact_margin(model, 0.001)
        restore_capsule_inertia(model, data)
        return model, data


class Walker2dD4RL(Walker2dEnv):
    """Walker2d with the old capsule inertia. Observation [17], action [6]."""

    def _initialize_simulation(self) -> tuple[Any, Any]:
        keep_mujoco_quiet()
        model, data = super()._initialize_simulation()
        restore_capsule_inertia(model, data)
        return model, data


class HalfCheetahD4RL(HalfCheetahEnv):
    """HalfCheetah with the old capsule inertia at a total mass of 14 kg. Obs [17], action [6]."""

    def _initialize_simulation(self) -> tuple[Any, Any]:
        keep_mujoco_quiet()
        model, data = super()._initialize_simulation()
        restore_capsule_inertia(model, data, total_mass=14.0)
        return model, data
