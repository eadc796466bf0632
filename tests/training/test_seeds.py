"""``--seeds``: several processes that are seen through to their end, or stopped together."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pendulum_log import ENV, PBRL, write_log

from pbrl.training.checkpoint import list_checkpoints
from pbrl.training.machine import stops_as_interrupts
from pbrl.training.metrics import read_metrics


def command(tmp_path: Path, *more: str) -> list[str]:
    log = write_log(tmp_path / "log.npz")
    return [
        *PBRL, "train", "--dataset", str(log), "--algorithm", "bc",
        "--env-id", ENV, "--run-dir", str(tmp_path / "seeds"), "--seeds", "0,1", "--hidden", "8",
        "--batch-size", "16", "--no-tensorboard", *more,
    ]  # fmt: skip


def test_a_long_run_of_many_evaluations_ends(tmp_path: Path) -> None:
    # More lines than a pipe holds (64 KB on Linux), if anybody were to write them into one.
    many = ["--steps", "1200", "--eval-every", "1", "--eval-episodes", "1"]
    done = subprocess.run(
        command(tmp_path, *many), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "over 2 seeds" in done.stdout
    assert sorted(done.stderr.splitlines()) == ["seed 0: done", "seed 1: done"]


# Too long to finish, and no checkpoint on the way: only a saved stop leaves one.
LONG = ["--steps", "200000", "--checkpoint-every", "200000", "--log-every", "10", "--no-eval"]


def directories(tmp_path: Path) -> list[Path]:
    return [tmp_path / "seeds" / f"seed_{seed}" for seed in (0, 1)]


def wait_for_both(
    process: subprocess.Popen[str], tmp_path: Path, look: Callable[[], object] = bool
) -> None:
    """Until both seeds train; ``look`` at what is shown."""
    deadline = time.monotonic() + 120
    while not all(list(read_metrics(seed)) for seed in directories(tmp_path)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        look()
        time.sleep(0.05)


def require_saved_and_ended(tmp_path: Path) -> None:
    """Both seeds have a checkpoint, and nobody goes on."""
    seeds = directories(tmp_path)
    stopped = [len(list(read_metrics(seed))) for seed in seeds]
    assert all(list_checkpoints(seed / "checkpoints") for seed in seeds)
    time.sleep(1.0)
    assert [len(list(read_metrics(seed))) for seed in seeds] == stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_saves_every_seed_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    words, quiet = command(tmp_path, *LONG), subprocess.DEVNULL
    with subprocess.Popen(
        words, stdout=quiet, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_for_both(process, tmp_path)
            # A terminal tells its whole foreground group; a scheduler the process it started.
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    require_saved_and_ended(tmp_path)


def test_a_closed_terminal_saves_every_seed_and_leaves_no_process(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()

    def look() -> None:
        if select.select([terminal], [], [], 0)[0]:
            os.read(terminal, 1 << 16)

    # The first terminal that a session's leader opens is the one whose closing it is told of.
    words = command(tmp_path, *LONG)
    words[words.index("-c") + 1] = f"import os; os.open(os.ttyname(0), os.O_RDWR){words[2]}"
    with subprocess.Popen(
        words, stdin=inside, stdout=inside, stderr=inside, text=True, start_new_session=True
    ) as process:
        os.close(inside)
        try:
            wait_for_both(process, tmp_path, look)
            os.close(terminal)
            process.wait(timeout=60)
        finally:
            process.kill()
    require_saved_and_ended(tmp_path)


def test_ignored_signals_stay_ignored_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with stops_as_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)  # nohup means it
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == before[1]
    finally:
        signal.signal(signal.SIGHUP, before[0])
