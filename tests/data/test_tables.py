"""CSV and Parquet: column names, episodes, next observations within an episode."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plant_log import ACTION, COLUMNS, HEADER, OBSERVATIONS, write_plant_log

from pbrl.cli.main import main
from pbrl.data import convert, load_dataset
from pbrl.data.loading import open_source
from pbrl.data.summary import summarize
from pbrl.errors import PbrlError

LOG = """obs_0,obs_1,action_0,reward,terminal,timeout,episode
0,10,0.5,1,0,0,1
1,11,-0.5,2,0,0,1
2,12,0.25,3,1,0,1
3,13,0,4,0,0,2
4,14,0,5,0,1,2
5,15,0,6,0,0,3
6,16,0,7,0,0,3
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def to_parquet(path: Path, text: str) -> Path:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    lines = [line.split(",") for line in text.strip().splitlines()]
    columns: dict[str, Any] = {}
    for name, *cells in zip(*lines, strict=True):
        numeric = all(cell.lstrip("-").replace(".", "", 1).isdigit() for cell in cells)
        columns[name] = [float(cell) for cell in cells] if numeric else list(cells)
    arrow.parquet.write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_defaults(tmp_path: Path, kind: str) -> None:
    path = (write if kind == "csv" else to_parquet)(tmp_path / f"x.{kind}", LOG)
    dataset = load_dataset(path)
    # Row 4 was cut and row 6 is where the log stops: what followed them is not known.
    np.testing.assert_array_equal(dataset.rewards, [1, 2, 3, 4, 6])
    np.testing.assert_array_equal(dataset.observations[:, 1], [10, 11, 12, 13, 15])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(dataset.episode_ends, [0, 0, 1, 1, 1])
    # A terminal row's next observation is never another episode's: it keeps its own.
    np.testing.assert_array_equal(dataset.next_observations[:, 0], [1, 2, 2, 4, 6])
    assert any("within the same episode" in note for note in dataset.info.notes)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_episodes_alone_tell_where_a_log_was_cut(tmp_path: Path, kind: str) -> None:
    text = LOG.replace("timeout", "note")
    path = (write if kind == "csv" else to_parquet)(tmp_path / f"x.{kind}", text)
    dataset = load_dataset(path)
    np.testing.assert_array_equal(dataset.rewards, [1, 2, 3, 4, 6])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 1, 0, 0])
    assert any("note" in note for note in dataset.info.notes)


def test_a_final_terminal_row_is_kept(tmp_path: Path) -> None:
    text = "obs_0,action_0,reward,terminal\n1,0,0,0\n2,0,0,0\n3,0,100,1\n"
    dataset = load_dataset(write(tmp_path / "x.csv", text))
    np.testing.assert_array_equal(dataset.rewards, [0, 0, 100])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 1])


def test_missing_boundaries_are_pointed_out(tmp_path: Path) -> None:
    text = "obs_0,action_0,reward,terminal\n1,0,0,0\n2,0,0,0\n"
    notes = " ".join(load_dataset(write(tmp_path / "x.csv", text)).info.notes)
    assert "No timeout and no episode column" in notes


@pytest.mark.parametrize(
    "columns",
    [
        {
            "observations": "pos,vel",
            "actions": "torque",
            "rewards": "r",
            "terminals": "failed",
            "episode": "trial",
        },
        {
            "observations": ["pos", "vel"],
            "actions": ["torque"],
            "rewards": "r",
            "terminals": "failed",
            "episode": "trial",
        },
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_other_names(tmp_path: Path, columns: Any, kind: str) -> None:
    text = "time,pos,vel,torque,r,failed,trial\n" + "\n".join(
        ["0.0,0,10,1,1,0,a", "0.1,1,11,1,2,0,a", "0.2,2,12,1,3,1,b", "0.3,3,13,1,4,0,c"]
    )
    path = (write if kind == "csv" else to_parquet)(tmp_path / f"x.{kind}", text)
    dataset = load_dataset(path, columns=columns)
    np.testing.assert_array_equal(dataset.observations, [[0, 10], [2, 12]])
    np.testing.assert_array_equal(dataset.rewards, [1, 3])
    with pytest.raises(
        PbrlError, match="does not say which columns are observations, actions, rewards"
    ):
        load_dataset(path)


def test_one_message_proposes_every_missing_column(tmp_path: Path) -> None:
    log = write_plant_log(tmp_path / "plant log.csv", batches=2, blanks=0)
    with pytest.raises(PbrlError) as caught:
        load_dataset(log.path)
    said = str(caught.value)
    assert "which columns are observations, actions, rewards, terminals" in said
    assert all(name in said for name in HEADER)
    command = next(line for line in said.splitlines() if line.startswith("pbrl data inspect"))
    words = shlex.split(command)
    assert words[:3] == ["pbrl", "data", "inspect"]
    assert main(words[1:]) == 0  # pasted as it stands
    assert set(words[words.index("--columns") + 1 :]) == set(COLUMNS)


def test_columns_by_the_start_of_their_names(tmp_path: Path) -> None:
    log = write_plant_log(tmp_path / "plant.csv", batches=2, blanks=0)
    columns = {"obs": "reactor_*,jacket_temp_C", "act": "valve_pct", "reward": "profit_eur"}
    dataset = load_dataset(log.path, columns=columns | {"terminal": "tripped", "episode": "batch"})
    starting = [name for name in OBSERVATIONS if name.startswith("reactor_")]
    assert dataset.observation_names == (*starting, "jacket_temp_C")
    assert dataset.action_names == (ACTION,)


def test_prefixes_order_and_one_based_numbers(tmp_path: Path) -> None:
    names = [f"s{i}" for i in range(12, 0, -1)]
    text = ",".join([*names, "act_0", "reward", "terminated"]) + "\n"
    text += ",".join([*(str(i) for i in range(12, 0, -1)), "0", "1", "1"]) + "\n"
    dataset = load_dataset(write(tmp_path / "x.csv", text), columns={"observations": "s*"})
    np.testing.assert_array_equal(dataset.observations[0], range(1, 13))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rewards": "gain"}, "Unknown column for rewards .*'gain'"),
        ({"rewrds": "reward"}, "Unknown column role 'rewrds'. Did you mean 'rewards'"),
        ({"obs": "obs_*", "observations": "obs_0"}, "columns for observations are given twice"),
        ({"rewards": "reward,terminal"}, "give one column for 'rewards'"),
        ({"rewards": "obs_1"}, "column 'obs_1' is used for two things"),
        ({"next_observations": "obs_0"}, "1 columns of next observations and 2"),
        ({"observations": "zz_*"}, "no column whose name starts with 'zz_'; its columns are obs_0"),
    ],
)
def test_bad_maps(tmp_path: Path, columns: Any, message: str) -> None:
    path = write(tmp_path / "x.csv", LOG)
    with pytest.raises(PbrlError, match=message):
        load_dataset(path, columns=columns)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_a_byte_order_mark(tmp_path: Path, delimiter: str) -> None:
    path = write(tmp_path / "x.csv", "\ufeff" + LOG.replace(",", delimiter))
    np.testing.assert_array_equal(load_dataset(path).rewards, [1, 2, 3, 4, 6])


def test_words_quotes_and_blank_lines(tmp_path: Path) -> None:
    text = 'obs_0,action_0,reward,terminal,note\n"1",2,3,False,"a, b"\n\n4,5,6,TRUE,"two\nlines"\n'
    rows = open_source(write(tmp_path / "x.csv", text)).read()
    np.testing.assert_array_equal(rows.observations[:, 0], [1, 4])
    np.testing.assert_array_equal(rows.terminals, [False, True])


def test_long_episode_numbers_are_told_apart(tmp_path: Path) -> None:
    # As floats these two would be one.
    text = "obs_0,action_0,reward,terminal,episode\n"
    for number in ("9007199254740992", "9007199254740993"):
        text += f"1,0,1,0,{number}\n2,0,1,0,{number}\n"
    dataset = load_dataset(write(tmp_path / "x.csv", text))
    assert len(dataset) == 2
    assert dataset.episode_ends.all()


def test_episodes_across_blocks(tmp_path: Path) -> None:
    # More rows than a block, cut where a block ends: row 65535 is an episode's last.
    count = (1 << 16) + 10
    lines = [f"{i},0,1,0,{0 if i < 1 << 16 else 1}" for i in range(count)]
    text = "obs_0,action_0,reward,terminal,episode\n" + "\n".join(lines)
    dataset = load_dataset(write(tmp_path / "x.csv", text))
    assert len(dataset) == count - 2
    assert np.flatnonzero(dataset.episode_ends).tolist() == [(1 << 16) - 2, count - 3]
    np.testing.assert_array_equal(dataset.next_observations[:, 0] - dataset.observations[:, 0], 1.0)


PLANT = """batch,"flow, cooling",reactor [°C],valve %,profit €,trip
a,1.5,300,40,-2,0
a,1.6,301,0,-3,0
a,1.7,302,13.5,-1,1
"""
PLANT_COLUMNS = {
    "observations": ["reactor [°C]", "flow, cooling"],
    "actions": ["valve %"],
    "rewards": ["profit €"],
    "terminals": ["trip"],
    "episode": ["batch"],
}


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".csv", ".parquet", ".store"])
def test_names_of_columns_survive_every_format(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "plant.csv", PLANT)
    convert(path, tmp_path / f"copy{suffix}", columns=PLANT_COLUMNS)
    for dataset in (
        load_dataset(path, columns=PLANT_COLUMNS),
        load_dataset(tmp_path / f"copy{suffix}"),
    ):
        assert dataset.observation_names == ("reactor [°C]", "flow, cooling")
        assert dataset.action_names == ("valve %",)
        np.testing.assert_array_equal(dataset.observations[:, 0], [300, 301, 302])
    summary = summarize(open_source(tmp_path / f"copy{suffix}", strict=False))
    assert summary.observations.names == ("reactor [°C]", "flow, cooling")
    assert [entry["name"] for entry in summary.to_json()["actions"]] == ["valve %"]


def test_nameless_data_number_their_columns() -> None:
    dataset = load_dataset("demo")
    assert dataset.observation_names[:2] == ("obs_0", "obs_1")
    assert dataset.info.observation_names == ()


def test_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", LOG)
    write(tmp_path / "x.csv.json", '{"observation_names": ["a"]}')
    with pytest.raises(PbrlError, match="names 1 observations in its metadata, but has 2"):
        load_dataset(path)
    write(tmp_path / "x.csv.json", '{"observation_names": ["a", "a"]}')
    with pytest.raises(PbrlError, match="'observation_names' in the metadata cannot be"):
        load_dataset(path)
