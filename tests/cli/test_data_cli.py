"""``pbrl data``: what a user types and sees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pbrl.cli.main import main
from pbrl.data import load_dataset


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    terminals = np.zeros(60, bool)
    terminals[[19, 39, 59]] = True
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        observations=rng.normal(size=(60, 3)),
        actions=rng.uniform(-1, 1, (60, 2)),
        rewards=rng.uniform(size=60),
        terminals=terminals,
    )
    return path


def run(*words: object) -> int:
    return main(["data", *map(str, words)])


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    for command in ("inspect", "convert", "mix", "list", "download", "collect", "suite"):
        assert command in out


@pytest.mark.parametrize("command", ["inspect", "convert", "mix", "list", "download", "suite"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(command, "--help")
    assert stop.value.code == 0
    assert f"pbrl data {command}" in capsys.readouterr().out


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspct") == 2
    assert "Did you mean 'inspect'?" in capsys.readouterr().err


def test_inspect(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, numbers = tmp_path / "x.html", tmp_path / "x.json"
    assert run("inspect", log, "--html", page, "--json", numbers) == 0
    out = capsys.readouterr().out
    assert "59 of 60 raw rows" in out
    assert "No reward is negative" in out
    assert "obs_2" in out
    assert "action_1" in out
    assert page.read_text().startswith("<!doctype html>")
    found = json.loads(numbers.read_text())
    assert found["episodes"] == found["terminals"] == 3
    assert found["timeouts"] is None
    assert found["returns"]["mean"] == pytest.approx(load_dataset(log).rewards.sum() / 3, rel=0.1)


def test_inspect_shows_nan_that_training_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("obs_0,action_0,reward,terminal\n1,1,1,0\nnan,1,1,0\n2,1,1,1\n")
    assert run("inspect", path) == 0
    assert "1 cell holds no number, in 1 of 3 rows: obs_0 1" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run("convert", path, tmp_path / "y.npz") == 2
    assert "NaN at row 1" in capsys.readouterr().err
    assert not (tmp_path / "y.npz").exists()


def test_convert(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.hdf5", "b.csv", "c.parquet", "d.store", "e"):
        assert run("convert", log, tmp_path / name) == 0
        assert "60 rows written" in capsys.readouterr().out
        assert load_dataset(tmp_path / name).fingerprint == load_dataset(log).fingerprint
    assert run("convert", log, tmp_path / "a.hdf5") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run("convert", log, tmp_path / "a.hdf5", "--overwrite") == 0
    assert run("convert", log, tmp_path / "a.mat") == 2
    assert "unknown suffix '.mat'" in capsys.readouterr().err


def test_convert_with_columns_bounds_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("p,v,u,gain,failed,run\n0,1,3,1,0,a\n1,2,-3,1,0,a\n2,3,0,1,1,a\n")
    out = tmp_path / "x.npz"
    words = ["observations=p,v", "actions=u", "rewards=gain", "terminals=failed", "episode=run"]
    done = run(
        "convert", path, out, "--env-id", "Mine-v0", "--clip-actions",
        "--action-low", "-2", "--action-high", "2", "--columns", *words,
    )  # fmt: skip
    assert done == 0
    dataset = load_dataset(out)
    assert dataset.info.env_id == "Mine-v0"
    np.testing.assert_array_equal(dataset.actions[:, 0], [2, -2, 0])
    np.testing.assert_array_equal(dataset.observations, [[0, 1], [1, 2], [2, 3]])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 1])


def test_bad_column_words(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", log, "--columns", "rewards") == 2
    assert "--columns takes ROLE=NAME" in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("list") == 0
    out = capsys.readouterr().out
    assert out.count("D4RL-v0") == 39
    assert "demo" in out
    assert run("list", "pen-human") == 0
    out = capsys.readouterr().out
    assert "pen-human-v0" in out
    assert "96.3 / 3076.8" in out
    assert "hopper" not in out
    assert run("list", "pen-humn") == 2
    assert "Did you mean 'pen-human-v" in capsys.readouterr().err


def test_download(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("download", "hoper-medium-v2") == 2
    assert "Did you mean 'hopper-medium-v2'?" in capsys.readouterr().err
    place = ["--directory", tmp_path, "--mirror", "http://127.0.0.1:9", "--attempts", 1]
    assert run("download", "hopper-medium-v2", *place) == 2
    assert "--mirror" in capsys.readouterr().err
    assert run("download", "hopper-medium-v2", *place[:2], "--attempts", 0) == 2
    assert "at least one attempt; got 0" in capsys.readouterr().err


def test_no_page_where_nobody_may_write(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", log, "--html", tmp_path / "no" / "where.html") == 2
    assert "Cannot write" in capsys.readouterr().err


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", tmp_path / "x.hdf5") == 2
    err = capsys.readouterr().err
    assert err.startswith("pbrl: No file")
    assert "Traceback" not in err
