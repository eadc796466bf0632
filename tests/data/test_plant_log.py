"""The invented plant log holds what its users rely on."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from plant_log import (
    ACTION,
    HEADER,
    REWARD,
    VALVE_MAX,
    attentive_operator,
    play,
    write_plant_log,
)


def test_file_and_facts_agree(tmp_path: Path) -> None:
    log = write_plant_log(tmp_path / "plant.csv", batches=12, blanks=20, seed=3)
    with log.path.open() as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == HEADER
    assert len(rows) == log.rows
    blanks = [(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if not cell]
    assert blanks == [tuple(place) for place in log.blanks.tolist()]
    assert len(blanks) == 20
    profit, batch = HEADER.index(REWARD), HEADER.index("batch")
    for name, total in enumerate(log.returns, 1):
        logged = sum(float(row[profit]) for row in rows if row[batch] == str(name))
        assert abs(logged - total) < 0.01
    pressure = {row[HEADER.index("reactor_pressure_bar")] for row in rows} - {""}
    assert pressure == {"1.0130"}
    valve = [float(row[HEADER.index(ACTION)] or 0) for row in rows]
    assert min(valve) == 0
    assert max(valve) == VALVE_MAX


def test_seed_and_size(tmp_path: Path) -> None:
    one = write_plant_log(tmp_path / "one.csv", batches=3, minutes=40, seed=1)
    again = write_plant_log(tmp_path / "again.csv", batches=3, minutes=40, seed=1)
    other = write_plant_log(tmp_path / "other.csv", batches=3, minutes=40, seed=2)
    assert one.path.read_bytes() == again.path.read_bytes()
    assert one.path.read_bytes() != other.path.read_bytes()
    assert one.rows == 120


def test_a_better_policy_exists(tmp_path: Path) -> None:
    log = write_plant_log(tmp_path / "plant.csv", batches=40)
    better = play(attentive_operator, 10)
    assert np.all(log.returns < 0)
    assert better.max() < 0
    assert better.mean() > log.returns.max() + 20
