"""The four Adroit tasks as D4RL recorded them: its physics, its rewards and its episode ends.

Gymnasium-Robotics has D4RL's models, actions and observations. Its v1 rewards have the wrong sign
in the reaching term of three tasks and its v2 rewards have it right; here D4RL's formula is
computed afresh, so that the installed version does not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.envs.d4rl_physics import (
    keep_mujoco_quiet,
    restore_collision_code,
    restore_contact_margin,
)
from pbrl.envs.environments import import_robotics

import_robotics()  # before the next import, so that a missing package is named with its extra

from gymnasium_robotics.envs.adroit_hand import (  # noqa: E402
    AdroitHandDoorEnv,
    AdroitHandHammerEnv,
    AdroitHandPenEnv,
    AdroitHandRelocateEnv,
)

Step = tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]


def _distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(a - b))


class _OldContacts:
    """The collision code and contact margin of the MuJoCo that D4RL used."""

    def _initialize_simulation(self) -> tuple[Any, Any]:
        keep_mujoco_quiet()
        model, data = super()._initialize_simulation()  # type: ignore[misc]
        restore_contact_margin(model, 0.0005)
        restore_collision_code(model)
        return model, data


class PenD4RL(_OldContacts, AdroitHandPenEnv):  # type: ignore[misc]
    """Turn a pen in the hand. Ends when the pen drops. Observation [45], action [24]."""

    def step(self, a: NDArray[np.floating[Any]]) -> Step:
        """One step; Gymnasium-Robotics' reward is D4RL's, but it never ends the episode."""
        observation, reward, _, truncated, info = super().step(a)
        dropped = bool(self.data.xpos[self.obj_body_id, 2] < 0.075)
        return observation, float(reward), dropped, truncated, info


class DoorD4RL(_OldContacts, AdroitHandDoorEnv):  # type: ignore[misc]
    """Undo the latch and open the door. Observation [39], action [28]."""

    def step(self, a: NDArray[np.floating[Any]]) -> Step:
        """One step with D4RL's reward."""
        observation, _, terminated, truncated, info = super().step(a)
        palm = self.data.site_xpos[self.grasp_site_id]
        handle = self.data.site_xpos[self.handle_site_id]
        angle = float(self.data.qpos[self.door_hinge_addrs])
        reward = -0.1 * _distance(palm, handle) - 0.1 * (angle - 1.57) ** 2
        reward -= 1e-5 * float(self.data.qvel @ self.data.qvel)
        reward += 2.0 * (angle > 0.2) + 8.0 * (angle > 1.0) + 10.0 * (angle > 1.35)
        return observation, reward, terminated, truncated, info


class HammerD4RL(_OldContacts, AdroitHandHammerEnv):  # type: ignore[misc]
    """Pick up a hammer and drive a nail. Observation [46], action [26]."""

    def step(self, a: NDArray[np.floating[Any]]) -> Step:
        """One step with D4RL's reward."""
        observation, _, terminated, truncated, info = super().step(a)
        palm = self.data.site_xpos[self.S_grasp_site_id]
        hammer = self.data.xpos[self.obj_body_id]
        head = self.data.site_xpos[self.tool_site_id]
        nail = self.data.site_xpos[self.target_obj_site_id]
        left = _distance(nail, self.data.site_xpos[self.goal_site_id])  # still to be driven in
        reward = -0.1 * _distance(palm, hammer) - _distance(head, nail) - 10.0 * left
        reward -= 0.01 * float(np.linalg.norm(self.data.qvel))
        reward += 2.0 * bool(hammer[2] > 0.04 and head[2] > 0.04)
        reward += 25.0 * (left < 0.02) + 75.0 * (left < 0.01)
        return observation, reward, terminated, truncated, info


class RelocateD4RL(_OldContacts, AdroitHandRelocateEnv):  # type: ignore[misc]
    """Carry a ball to a target in the air. Observation [39], action [30]."""

    def step(self, a: NDArray[np.floating[Any]]) -> Step:
        """One step with D4RL's reward."""
        observation, _, terminated, truncated, info = super().step(a)
        palm = self.data.site_xpos[self.S_grasp_site_id]
        ball = self.data.xpos[self.obj_body_id]
        target = self.data.site_xpos[self.target_obj_site_id]
        away = _distance(ball, target)
        reward = -0.1 * _distance(palm, ball)
        if ball[2] > 0.04:
            reward += 1.0 - 0.5 * _distance(palm, target) - 0.5 * away
        reward += 10.0 * (away < 0.1) + 20.0 * (away < 0.05)
        return observation, reward, terminated, truncated, info
