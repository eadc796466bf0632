"""The command lines of reproduce, sweep and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbrl.cli.main import main
from pbrl.experiments.definitions import EXPERIMENTS

TINY = """\
datasets: demo
preset: demo
seeds: 2
settings:
  steps: 10
  batch_size: 16
  hidden: [8]
  policy_hidden: [8]
  eval: false
  tensorboard: false
"""


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "list"]) == 0
    shown = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert name in shown
    for budget in ("paper", "small", "smoke"):
        assert f"--budget {budget}" in shown


def test_wrong_names_get_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "tabel1"]) == 2
    assert "Did you mean 'table1'" in capsys.readouterr().err
    assert main(["report", "no-such-place"]) == 2
    assert "No file or directory 'no-such-place'" in capsys.readouterr().err
    assert main(["sweep", "no-such-file.yaml"]) == 2
    assert "Cannot read the sweep file" in capsys.readouterr().err
    assert main(["reproduce", "fig3", "--threads", "0"]) == 2
    assert "--threads" in capsys.readouterr().err


def test_dry_run_of_the_papers_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No download, no run: only the plan and its hours."""
    monkeypatch.setenv("PBRL_DATA_DIR", str(tmp_path / "empty"))
    out = tmp_path / "out"
    words = ["reproduce", "fig3", "--budget", "paper", "--out", str(out), "--dry-run"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "10 runs" in shown  # two datasets, five seeds
    assert "core-hours" in shown
    assert not (out / "runs").exists()


def test_a_sweep_and_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(TINY)
    assert main(["sweep", "sweep.yaml", "--dry-run"]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert main(["sweep", "sweep.yaml", "--workers", "1"]) == 0
    assert "2 of 2 runs done (0 were already there)" in capsys.readouterr().out
    assert main(["sweep", "sweep.yaml", "--workers", "1"]) == 0
    assert "2 of 2 runs done (2 were already there)" in capsys.readouterr().out
    assert main(["report", "runs", "--out", "page.html", "--title", "Tiny"]) == 0
    assert "<h1>Tiny</h1>" in Path("page.html").read_text()


def test_a_failed_run_shows_in_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(TINY + "grid: {batch_size: [16, 1000000]}\n")
    assert main(["sweep", "sweep.yaml", "--workers", "1"]) == 1
    shown = capsys.readouterr().out
    assert "2 of 4 runs done" in shown
    assert "fewer than one batch" in shown
