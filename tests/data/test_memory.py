"""Data in memory: mappings of arrays, tables by column, frames of pandas and polars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plant_log import COLUMNS, write_plant_log

import pbrl
from pbrl.data.loading import parse_columns
from pbrl.errors import PbrlError


def arrays(rows: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(rows, 3)),
        "actions": rng.uniform(-1, 1, (rows, 2)),
        "rewards": rng.uniform(size=rows),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % 20 == 19,
    }


class Frame:
    """What a frame of pandas or polars can do, as far as anybody here asks."""

    class Column:
        def __init__(self, values: Any) -> None:
            self.values = values

        def to_numpy(self) -> Any:
            return np.array(self.values)

        def __iter__(self) -> Any:
            return iter(self.values)

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.content = columns

    @property
    def columns(self) -> list[str]:
        return list(self.content)

    def __getitem__(self, name: str) -> Column:
        return Frame.Column(self.content[name])


def columns_of(path: Path) -> dict[str, list[Any]]:
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    return {
        name: [float(row[place]) if row[place] else np.nan for row in rows]
        for place, name in enumerate(header)
    }


def test_a_mapping_of_arrays_is_the_file_of_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **arrays())
    held = pbrl.load_dataset(arrays())
    assert len(held) == 57
    wanted = pbrl.load_dataset(tmp_path / "x.npz")
    np.testing.assert_array_equal(held.observations, wanted.observations)
    np.testing.assert_array_equal(held.episode_ends, wanted.episode_ends)


@pytest.mark.parametrize("kind", ["mapping", "frame", "pandas", "polars"])
def test_tables_are_the_csv_of_the_same(tmp_path: Path, kind: str) -> None:
    log = write_plant_log(tmp_path / "x.csv", batches=3, blanks=12)
    columns = columns_of(log.path)
    made = {"mapping": lambda: columns, "frame": lambda: Frame(columns)}
    if kind not in made:
        made[kind] = lambda: pytest.importorskip(kind).DataFrame(columns)
    roles = parse_columns(COLUMNS)
    with pytest.raises(PbrlError, match="12 cells hold no number"):
        pbrl.load_dataset(made[kind](), columns=roles)
    held = pbrl.load_dataset(made[kind](), columns=roles, missing="split")
    wanted = pbrl.load_dataset(log.path, columns=roles, missing="split")
    assert held.fingerprint == wanted.fingerprint
    assert held.observation_names == wanted.observation_names


def test_training_takes_them(tmp_path: Path) -> None:
    log = write_plant_log(tmp_path / "x.csv", batches=3, blanks=0, minutes=40)
    run = pbrl.train(
        columns_of(log.path), algorithm="bc", columns=COLUMNS, steps=3, batch_size=8, hidden=(8,),
        quiet=True, tensorboard=False, threads=1, run_dir=tmp_path / "run",
    )  # fmt: skip
    assert run.info["data"]["action_names"] == ["valve_pct"]


def test_anything_else_is_told_what_is_taken() -> None:
    with pytest.raises(PbrlError, match=r"mapping of arrays .* frame.*, not a list"):
        pbrl.load_dataset([1, 2])
    with pytest.raises(PbrlError, match="lacks 'actions'"):
        pbrl.load_dataset({"observations": np.zeros((3, 2))})
    with pytest.raises(PbrlError, match=r"column 'b' holds .* numbers are needed"):
        pbrl.load_dataset(
            {"a": [1.0], "b": ["x"], "r": [0.0], "t": [0.0]},
            columns={"obs": "a", "act": "b", "reward": "r", "terminal": "t"},
        )


def test_episodes_that_were_cut_in_silence_are_pointed_out() -> None:
    whole = arrays()
    following = np.roll(whole["observations"], -1, 0)
    cut = {**whole, "next_observations": following + (np.arange(60) % 20 == 19)[:, None]}
    assert not any("do not fit" in note for note in pbrl.load_dataset(cut).info.notes)
    del cut["timeouts"]
    said = " ".join(pbrl.load_dataset(cut).info.notes)
    assert "2 next observations do not fit the following row" in said
    assert "timeouts" in said
    long = arrays(6000)
    del long["timeouts"]
    assert "One episode has 6,000 of 6,000 rows" in " ".join(pbrl.load_dataset(long).info.notes)
