"""The paper's printed numbers, to stand beside ours."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

# The names the paper's tables use -> the names of our algorithms.
ALGORITHM_NAMES = {
    "BC": "bc",
    "BEAR": "bear",
    "UWAC": "uwac",
    "CQL": "cql",
    "MOPO": "mopo",
    "TD3-BC": "td3bc",
    "PBRL": "pbrl",
    "PBRL-Prior": "pbrl-prior",
}

# Averages as the paper prints them under its tables.
PRINTED_AVERAGES = {
    "table1": {
        "BEAR": 38.78,
        "UWAC": 50.41,
        "CQL": 67.35,
        "MOPO": 53.3,
        "TD3-BC": 67.55,
        "PBRL": 74.37,
        "PBRL-Prior": 76.66,
    },
    "table4": {
        "BC": 36.73,
        "BEAR": 38.41,
        "UWAC": 37.57,
        "CQL": 40.31,
        "TD3-BC": 0.02,
        "PBRL": 46.79,
    },
    "table4 without expert": {
        "BC": 11.74,
        "BEAR": 3.21,
        "UWAC": 4.35,
        "CQL": 11.70,
        "TD3-BC": 0.02,
        "PBRL": 14.52,
    },
}

# Appendix B, table 3: seconds per 1000 steps and memory on a GPU, number of parameters.
COSTS = {
    "CQL": {"seconds_per_1000_steps": 30.3, "memory_gb": 1.1, "parameters_millions": 0.42},
    "PBRL": {"seconds_per_1000_steps": 52.1, "memory_gb": 1.7, "parameters_millions": 1.52},
}


@dataclass(frozen=True)
class Cell:
    """A cell of a result table; the deviation is None where the paper prints none."""

    mean: float
    std: float | None


@cache
def table(name: str) -> dict[str, dict[str, Cell]]:
    """``table1`` or ``table4`` as dataset -> algorithm (the paper's name) -> cell."""
    file = {"table1": "table1_gym.csv", "table4": "table4_adroit.csv"}[name]
    text = (resources.files("pbrl.experiments") / "data" / file).read_text()
    out: dict[str, dict[str, Cell]] = {}
    for row in csv.DictReader(text.splitlines()):
        std = float(row["score_std"]) if row["score_std"] else None
        out.setdefault(row["dataset"], {})[row["algorithm"]] = Cell(float(row["score_mean"]), std)
    return out


def datasets(name: str) -> tuple[str, ...]:
    """The datasets of a table, in the paper's order."""
    return tuple(table(name))


def algorithms(name: str) -> tuple[str, ...]:
    """The systems of a table by the paper's names, in its order."""
    return tuple(next(iter(table(name).values())))


def average(name: str, algorithm: str, *, expert: bool = True) -> float:
    """The mean of a system's cells, which is not always what the paper prints below them."""
    cells = [
        row[algorithm].mean
        for dataset, row in table(name).items()
        if expert or "expert" not in dataset
    ]
    return float(np.mean(cells))


def cell_of(name: str, dataset: str, algorithm: str) -> Cell | None:
    """The paper's cell for a dataset however it is versioned, or None."""
    rows = table(name)
    stem = dataset.removesuffix("-v0").removesuffix("-v1").removesuffix("-v2")
    for known, row in rows.items():
        if known in (dataset, stem) or known.removesuffix("-v2") == stem:
            return row.get(algorithm)
    return None


def slips() -> list[tuple[str, str, float, float]]:
    """Printed averages the cells do not give to rounding: (table, algorithm, printed, cells)."""
    found = []
    for place, printed in PRINTED_AVERAGES.items():
        for algorithm, value in printed.items():
            cells = average(place.split()[0], algorithm, expert="without" not in place)
            if abs(cells - value) > 0.005 + 1e-9:
                found.append((place, algorithm, value, cells))
    return found
