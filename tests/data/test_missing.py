"""Logs with gaps: counted, and read as asked without a transition that reaches across one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plant_log import COLUMNS, PlantLog, write_plant_log

from pbrl.cli.main import main
from pbrl.data import TransitionDataset, convert, load_dataset
from pbrl.data.episodes import pick_episodes
from pbrl.data.loading import parse_columns
from pbrl.errors import PbrlError

HEADER = "obs_0,action_0,reward,terminal,episode\n"
# Every observation is its own row's number, so that a transition tells which rows it joins.
GAPPY = (
    "0,0,1,0,a\n1,0,1,0,a\n,0,1,0,a\n3,0,1,0,a\n4,,1,0,a\n5,0,1,0,a\n6,0,1,0,a\n"
    "7,0,1,0,b\n8,0,1,0,b\n9,0,1,1,b\n"
)


@pytest.fixture
def gappy(tmp_path: Path) -> Path:
    path = tmp_path / "gappy.csv"
    path.write_text(HEADER + GAPPY)
    return path


@pytest.fixture
def plant(tmp_path: Path) -> PlantLog:
    return write_plant_log(tmp_path / "plant.csv", batches=20, blanks=30, seed=1)


def joined(data: TransitionDataset) -> list[tuple[int, int]]:
    """Rows of the file that each transition joins; a terminal's own."""
    return [
        (int(a), int(b))
        for a, b in zip(data.observations[:, 0], data.next_observations[:, 0], strict=True)
    ]


def test_gaps_are_refused_with_their_count_and_the_choices(gappy: Path) -> None:
    with pytest.raises(PbrlError) as caught:
        load_dataset(gappy)
    said = str(caught.value)
    assert "line 4, column 'obs_0': an empty cell" in said
    assert "2 cells hold no number, in 2 of 10 rows: obs_0 1, action_0 1" in said
    assert all(word in said for word in ("--missing", "split", "drop-episode", "forward-fill"))
    assert "remove" not in said


def test_split_keeps_what_touches_no_gap(gappy: Path) -> None:
    data = load_dataset(gappy, missing="split")
    # Row 4 has no action but an observation, which is where row 3 led to.
    assert joined(data) == [(0, 1), (3, 4), (5, 6), (7, 8), (8, 9), (9, 9)]
    assert [part.stop - part.start for part in data.episodes()] == [3, 3]
    assert data.behaviour_return_mean() == (7 + 3) / 2


def test_no_next_action_lies_beyond_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "still.csv"  # nothing changes, so states tell nothing
    path.write_text(HEADER + "1,0,1,0,a\n1,,1,0,a\n1,2,,0,a\n1,3,1,0,a\n1,4,1,0,a\n1,5,1,1,a\n")
    data = load_dataset(path, missing="split")
    assert data.actions[:, 0].tolist() == [0, 3, 4, 5]
    after = data.next_actions(np.arange(4))[:, 0]
    assert np.isnan(after[[0, 3]]).all()
    assert after[1:3].tolist() == [4, 5]


def test_drop_episode_leaves_whole_episodes(gappy: Path) -> None:
    data = load_dataset(gappy, missing="drop-episode")
    assert joined(data) == [(7, 8), (8, 9), (9, 9)]
    assert data.behaviour_return_mean() == (7 + 3) / 2


def test_forward_fill_holds_readings_within_an_episode(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(HEADER + "1,1,1,0,a\n2,2,1,0,a\n,,1,0,a\n4,4,,0,a\n5,5,1,1,a\n,6,1,0,b\n"
                    "7,7,1,0,b\n8,8,1,1,b\n")  # fmt: skip
    data = load_dataset(path, missing="forward-fill")
    # The reward of row 3 cannot be known; row 5 has no reading before it in its own episode.
    assert joined(data) == [(1, 2), (2, 2), (2, 4), (5, 5), (7, 8), (8, 8)]
    assert data.actions[:, 0].tolist() == [1, 2, 2, 5, 7, 8]
    assert data.behaviour_return_mean() == 3  # episode a's return is not known


def test_a_terminal_whose_next_row_is_blank_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(
        path,
        observations=np.array([[0.0], [1.0], [np.nan], [3.0]]),
        actions=np.zeros((4, 1)),
        rewards=np.ones(4),
        terminals=np.array([False, True, False, True]),
    )
    # As with D4RL, the last row of such a file is no transition.
    assert joined(load_dataset(path, missing="split")) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("suffix", ["parquet", "npz", "hdf5"])
def test_every_format_has_gaps(gappy: Path, tmp_path: Path, suffix: str) -> None:
    wanted = load_dataset(gappy, missing="split")
    path = tmp_path / f"x.{suffix}"
    rows = [row.split(",") for row in GAPPY.split()]
    cells = [[float(cell) if cell else np.nan for cell in row[:4]] for row in rows]
    table = np.array(cells)
    episode_ends = np.array([row[4] for row in rows])[1:] != np.array([r[4] for r in rows])[:-1]
    arrays = {
        "observations": table[:, :1],
        "actions": table[:, 1:2],
        "rewards": table[:, 2],
        "terminals": table[:, 3] > 0,
        "timeouts": np.append(episode_ends, False),
    }
    if suffix == "parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = {
            "obs_0": [None if np.isnan(x) else x for x in table[:, 0]],
            "action_0": [None if np.isnan(x) else x for x in table[:, 1]],
            "reward": table[:, 2],
            "terminal": arrays["terminals"],
            "episode": [row[4] for row in rows],
        }
        parquet.write_table(arrow.table(columns), path)
    elif suffix == "npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    with pytest.raises(PbrlError, match="2 cells hold no number, in 2 of 10 rows"):
        load_dataset(path)
    found = load_dataset(path, missing="split")
    # Arrays are read as D4RL's: the last row is no transition there.
    assert joined(found) == joined(wanted)[: None if suffix == "parquet" else -1]
    assert found.behaviour_return_mean() == wanted.behaviour_return_mean()


@pytest.mark.parametrize("missing", ["split", "drop-episode", "forward-fill"])
def test_the_plant_keeps_its_returns(plant: PlantLog, missing: str) -> None:
    data = load_dataset(plant.path, columns=parse_columns(COLUMNS), missing=missing)  # type: ignore[arg-type]
    assert np.isfinite(data.observations).all()
    assert np.isfinite(data.next_observations).all()
    assert np.isfinite(data.actions).all()
    assert data.behaviour_return_mean() == pytest.approx(plant.returns.mean(), abs=0.05)
    # A minute of the plant moves its feed by little; across a gap of minutes it would be more.
    if missing != "drop-episode":
        assert len(list(data.episodes())) == len(plant.batches)


def test_episodes_held_out_take_their_returns_along(plant: PlantLog) -> None:
    data = load_dataset(plant.path, columns=parse_columns(COLUMNS), missing="split")
    numbers = [0, 3, 7]
    picked = pick_episodes(data, numbers)
    assert picked.behaviour_return_mean() == pytest.approx(plant.returns[numbers].mean(), abs=0.05)


def test_converted_data_keep_returns_and_transitions(plant: PlantLog, tmp_path: Path) -> None:
    columns = parse_columns(COLUMNS)
    data = load_dataset(plant.path, columns=columns, missing="split")
    for name in ("x.npz", "x.csv", "x.store"):
        convert(plant.path, tmp_path / name, columns=columns, missing="split")
        again = load_dataset(tmp_path / name)
        assert again.fingerprint == data.fingerprint
        assert again.behaviour_return_mean() == data.behaviour_return_mean()
        assert again.observation_names == data.observation_names


def test_inspect_counts_and_goes_on(plant: PlantLog, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "inspect", str(plant.path), "--columns", *COLUMNS]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"30 cells hold no number, in {len(set(plant.blanks[:, 0]))} of {plant.rows:,}" in said
    assert "--missing: split" in said
    assert main([*words, "--missing", "split"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "none reaches across a gap" in said
    assert f"Their mean is {plant.returns.mean():.4g}" in said


def test_text_among_numbers_is_counted_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(HEADER + "0,0,1,0,a\nn/a,0,1,0,a\n2,0,ERR,0,a\n3,0,1,0,a\n4,0,1,0,a\n")
    assert main(["data", "inspect", str(path)]) == 0
    assert "2 cells hold no number, in 2 of 5 rows" in capsys.readouterr().out.replace("\n", " ")
    assert joined(load_dataset(path, missing="split")) == [(3, 4)]


def test_blank_flags_and_unknown_words_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(HEADER + "0,0,1,,a\n1,0,1,,a\n2,0,1,1,a\n")
    with pytest.raises(PbrlError, match=r"has no value in 2 rows.*write 0"):
        load_dataset(path, missing="split")
    with pytest.raises(PbrlError, match="Did you mean 'split'"):
        load_dataset(path, missing="splitt")  # type: ignore[arg-type]
    path.write_text(HEADER + ",0,1,0,a\n1,,1,0,a\n2,0,,1,a\n")
    with pytest.raises(PbrlError, match="no transition is left"):
        load_dataset(path, missing="split")
