"""When an imagined episode ends: MOPO's model predicts states, not terminations.

The rules are those of the Gym and D4RL environments, as functions of the raw next observation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pbrl.envs.tasks import environment_of_id
from pbrl.errors import PbrlError

# Raw next observations [n, S] -> whether the episode ends there, [n] bool.
Termination = Callable[[Tensor], Tensor]
TerminationName = Literal["auto", "none", "hopper", "walker2d", "halfcheetah", "pen"]


def never(next_observations: Tensor) -> Tensor:
    """The episode only ends by its time limit."""
    return torch.zeros(len(next_observations), dtype=torch.bool, device=next_observations.device)


def hopper(next_observations: Tensor) -> Tensor:
    """Falls when the torso is at most 0.7 high or leans 0.2 rad, or a state leaves +-100.

    MOPO's code takes ``abs(next_obs[:, 1:] < 100)``, the absolute value of a comparison, which lets
    states below -100 pass; meant, and done here, is ``abs(next_obs[:, 1:]) < 100``.
    """
    height, angle = next_observations[:, 0], next_observations[:, 1]
    bounded = (next_observations[:, 1:].abs() < 100).all(1)  # False for NaN
    return ~(bounded & (height > 0.7) & (angle.abs() < 0.2))


def walker2d(next_observations: Tensor) -> Tensor:
    """Falls when the torso leaves (0.8, 2) or leans 1 rad; beyond +-100 the model has lost it."""
    height, angle = next_observations[:, 0], next_observations[:, 1]
    upright = (height > 0.8) & (height < 2.0) & (angle.abs() < 1.0)
    return ~(upright & _plausible(next_observations))


def halfcheetah(next_observations: Tensor) -> Tensor:
    """Never ends, but beyond +-100 the model has lost it (as in MOPO's code)."""
    return ~_plausible(next_observations)


def pen(next_observations: Tensor) -> Tensor:
    """D4RL ends the episode when the pen drops below 0.075; its height is the 27th entry."""
    return ~(next_observations[:, 26] >= 0.075)


def _plausible(observations: Tensor) -> Tensor:
    return (observations.abs() < 100).all(1)


@dataclass(frozen=True)
class Rule:
    """A termination function and the size of the observations it reads (None: any)."""

    function: Termination
    observation_dim: int | None


RULES: dict[str, Rule] = {
    "none": Rule(never, None),
    "hopper": Rule(hopper, 11),
    "walker2d": Rule(walker2d, 17),
    "halfcheetah": Rule(halfcheetah, 17),
    "pen": Rule(pen, 45),
}
# D4RL's other Adroit tasks only end by their time limit.
_FAMILIES = {"hammer": "none", "door": "none", "relocate": "none"}


def choose_termination(
    wanted: TerminationName, env_id: str | None, observation_dim: int, any_terminal: bool
) -> tuple[Termination, str]:
    """The rule to use and a sentence about it.

    Args:
        wanted: the user's word; auto looks at the environment.
        env_id: the data's environment, if known.
        observation_dim: S.
        any_terminal: whether the data hold any terminal row.
    """
    name: str = wanted
    if wanted == "auto":
        known = environment_of_id(env_id) if env_id is not None else None
        if known is not None:
            name = _FAMILIES.get(known.family, known.family)
        elif not any_terminal:
            name = "none"
        else:
            where = f"the environment '{env_id}'" if env_id else "data without an environment"
            raise PbrlError(
                f"mopo must know when an imagined episode ends, and has no rule for {where}: set "
                "termination to hopper, walker2d, halfcheetah or pen, or to none if episodes only "
                "end by a time limit; or, in Python, give the algorithm's termination_function a "
                "function of the raw next observations [n, S] that returns bools [n]."
            )
    if name not in RULES:
        raise PbrlError(f"Unknown termination '{name}'; known: auto, {', '.join(RULES)}.")
    rule = RULES[name]
    if rule.observation_dim not in (None, observation_dim):
        raise PbrlError(
            f"The termination rule {name} reads observations of size {rule.observation_dim}, and "
            f"these data have {observation_dim}; set termination to another rule or to none."
        )
    source = f"from '{env_id}'" if wanted == "auto" and env_id else "the data have no terminal row"
    why = "as asked" if wanted != "auto" else source
    return rule.function, f"Imagined episodes end by the rule {name} ({why}); set termination."
