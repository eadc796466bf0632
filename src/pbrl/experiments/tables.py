"""Cells and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pbrl.experiments.paper import Cell

Cells = Mapping[str, Mapping[str, Cell]]  # dataset -> system -> cell


def markdown(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def spread(values: Iterable[float | None]) -> str:
    """Mean ± deviation."""
    present = [value for value in values if value is not None]
    if not present:
        return "–"
    return f"{np.mean(present):.4g} ± {np.std(present):.2g}"


def beside(ours: Cell | None, theirs: Cell | None, digits: int = 1) -> str:
    """Our cell, with the paper's in brackets where it has one."""
    left = "–" if ours is None else f"{ours.mean:.{digits}f}"
    if ours is not None and ours.std is not None:
        left += f" ± {ours.std:.1f}"
    if theirs is None:
        return left
    right = f"{theirs.mean:.{digits}f}" + ("" if theirs.std is None else f" ± {theirs.std:.1f}")
    return f"{left} ({right})"


def averages(
    ours: Cells,
    theirs: Cells,
    labels: Sequence[str],
    datasets: Sequence[str],
) -> list[str]:
    """Averages over ``datasets``, system by system, ours with the paper's in brackets."""
    out = []
    for label in labels:
        mine, its = _average(ours, label, datasets), _average(theirs, label, datasets)
        out.append(beside(mine, its, digits=2))
    return out


def _average(cells: Cells, label: str, datasets: Sequence[str]) -> Cell | None:
    """The mean over ``datasets`` where every cell is there."""
    present = [cells[dataset][label].mean for dataset in datasets if label in cells[dataset]]
    return Cell(float(np.mean(present)), None) if len(present) == len(datasets) else None


def cells_json(cells: Cells) -> dict[str, Any]:
    """Cells as ``[mean, deviation]``."""
    return {d: {k: [c.mean, c.std] for k, c in row.items()} for d, row in cells.items()}
