"""The one table of tasks: D4RL's names, environments, dimensions, step limits and 0 and 100."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownEnvironment:
    """Facts about one D4RL task.

    Attributes:
        family: D4RL's name of the task.
        env_class: our environment with D4RL's physics, a class of the package ``pbrl.envs``.
        observation_dim: S.
        action_dim: A; actions lie in ``[-1, 1]``.
        horizon: steps after which D4RL cuts an episode.
        reference_scores: returns of a random and an expert policy, D4RL's 0 and 100.
    """

    family: str
    env_class: str
    observation_dim: int
    action_dim: int
    horizon: int
    reference_scores: tuple[float, float]

    @property
    def task(self) -> str:
        """Gymnasium's word for it, e.g. ``Walker2d``."""
        return self.env_class.partition(":")[2].removesuffix("D4RL")

    @property
    def env_id(self) -> str:
        """The id our environment is registered under."""
        return f"pbrl/{self.task}D4RL-v0"


# Reference returns: d4rl/infos.py; the same for every version of a task.
ENVIRONMENTS: dict[str, KnownEnvironment] = {
    known.family: known
    for known in (
        KnownEnvironment("hopper", "d4rl_locomotion:HopperD4RL", 11, 3, 1000, (-20.272305, 3234.3)),
        KnownEnvironment(
            "halfcheetah", "d4rl_locomotion:HalfCheetahD4RL", 17, 6, 1000, (-280.178953, 12135.0)
        ),
        KnownEnvironment(
            "walker2d", "d4rl_locomotion:Walker2dD4RL", 17, 6, 1000, (1.629008, 4592.3)
        ),
        KnownEnvironment(
            "pen", "d4rl_adroit:PenD4RL", 45, 24, 100, (96.262799, 3076.8331017826877)
        ),
        KnownEnvironment(
            "hammer", "d4rl_adroit:HammerD4RL", 46, 26, 200, (-274.856578, 12794.134825156867)
        ),
        KnownEnvironment(
            "door", "d4rl_adroit:DoorD4RL", 39, 28, 200, (-56.512833, 2880.5693087298737)
        ),
        KnownEnvironment(
            "relocate", "d4rl_adroit:RelocateD4RL", 39, 30, 200, (-6.425911, 4233.877797728884)
        ),
    )
}

_TASK = "|".join(known.task for known in ENVIRONMENTS.values())
_GYMNASIUM = re.compile(rf"^(?:pbrl/|AdroitHand)?({_TASK})(?:D4RL)?(?:Sparse)?-v\d+$")
_FILE = re.compile(rf"^({'|'.join(ENVIRONMENTS)})(?![a-z])")


def environment_of_id(env_id: str) -> KnownEnvironment | None:
    """The D4RL task that a Gymnasium id stands for, e.g. ``Hopper-v4`` or ``AdroitHandPen-v1``."""
    match = _GYMNASIUM.match(env_id)
    return ENVIRONMENTS[match.group(1).lower()] if match else None


def environment_of_name(name: str, shape: tuple[int, int]) -> KnownEnvironment | None:
    """The D4RL task a file or dataset name begins with, if ``shape`` = ``(S, A)`` agrees."""
    match = _FILE.match(name.lower())
    known = ENVIRONMENTS[match.group(1)] if match else None
    if known is None or (known.observation_dim, known.action_dim) != shape:
        return None
    return known


def reference_scores(env_id: str) -> tuple[float, float] | None:
    """D4RL's returns for normalised 0 and 100 in ``env_id``; None for other environments."""
    known = environment_of_id(env_id) or ENVIRONMENTS.get(env_id)
    return None if known is None else known.reference_scores
