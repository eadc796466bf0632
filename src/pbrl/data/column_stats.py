"""Running statistics of columns, for logs read block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass
class ColumnStats:
    """Running statistics of ``[N, D]`` values, NaN and infinite ones counted apart.

    Attributes:
        names: D names.
        count: finite values by column.
        bad: NaN or infinite values by column.
        low: smallest finite value by column.
        high: largest finite value by column.
    """

    names: tuple[str, ...]
    count: Vector = field(init=False)
    bad: Vector = field(init=False)
    low: Vector = field(init=False)
    high: Vector = field(init=False)
    _sum: Vector = field(init=False)
    _square: Vector = field(init=False)
    _origin: Vector | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        size = len(self.names)
        self.count, self.bad, self._sum, self._square = (np.zeros(size) for _ in range(4))
        self.low, self.high = np.full(size, np.inf), np.full(size, -np.inf)

    def add(self, values: NDArray[Any]) -> None:
        """Adds rows."""
        wide = values.astype(np.float64)
        finite = np.isfinite(wide)
        if self._origin is None:
            # Sums are taken around a typical row, which keeps their digits.
            self._origin = np.where(finite, wide, 0).mean(0)
        self.count += finite.sum(0)
        self.bad += (~finite).sum(0)
        self.low = np.minimum(self.low, np.where(finite, wide, np.inf).min(0))
        self.high = np.maximum(self.high, np.where(finite, wide, -np.inf).max(0))
        shifted = np.where(finite, wide - self._origin, 0)
        self._sum += shifted.sum(0)
        self._square += np.square(shifted).sum(0)

    @property
    def mean(self) -> Vector:
        """Mean by column, NaN where no value is finite."""
        origin = 0 if self._origin is None else self._origin
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(origin + self._sum / self.count)

    @property
    def std(self) -> Vector:
        """Population standard deviation by column."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self._sum / self.count
            return np.sqrt(np.maximum(self._square / self.count - mean**2, 0))

    @property
    def constant(self) -> list[str]:
        """Names of columns with one value throughout."""
        same = (self.low == self.high) & (self.bad == 0)
        return [name for name, flag in zip(self.names, same, strict=True) if flag]

    @property
    def broken(self) -> list[str]:
        """Names of columns with NaN or infinite values."""
        return [name for name, bad in zip(self.names, self.bad, strict=True) if bad]

    def to_json(self) -> list[dict[str, Any]]:
        """One object a column."""
        mean, std = self.mean, self.std
        return [
            {
                "name": name,
                "min": _finite(self.low[i]),
                "max": _finite(self.high[i]),
                "mean": _finite(mean[i]),
                "std": _finite(std[i]),
                "bad": int(self.bad[i]),
            }
            for i, name in enumerate(self.names)
        ]


def quantiles(values: NDArray[Any]) -> dict[str, float | None]:
    """Mean, spread and quantiles of a distribution."""
    values = values.astype(np.float64)
    names = ("min", "q25", "median", "q75", "max")
    marks = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    out: dict[str, float | None] = {"mean": _finite(values.mean()), "std": _finite(values.std())}
    return out | {name: _finite(mark) for name, mark in zip(names, marks, strict=True)}


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
