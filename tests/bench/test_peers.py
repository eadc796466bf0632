"""The comparison with d3rlpy, as far as it can be tested without d3rlpy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pbrl.bench.peer_worker import ALGORITHMS
from pbrl.bench.peers import SETTINGS, Trainer, check_python, write_rows
from pbrl.cli.main import main
from pbrl.errors import PbrlError


def spec(tmp_path: Path, algorithm: str = "bc") -> dict[str, object]:
    rows = tmp_path / "rows.npz"
    write_rows(rows, 2000)
    return {"algorithm": algorithm, "settings": {}, "batch_size": 32, "threads": 1,
            "hidden": [8], "rows": str(rows)}  # fmt: skip


def test_both_sides_know_the_same_algorithms() -> None:
    assert set(SETTINGS) == set(ALGORITHMS)


def test_our_side_trains_when_told_to(tmp_path: Path) -> None:
    trainer = Trainer([sys.executable, "-m", "pbrl.bench.peers"], spec(tmp_path), threads=1)
    try:
        assert "pbrl" in trainer.versions
        assert min(trainer.turn(0.01)) > 0
        assert min(trainer.turn(0.01)) > 0
    finally:
        trainer.close()


def test_a_side_that_fails_is_reported_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('d3rlpy is broken')"]
    with pytest.raises(PbrlError, match="failed: d3rlpy is broken"):
        Trainer(command, spec(tmp_path), threads=1)


def test_a_python_without_d3rlpy_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PbrlError, match="no Python that runs"):
        check_python(tmp_path / "python")
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    assert main(["bench", "--peers", "--peers-python", str(python)]) == 2
    assert "pip install d3rlpy" in capsys.readouterr().err


def test_an_algorithm_that_d3rlpy_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--peers", "--only", "mopo"]) == 2
    assert "d3rlpy" in capsys.readouterr().err
