"""Words are printed as they are, and a reader who leaves loses nothing."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pendulum_log import PBRL, write_log
from rich.table import Table

from pbrl.cli.main import main
from pbrl.console import plain_console
from pbrl.training.checkpoint import list_checkpoints

ODD = "x[old] [/b] :bug: [red]y"


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console = plain_console()
    console.print(ODD)
    table = Table("name", title=ODD)
    table.add_row(ODD)
    console.print(table)
    assert capsys.readouterr().out.count(ODD) == 3


def test_names_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console, evil = plain_console(), "a\x1b[2J\x1b]0;owned\x07\x9b31mb"
    table = Table(evil, title=evil)
    table.add_row(evil)
    console.print(evil)
    console.print(table)
    said = capsys.readouterr().out
    assert said.count("a\N{REPLACEMENT CHARACTER}[2J") == 4
    assert all(sign.isprintable() or sign == "\n" for sign in said)


def test_a_column_with_nan_is_counted_without_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.npz", rewards=np.full(400, np.nan, np.float32))
    assert main(["data", "inspect", str(log)]) == 0
    said = capsys.readouterr().out
    assert "[red]" not in said
    assert re.search(r"reward .* 400 │", said)


@pytest.mark.parametrize("seeds", [[], ["--seeds", "0"]])
def test_a_run_in_a_directory_with_an_odd_name_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: list[str]
) -> None:
    place = tmp_path / "[" / "b]"  # as text: [/b]
    place.mkdir(parents=True)
    log = write_log(place / "x[old].npz")
    words = ["train", "--dataset", str(log), "--algorithm", "bc", "--no-eval", "--no-tensorboard"]
    words += ["--hidden", "8", "--batch-size", "16", "--threads", "1", "--steps", "5"]
    assert main([*words, "--run-dir", str(place / "run"), *seeds]) == 0
    said = capsys.readouterr()
    if not seeds:
        assert f"Run: {place / 'run'}" in said.out
        assert "x[old]" in said.out
        assert main([*words, "--run-dir", str(place / "run")]) == 2
        assert f"{place / 'run'} already holds a run" in capsys.readouterr().err
    assert main(["data", "inspect", str(log)]) == 0
    assert "x[old]" in capsys.readouterr().out


def training(tmp_path: Path) -> list[str]:
    log = write_log(tmp_path / "log.npz")
    return [
        *PBRL, "train", "--dataset", str(log), "--algorithm", "bc", "--no-eval",
        "--no-tensorboard", "--hidden", "8", "--batch-size", "16", "--threads", "1",
        "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip


def test_a_reader_who_leaves_does_not_end_the_training(tmp_path: Path) -> None:
    """``pbrl train 2>&1 | head -0``: the pipe is broken before the first word."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [*training(tmp_path), "--steps", "300", "--log-every", "1"]
    done = subprocess.run(words, stdout=writer, stderr=writer, timeout=120, check=False)
    os.close(writer)
    assert done.returncode == 0
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert last.name == "step_000000300"
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="terminals are opened as on Linux")
def test_a_closed_terminal_saves_and_ends_with_130(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    words = [*training(tmp_path), "--steps", "200000", "--checkpoint-every", "200000"]
    # The first terminal that a session's leader opens is the one whose closing it is told of.
    words[words.index("-c") + 1] = f"import os; os.open(os.ttyname(0), os.O_RDWR){words[2]}"
    with subprocess.Popen(
        words, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    ) as process:
        os.close(inside)
        try:
            shown = b""
            while b"/s" not in shown:  # it trains
                shown += os.read(terminal, 1 << 16)
            os.close(terminal)
            process.wait(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert list_checkpoints(tmp_path / "run" / "checkpoints")
