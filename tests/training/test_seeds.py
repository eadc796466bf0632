"""``--seeds``: several processes that are seen through to their end, or stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_saves_every_seed_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    # Too long to finish, and no checkpoint on the way: only a saved stop leaves one.
    long = ["--steps", "200000", "--checkpoint-every", "200000", "--log-every", "10"]
    words = command(tmp_path, *long, "--no-eval")
    seeds = [tmp_path / "seeds" / f"seed_{seed}" for seed in (0, 1)]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 120
        while not all(list(read_metrics(seed)) for seed in seeds):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # A terminal tells its whole foreground group; a scheduler the process it started.
        if number == signal.SIGTERM:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    stopped = [len(list(read_metrics(seed))) for seed in seeds]
    assert all(list_checkpoints(seed / "checkpoints") for seed in seeds)
    time.sleep(1.0)
    assert [len(list(read_metrics(seed))) for seed in seeds] == stopped  # nobody goes on


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
