"""What MuJoCo changed since D4RL was recorded, undone in a compiled model.

D4RL's data come from mujoco-py and MuJoCo 1.50 to 2.0. Each function here undoes one later change
of MuJoCo in place, and only where the installed version has that change. docs/d4rl-environments.md
tells the story and gives the size of each effect.
"""

from __future__ import annotations

import logging
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

DENSITY = 1000.0
"""Density of every geom (kg/m³): MuJoCo's default, which all D4RL locomotion models use."""


_LOG = logging.getLogger("pbrl.mujoco")


def keep_mujoco_quiet() -> None:
    """Send MuJoCo's warnings to Python's logging instead of MUJOCO_LOG.TXT in the user's directory.

    A handler that the user has set stays.
    """
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log_warning)


def _log_warning(message: str) -> None:
    # HalfCheetah's XML, which is Gymnasium's, says settotalmass; nothing the user could do.
    if "settotalmass" not in message:
        _LOG.warning("%s", message)


def mujoco_version() -> tuple[int, ...]:
    """The installed MuJoCo version as numbers, for example ``(3, 5, 0)``."""
    return tuple(int(part) for part in mujoco.__version__.split(".")[:3] if part.isdigit())


def legacy_capsule(radius: float, half_length: float) -> tuple[float, NDArray[np.float64]]:
    """Mass and principal inertia ``[3]`` (z along the axis) of a capsule before MuJoCo 2.1.1.

    The old compiler took the capsule for a cylinder whose ends stop half a radius beyond the
    capsule's straight part.
    """
    height = 2.0 * (half_length + radius / 2.0)
    mass = DENSITY * np.pi * radius**2 * height
    across = mass * (3.0 * radius**2 + height**2) / 12.0
    along = mass * radius**2 / 2.0
    return mass, np.array([across, across, along])


def restore_capsule_inertia(model: Any, data: Any, total_mass: float | None = None) -> None:
    """Give every body made of capsules the mass, centre and inertia that the old compiler gave it.

    Args:
        model: compiled ``mujoco.MjModel``, changed in place.
        data: its ``mujoco.MjData``; reset.
        total_mass: the model's ``settotalmass``, applied after the bodies are made.
    """
    for body in range(1, model.nbody):
        geoms = np.flatnonzero(model.geom_bodyid == body)
        if len(geoms) == 0 or np.any(model.geom_type[geoms] != mujoco.mjtGeom.mjGEOM_CAPSULE):
            raise ValueError(f"body {body} is not made of capsules")
        _set_body_inertia(model, body, geoms)
    # The compiler marked frames that coincide so as to skip transformations; a centre that moved
    # makes such a mark wrong, and leaving the marks out is always right.
    model.body_sameframe[:] = 0
    model.geom_sameframe[:] = 0
    # Bounding boxes for the mid-phase of collision detection are kept in the old inertial frames
    # and would miss contacts (MuJoCo 3.4 does); without the mid-phase every pair is looked at.
    if hasattr(mujoco.mjtDisableBit, "mjDSBL_MIDPHASE"):
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    if total_mass is not None:
        mujoco.mj_setTotalmass(model, total_mass)
    mujoco.mj_setConst(model, data)
    mujoco.mj_resetData(model, data)


def _set_body_inertia(model: Any, body: int, geoms: NDArray[np.int64]) -> None:
    parts = [legacy_capsule(*model.geom_size[geom, :2]) for geom in geoms]
    masses = np.array([mass for mass, _ in parts])
    centre = masses @ model.geom_pos[geoms] / masses.sum()
    inertia = np.zeros((3, 3))
    for geom, (mass, principal) in zip(geoms, parts, strict=True):
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, model.geom_quat[geom])
        axes = rotation.reshape(3, 3)
        offset = model.geom_pos[geom] - centre
        inertia += axes @ np.diag(principal) @ axes.T
        inertia += mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    values, vectors = np.linalg.eigh(inertia)
    if np.linalg.det(vectors) < 0:
        vectors[:, 0] *= -1.0
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(vectors).ravel())
    model.body_mass[body] = masses.sum()
    model.body_ipos[body] = centre
    model.body_inertia[body] = values
    model.body_iquat[body] = quaternion


def restore_contact_margin(model: Any, margin: float) -> None:
    """Make ``margin`` the contact margin of every pair of geoms.

    A pair's margin was the larger of its two geoms' margins; since MuJoCo 3.5.0 it is their sum.
    """
    model.geom_margin[:] = margin / 2.0 if mujoco_version() >= (3, 5, 0) else margin


def restore_collision_code(model: Any) -> None:
    """Detect collisions of convex shapes as before MuJoCo 3.3.0 (native CCD) and 3.8.0 (multi CCD).

    Multi CCD was off unless asked for until 3.8.0 turned it on and made it a disable flag.
    """
    for name in ("mjDSBL_NATIVECCD", "mjDSBL_MULTICCD"):
        if hasattr(mujoco.mjtDisableBit, name):
            model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, name))
