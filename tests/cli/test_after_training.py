"""What a user without a simulator sees when training ends, and where it leads."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from plant_log import COLUMNS, write_plant_log

from pbrl.cli.main import main
from pbrl.cli.show import draw_run
from pbrl.training.run import Run

WORDS = ["--hidden", "8", "--policy-hidden", "8", "--batch-size", "32", "--no-tensorboard"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("plant")
    log = write_plant_log(place / "plant.csv", batches=12, blanks=10)
    words = ["train", "--dataset", str(log.path), "--columns", *COLUMNS, "--missing", "split"]
    words += [*WORDS, "--preset", "demo", "--steps", "60", "--log-every", "20", "--threads", "1"]
    assert main([*words, "--quiet", "--run-dir", str(place / "run")]) == 0
    return place / "run"


def test_training_ends_with_the_next_steps(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pbrl.cli.show import show_run
    from pbrl.console import plain_console

    drawn: list[Figure] = []
    monkeypatch.setattr(
        "pbrl.cli.show.write_figure", lambda path, figure, **_: drawn.append(figure)
    )
    show_run(Run.open(run_dir), plain_console())
    said = capsys.readouterr().out
    for command in ("pbrl ope", "pbrl decide", "pbrl export"):
        assert f"{command} {run_dir}" in said
    (figure,) = drawn
    assert [axes.get_title() for axes in figure.axes] == ["uncertainty U", "Q"]
    assert all(axes.has_data() for axes in figure.axes)


def test_the_picture_is_written(run_dir: Path, tmp_path: Path) -> None:
    assert draw_run(Run.open(run_dir), tmp_path / "x.png") == tmp_path / "x.png"


def test_evaluate_leads_to_ope(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run_dir)]) == 2
    assert f"'pbrl ope {run_dir}'" in capsys.readouterr().err


def test_ope_reads_the_log_as_the_run_did(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ope", str(run_dir), "--ensemble-size", "3", "--hidden", "8", "--threads", "1"]
    assert main([*words, "--steps", "40", "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "run has not settled in 40 steps" in said or "yes" in said
    assert (tmp_path / "ope.json").exists()
