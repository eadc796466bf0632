"""What every experiment hands back: claims with what was predicted and what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

EXACT = 1e-10
"""Largest difference at which two float64 computations of the same thing count as equal."""

CHANCE = 1e-6
"""Allowed probability that a statistical verdict goes wrong by chance."""


@dataclass(frozen=True)
class Claim:
    """One row of the table.

    Attributes:
        statement: what the paper says, or how it is read.
        prediction: what should be seen.
        measurement: what was seen.
        holds: whether the statement held in the measurement.
        expected: whether it should; false for misprints and for readings known to fail.
    """

    statement: str
    prediction: str
    measurement: str
    holds: bool
    expected: bool = True

    @property
    def as_predicted(self) -> bool:
        """True when the outcome is the one foreseen, be it a confirmation or a refutation."""
        return self.holds == self.expected

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        outcome = "holds" if self.holds else "refuted"
        if not self.as_predicted:
            return f"{outcome}, NOT as predicted"
        return outcome if self.expected else f"{outcome}, as predicted"


@dataclass(frozen=True)
class Experiment:
    """Result of one experiment: its claims, and the numbers its picture is drawn from."""

    name: str
    title: str
    claims: tuple[Claim, ...]
    series: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {
            "name": self.name,
            "title": self.title,
            "claims": [
                {
                    "claim": claim.statement,
                    "prediction": claim.prediction,
                    "measurement": claim.measurement,
                    "verdict": claim.verdict,
                    "as_predicted": bool(claim.as_predicted),
                }
                for claim in self.claims
            ],
            "series": plain(self.series),
        }


def plain(value: Any) -> Any:
    """``value`` with arrays and NumPy scalars turned into what JSON knows."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
