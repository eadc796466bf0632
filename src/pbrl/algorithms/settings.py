"""Settings that say what they may be.

A config is a frozen dataclass. The type of a field is the range it allows, the text under the field
is what it means (``pbrl train --help`` shows it), and a value outside the range is refused with one
sentence:

    gamma: Inside = 0.99
    '''Discount of later rewards.'''

What no single field can say is checked in the config's ``__post_init__`` with ``require``.
"""

from __future__ import annotations

import math
import os
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pbrl.errors import PbrlError


@dataclass(frozen=True)
class Rule:
    """What a number (or every number of a tuple) has to be.

    Attributes:
        holds: whether a number is allowed.
        text: the end of the sentence "<name> must ...".
    """

    holds: Callable[[Any], bool]
    text: str

    def check(self, name: str, value: Any) -> None:
        """Refuse a value; words such as auto and None are not this rule's business."""
        if isinstance(value, tuple):
            require(len(value) > 0 and all(map(self.holds, value)), f"{name} {self.text}")
        elif isinstance(value, int | float):
            require(bool(self.holds(value)), f"{name} {self.text}, got {value}")


Sizes = Annotated[tuple[int, ...], Rule(lambda n: n > 0, "needs positive layer sizes")]
Positive = Annotated[float, Rule(lambda x: x > 0, "must be positive")]
NotNegative = Annotated[float, Rule(lambda x: x >= 0, "must not be negative")]
Share = Annotated[float, Rule(lambda x: 0 <= x <= 1, "is a fraction between 0 and 1")]
Inside = Annotated[float, Rule(lambda x: 0 < x < 1, "must lie between 0 and 1")]
HeldOut = Annotated[float, Rule(lambda x: 0 <= x < 1, "is a share of at least 0 and below 1")]
Dropout = Annotated[float, Rule(lambda x: 0 <= x < 1, "must lie in [0, 1)")]
Tau = Annotated[float, Rule(lambda x: 0 < x <= 1, "must lie in (0, 1]")]
Count = Annotated[int, Rule(lambda n: n >= 1, "must be at least 1")]
CountOrZero = Annotated[int, Rule(lambda n: n >= 0, "must not be negative")]
Seed = Annotated[int, Rule(lambda n: 0 <= n < 2**31, "must lie in [0, 2^31)")]
Members = Annotated[int, Rule(lambda n: n >= 2, "must be at least 2")]


@dataclass(frozen=True)
class AlgorithmConfig:
    """Settings all algorithms share."""

    batch_size: Count = 256
    """Rows of a minibatch."""

    def __post_init__(self) -> None:
        check_rules(self)


def check_rules(config: Any) -> None:
    """Refuse values of a config that the types of its fields do not allow."""
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float):
                require(math.isfinite(number), f"{name} must be finite, got {number}")
        for rule in _rules(hint):
            rule.check(name, value)
        if typing.get_origin(hint) is Literal:
            words = typing.get_args(hint)
            allowed = ", ".join(map(str, words))
            require(value in words, f"{name} must be one of {allowed}, got {value}")


def _rules(hint: Any) -> Iterator[Rule]:
    """The rules of a type and of its parts (``NotNegative | None``)."""
    yield from (x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Rule))
    for part in typing.get_args(hint):
        yield from _rules(part)


def require(condition: bool, complaint: str) -> None:
    """Refuse a setting with one sentence."""
    if not condition:
        raise PbrlError(complaint + ".")


def require_memory(config: Any, in_dim: int) -> None:
    """Refuse networks that no memory of this machine holds, before one of them is made.

    The system promises memory that it does not have, and ends the process that then uses it.
    """
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        return
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        if hint is not Sizes:
            continue
        widths = (in_dim, *getattr(config, name))
        members = getattr(config, "ensemble_size", 1) if name == "hidden" else 1
        weights = members * sum(a * b for a, b in pairwise(widths))
        needed = 16 * weights  # float32: a weight, its gradient and two moments of Adam
        require(
            needed <= installed,
            f"Networks with {name} = {' '.join(map(str, widths[1:]))} need {needed / 1e9:,.0f} GB "
            f"to train, this machine has {installed / 1e9:,.0f}; choose smaller ones",
        )
