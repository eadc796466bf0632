"""An invented plant and its log: a batch reactor as a stranger would have logged it.

One row a minute, 250 batches, real names, engineering units, negative rewards, a sensor that
never changes, blank cells where sensors were out, one valve from 0 to 40 %. Operators steer with
an unsteady hand, so that a better policy exists; ``attentive_operator`` is one, and ``play``
tells what any policy earns in the plant itself.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Policy = Callable[[Floats], Floats]

OBSERVATIONS = ("reactor_temp_C", "jacket_temp_C", "reactor_feed_l_min", "reactor_pressure_bar")
ACTION, REWARD, TERMINAL, EPISODE = "valve_pct", "profit_eur", "tripped", "batch"
HEADER = ("minute", EPISODE, *OBSERVATIONS, ACTION, REWARD, TERMINAL)
COLUMNS = (
    f"observations={','.join(OBSERVATIONS)}",
    f"actions={ACTION}",
    f"rewards={REWARD}",
    f"terminals={TERMINAL}",
    f"episode={EPISODE}",
)
"""What ``--columns`` takes for this log."""

VALVE_MAX = 40.0
SET_POINT, TRIP_AT, TRIP_COST = 70.0, 92.5, 100.0
SHORTEST, LONGEST = 180, 199  # minutes a batch lasts unless it trips


@dataclass(frozen=True)
class Batch:
    """One batch as it was, before sensors were out.

    Attributes:
        observations: ``[T, 4]``, in the order of ``OBSERVATIONS``.
        valve: ``[T]`` in percent, 0 to 40.
        profit: ``[T]``, never positive.
        tripped: whether its last row ended it for good.
    """

    observations: Floats
    valve: Floats
    profit: Floats
    tripped: bool

    @property
    def total(self) -> float:
        """The batch's undiscounted return."""
        return float(self.profit.sum())


@dataclass(frozen=True)
class PlantLog:
    """What was written, and what a reader should find.

    Attributes:
        path: the CSV file.
        batches: the batches without their gaps.
        blanks: ``[B, 2]`` int, row of the file (from 0) and column of ``HEADER``, ascending.
    """

    path: Path
    batches: list[Batch]
    blanks: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return sum(len(batch.profit) for batch in self.batches)

    @property
    def returns(self) -> Floats:
        """``[E]`` returns of the batches as they were logged."""
        return np.array([batch.total for batch in self.batches])


def run_batch(policy: Policy, rng: np.random.Generator, minutes: int | None = None) -> Batch:
    """One batch under ``policy``, which maps ``[4]`` readings to ``[1]`` percent of valve."""
    length = int(rng.integers(SHORTEST, LONGEST + 1)) if minutes is None else minutes
    reactor, jacket, feed = rng.uniform(18, 45), rng.uniform(18, 45), rng.uniform(2, 6)
    seen, valves, profits, tripped = [], [], [], False
    for _ in range(length):
        readings = np.array([reactor, jacket, feed, 1.013])
        valve = float(np.clip(policy(readings)[0], 0, VALVE_MAX))
        jacket += 0.25 * (15 + 2.2 * valve - jacket) + rng.normal(0, 0.3)
        reactor += 0.1 * (jacket - reactor) - 0.004 * feed * (reactor - 15) + rng.normal(0, 0.2)
        feed = float(np.clip(feed + 0.05 * (4 - feed) + rng.normal(0, 0.15), 1, 7))
        tripped = reactor > TRIP_AT
        seen.append(readings)
        valves.append(valve)
        profits.append(-abs(reactor - SET_POINT) / 10 - 0.004 * valve - TRIP_COST * tripped)
        if tripped:
            break
    return Batch(np.array(seen), np.array(valves), np.array(profits), tripped)


def hasty_operator(rng: np.random.Generator) -> Policy:
    """One who wrote the log: a gain and an opening of their own, and an unsteady hand."""
    gain, opening = rng.uniform(0, 0.8), rng.uniform(16, 46)
    drift = 0.0

    def act(readings: Floats) -> Floats:
        nonlocal drift
        drift = 0.9 * drift + rng.normal(0, 4)
        return np.array([opening + gain * (SET_POINT - readings[0]) + drift])

    return act


def attentive_operator(readings: Floats) -> Floats:
    """A much better policy: what the feed takes is made up for, and deviations are pushed back."""
    reactor, jacket, feed = readings[:3]
    wanted = reactor + (SET_POINT - reactor) / 0.1 + 0.04 * feed * (SET_POINT - 15)
    return np.array([(jacket + (wanted - jacket) / 0.25 - 15) / 2.2])


def play(policy: Policy, batches: int = 20, seed: int = 0) -> Floats:
    """Returns of ``policy`` in the plant, ``[batches]``; equal seeds begin alike."""
    return np.array([run_batch(policy, np.random.default_rng([seed, i])).total
                     for i in range(batches)])  # fmt: skip


def write_plant_log(
    path: Path, batches: int = 250, blanks: int = 133, seed: int = 0, minutes: int | None = None
) -> PlantLog:
    """Writes a plant log as CSV.

    Args:
        path: the file to write.
        batches: how many; 250 give about 47,400 rows.
        blanks: how many cells of sensors and valve are left empty, in outages of 1 to 4 minutes.
        seed: the same gives the same bytes.
        minutes: length of every batch; 180 to 199 by chance when omitted.
    """
    rng = np.random.default_rng(seed)
    log = [run_batch(hasty_operator(rng), rng, minutes) for _ in range(batches)]
    rows = sum(len(batch.profit) for batch in log)
    places = _outages(rows, blanks, rng)
    empty = set(map(tuple, places.tolist()))
    number = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for name, batch in enumerate(log, 1):
            for minute in range(len(batch.profit)):
                last = minute == len(batch.profit) - 1
                numbers = (*batch.observations[minute], batch.valve[minute], batch.profit[minute])
                cells = [minute, name, *(f"{x:.4f}" for x in numbers), int(batch.tripped and last)]
                writer.writerow(
                    "" if (number, place) in empty else cell for place, cell in enumerate(cells)
                )
                number += 1
    return PlantLog(path, log, places)


def _outages(rows: int, blanks: int, rng: np.random.Generator) -> NDArray[np.int64]:
    columns = [HEADER.index(name) for name in (*OBSERVATIONS[:3], ACTION)]
    empty: set[tuple[int, int]] = set()
    while len(empty) < blanks:
        column, start = int(rng.choice(columns)), int(rng.integers(rows))
        for row in range(start, min(rows, start + int(rng.integers(1, 5)))):
            if len(empty) < blanks:
                empty.add((row, column))
    return np.array(sorted(empty), np.int64).reshape(-1, 2)
