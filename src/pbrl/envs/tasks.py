"""Environments that logged data can be scored in, and D4RL's reference returns for them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownEnvironment:
    """Facts about one D4RL task.

    Attributes:
        family: D4RL's name of the task.
        env_id: our environment with D4RL's physics.
        observation_dim: S.
        action_dim: A; actions lie in ``[-1, 1]``.
        horizon: steps after which D4RL cuts an episode.
        reference_scores: returns of a random and an expert policy, D4RL's 0 and 100.
    """

    family: str
    env_id: str
    observation_dim: int
    action_dim: int
    horizon: int
    reference_scores: tuple[float, float]


# Reference returns: d4rl/infos.py; the same for every version of a task.
ENVIRONMENTS: dict[str, KnownEnvironment] = {
    known.family: known
    for known in (
        KnownEnvironment(
            "halfcheetah", "pbrl/HalfCheetahD4RL-v0", 17, 6, 1000, (-280.178953, 12135.0)
        ),
        KnownEnvironment("hopper", "pbrl/HopperD4RL-v0", 11, 3, 1000, (-20.272305, 3234.3)),
        KnownEnvironment("walker2d", "pbrl/Walker2dD4RL-v0", 17, 6, 1000, (1.629008, 4592.3)),
        KnownEnvironment("pen", "pbrl/PenD4RL-v0", 45, 24, 100, (96.262799, 3076.8331017826877)),
        KnownEnvironment(
            "hammer", "pbrl/HammerD4RL-v0", 46, 26, 200, (-274.856578, 12794.134825156867)
        ),
        KnownEnvironment("door", "pbrl/DoorD4RL-v0", 39, 28, 200, (-56.512833, 2880.5693087298737)),
        KnownEnvironment(
            "relocate", "pbrl/RelocateD4RL-v0", 39, 30, 200, (-6.425911, 4233.877797728884)
        ),
    )
}

_GYMNASIUM = re.compile(
    r"^(?:pbrl/|AdroitHand)?(HalfCheetah|Hopper|Walker2d|Pen|Hammer|Door|Relocate)(?:D4RL)?"
    r"(?:Sparse)?-v\d+$"
)
_FILE = re.compile(r"^(halfcheetah|hopper|walker2d|pen|hammer|door|relocate)(?![a-z])")


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
