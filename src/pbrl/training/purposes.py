"""What a setting of a run is for.

A field of ``TrainConfig`` says it in its type. Whoever compares runs asks here what to compare, so
that nobody keeps a list of settings of their own:

- resume refuses another value of what is not ``changeable``;
- sweeps know a run again by all but the settings of a place (``sweep/jobs.py``);
- reports name a system by the settings of its result (``reports/gather.py``);
- an experiment's reductions are its departures in result and score (``experiments/budgets.py``).

The settings of an algorithm all decide the result.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Literal

from pbrl.errors import PbrlError

Kind = Literal["result", "score", "record", "place"]


@dataclass(frozen=True)
class Purpose:
    """What a setting decides.

    Attributes:
        kind: the weights (result), what is measured of them (score), what is written down on the
            way (record), or only where, how fast and by which data file it all happens (place; the
            data themselves count by their fingerprint).
        changeable: whether a run may be resumed with another value.
    """

    kind: Kind
    changeable: bool = False


RESULT, SCORE, RECORD = Purpose("result"), Purpose("score"), Purpose("record")
PLACE = Purpose("place", changeable=True)
# A run can be extended; it can begin to keep other checkpoints.
LENGTH, KEPT = Purpose("result", changeable=True), Purpose("record", changeable=True)


def purposes(cls: type) -> dict[str, Purpose]:
    """The purpose of every field of a config, in their order."""
    found: dict[str, Purpose] = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        named = [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Purpose)]
        if not named:
            raise PbrlError(f"The setting {name} of {cls.__name__} does not say what it is for.")
        found[name] = named[0]
    return found


def names_of(cls: type, *kinds: Kind) -> list[str]:
    """The fields of these kinds."""
    return [name for name, purpose in purposes(cls).items() if purpose.kind in kinds]
