"""What a run's ``config.json`` must say, so that one that was edited or torn is named as such."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pbrl.data.preprocessing import Preprocessing
from pbrl.errors import PbrlError
from pbrl.training.config import read_config

Check = Callable[[Any], bool]


def read_info(file: Path) -> dict[str, Any]:
    """A run's ``config.json``: whole, and with what younger runs say besides at its default."""
    info = read_config(file)
    _require(file, info, _RUN, "")
    _require(file, info["data"], _DATA, "data.")
    info = {"versions": {}, "git_revision": None, "device": "cpu", **info}
    info["data"] = {**_YOUNGER, **info["data"]}
    _require(file, info["data"], _YOUNGER_CHECKS, "data.")
    maps, data = Preprocessing.from_json(info["preprocessing"], str(file)), info["data"]
    sizes = maps.observation_shift.size, maps.action_low.size
    if sizes != (data["observation_dim"], data["action_dim"]):
        raise PbrlError(
            f"{file} does not describe a run: its preprocessing is for {sizes[0]} observations and "
            f"{sizes[1]} actions, its data have {data['observation_dim']} and "
            f"{data['action_dim']}; restore it from a backup."
        )
    return info


def _require(file: Path, values: dict[str, Any], checks: dict[str, Check], prefix: str) -> None:
    for name, fits in checks.items():
        if name not in values:
            wrong = f"'{prefix}{name}' is missing"
        elif not fits(values[name]):
            wrong = f"'{prefix}{name}' cannot be {str(values[name])[:60]!r}"
        else:
            continue
        raise PbrlError(f"{file} does not describe a run: {wrong}; restore it from a backup.")


def is_number(value: Any) -> bool:
    """A finite JSON number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> bool:
    """A whole number from zero on, that fits a machine's."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_size(value: Any) -> bool:
    return is_count(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_scores(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
    return value is None or (pair and value[0] != value[1])


_RUN: dict[str, Check] = {
    "config": _is_object, "data": _is_object, "preprocessing": _is_object,
    "schedule_steps": _is_size, "threads": is_count,
}  # fmt: skip
_DATA: dict[str, Check] = {
    "name": _is_text, "fingerprint": _is_text, "observation_dim": _is_size, "action_dim": _is_size,
    "env_id": _is_text_or_none, "reference_scores": _are_scores,
    "behaviour_return_mean": is_number,
}  # fmt: skip
_YOUNGER: dict[str, Any] = {
    "source": "", "transitions": 0, "score_source": None, "observation_names": [],
    "action_names": [], "notes": [],
}  # fmt: skip
_YOUNGER_CHECKS: dict[str, Check] = {
    "source": _is_text, "transitions": is_count, "score_source": _is_text_or_none,
    "observation_names": _are_texts, "action_names": _are_texts, "notes": _are_texts,
}  # fmt: skip
