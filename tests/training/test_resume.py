"""A run that is killed and resumed ends like one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pendulum_log import ENV, PBRL, SMALL, write_log

import pbrl
from pbrl.training.checkpoint import list_checkpoints
from pbrl.training.config import from_json, make_config, to_json
from pbrl.training.metrics import CLOCK_FIELDS, read_metrics

STEPS = 900


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "pendulum.npz")


def command(log: Path, run_dir: Path, *more: str) -> list[str]:
    return [
        *PBRL, "train", "--dataset", str(log), "--env-id", ENV,
        "--run-dir", str(run_dir), "--steps", str(STEPS), "--seed", "3", "--threads", "1",
        "--hidden", "16", "16", "--policy-hidden", "16", "16", "--ensemble-size", "3",
        "--n-ood", "2", "--batch-size", "32", "--checkpoint-every", "110", "--eval-every", "300",
        "--eval-episodes", "2", "--log-every", "70", "--no-tensorboard", *more,
    ]  # fmt: skip


def run(log: Path, run_dir: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(log, run_dir, *more), capture_output=True, text=True, timeout=300, check=False
    )


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in record.items() if k not in CLOCK_FIELDS}
        for record in read_metrics(run_dir)
    ]


def weights(run_dir: Path) -> dict[str, bytes]:
    last = list_checkpoints(run_dir / "checkpoints")[-1]
    return {file.name: file.read_bytes() for file in sorted(last.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A log and an uninterrupted run on it."""
    base = tmp_path_factory.mktemp("whole")
    log = write_log(base / "pendulum.npz")
    done = run(log, base / "run")
    assert done.returncode == 0, done.stderr
    return log, base / "run"


@pytest.mark.parametrize("attempt", range(3))
def test_killed_at_any_moment_and_resumed_gives_the_same_bytes(
    whole: tuple[Path, Path], tmp_path: Path, attempt: int
) -> None:
    log, reference = whole
    run_dir = tmp_path / "run"
    # Anywhere between the first record and the end, and not only between two steps.
    moment = random.Random(attempt).uniform(70, STEPS - 150)
    process = subprocess.Popen(
        command(log, run_dir), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if any(r["step"] >= moment for r in read_metrics(run_dir)):
            break
        time.sleep(0.002)
    assert process.poll() is None, "the run ended before it could be killed"
    time.sleep(random.Random(attempt + 10).uniform(0, 0.05))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run_dir / "summary.json").exists()

    done = run(log, run_dir, "--resume")
    assert done.returncode == 0, done.stderr
    assert weights(run_dir) == weights(reference)
    assert records(run_dir) == records(reference)


def test_same_seed_same_bits_and_other_seed_others(log: Path, tmp_path: Path) -> None:
    def final(seed: int, name: str) -> dict[str, bytes]:
        pbrl.train(
            log, run_dir=tmp_path / name, steps=30, seed=seed, eval=False, quiet=True, **SMALL
        )
        return weights(tmp_path / name)

    first = final(0, "a")
    assert final(0, "b") == first
    assert final(1, "c")["networks.safetensors"] != first["networks.safetensors"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_stop_saves_says_how_to_go_on_and_the_result_is_the_same(
    whole: tuple[Path, Path], tmp_path: Path, number: signal.Signals
) -> None:
    log, reference = whole
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        command(log, run_dir), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(read_metrics(run_dir)):
        time.sleep(0.01)
    process.send_signal(number)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume --run-dir" in text
    assert "Traceback" not in text
    saved = list_checkpoints(run_dir / "checkpoints")
    assert saved
    # The command it names needs nothing but the run directory.
    done = subprocess.run(
        [sys.executable, "-m", "pbrl", "train", "--resume", "--run-dir", str(run_dir)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert weights(run_dir) == weights(reference)
    assert records(run_dir) == records(reference)


def small(log: Path, run_dir: Path, **more: Any) -> pbrl.Run:
    settings: dict[str, Any] = {**SMALL, "steps": 40, "eval": False, "quiet": True, **more}
    return pbrl.train(log, run_dir=run_dir, **settings)


def test_resume_before_the_first_checkpoint_starts_over(log: Path, tmp_path: Path) -> None:
    fresh = small(log, tmp_path / "fresh")
    broken = small(log, tmp_path / "broken")
    for path in list_checkpoints(broken.checkpoints):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    (broken.path / "summary.json").unlink()
    small(log, broken.path, resume=True)
    assert weights(broken.path) == weights(fresh.path)
    small(log, tmp_path / "nothing there yet", resume=True)
    assert weights(tmp_path / "nothing there yet") == weights(fresh.path)


def test_a_run_is_never_overwritten(log: Path, tmp_path: Path) -> None:
    run = small(log, tmp_path / "run")
    before = weights(run.path)
    with pytest.raises(pbrl.PbrlError, match="already holds a run"):
        small(log, run.path)
    assert weights(run.path) == before


def test_other_data_or_settings_are_refused_with_the_differences(log: Path, tmp_path: Path) -> None:
    run = small(log, tmp_path / "run")
    before = weights(run.path)
    with pytest.raises(pbrl.PbrlError, match=r"gamma: 0\.99 -> 0\.9"):
        small(log, run.path, resume=True, gamma=0.9)
    with pytest.raises(pbrl.PbrlError, match="seed: 0 -> 5"):
        small(log, run.path, resume=True, seed=5)
    with pytest.raises(pbrl.PbrlError, match="can only grow"):
        small(log, run.path, resume=True, steps=20)
    other = write_log(tmp_path / "other.npz", seed=9)
    with pytest.raises(pbrl.PbrlError, match="data: pendulum"):
        small(other, run.path, resume=True)
    assert weights(run.path) == before
    assert run.summary is not None


def test_the_same_data_under_another_path_may_go_on(log: Path, tmp_path: Path) -> None:
    run = small(log, tmp_path / "run")
    moved = log.rename(tmp_path / "moved.npz")
    small(moved, run.path, resume=True)


def test_more_steps_extend_a_finished_run_and_keep_its_schedule(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(log, tmp_path / "run", log_every=1)
    small(log, run.path, resume=True, steps=60, quiet=False, log_every=1)
    assert "Schedules keep the length" in capsys.readouterr().err
    betas = {r["step"]: r["beta_ood"] for r in run.metrics() if r["kind"] == "train"}
    assert max(betas) == 60
    assert betas[60] == pytest.approx(0.2)
    assert betas[41] == pytest.approx(0.2)
    summary = pbrl.Run.open(run.path).summary
    assert summary is not None
    assert summary["steps"] == 60


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "manifest"])
def test_a_damaged_checkpoint_is_recognised_and_the_one_before_used(
    log: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = small(log, tmp_path / "reference", checkpoint_every=10)
    run = small(log, tmp_path / "run", checkpoint_every=10)
    (run.path / "summary.json").unlink()
    last = list_checkpoints(run.checkpoints)[-1]
    file = last / ("checkpoint.json" if damage == "manifest" else "training.safetensors")
    content = file.read_bytes()
    if damage == "delete":
        file.unlink()
    elif damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        file.write_bytes(b"{}")
    small(log, run.path, resume=True, checkpoint_every=10, quiet=False)
    text = capsys.readouterr().err
    assert "Using the one before it" in text
    assert "at step 30" in text
    assert weights(run.path) == weights(reference.path)
    agent = pbrl.load_agent(run.path)
    assert agent.act([0.0] * 4).shape == (1,)


def test_when_every_checkpoint_is_damaged_it_says_so(log: Path, tmp_path: Path) -> None:
    run = small(log, tmp_path / "run", checkpoint_every=10)
    for path in list_checkpoints(run.checkpoints):
        (path / "networks.safetensors").write_bytes(b"no tensors")
    with pytest.raises(pbrl.PbrlError, match="Every checkpoint"):
        pbrl.load_agent(run.path)


def test_half_a_checkpoint_of_a_killed_run_goes_with_the_next(log: Path, tmp_path: Path) -> None:
    half = tmp_path / "r" / "checkpoints" / ".step_000000007.tmp"
    half.mkdir(parents=True)
    small(log, tmp_path / "r")
    assert not half.exists()


def test_checkpoints_hold_no_clock_and_only_the_last_two_and_milestones_stay(
    log: Path, tmp_path: Path
) -> None:
    run = small(log, tmp_path / "run", checkpoint_every=5, keep_every=15)
    kept = [int(p.name.split("_")[1]) for p in list_checkpoints(run.checkpoints)]
    assert kept == [15, 30, 35, 40]
    manifest = json.loads((run.checkpoints / "step_000000040" / "checkpoint.json").read_text())
    whose = {"algorithm", "seed", "data_fingerprint", "preprocessing"}
    assert set(manifest) == {"format_version", "step", "sha256", *whose}


def test_runs_older_than_a_setting_of_their_preset_are_read_without_it() -> None:
    stored = to_json(make_config("pbrl", "fast", "x", n_ood=3))
    assert stored["settings"].pop("tau") == 0.01  # as if it had come with a later version
    old = from_json(json.loads(json.dumps(stored)), complete=True)
    again = to_json(old)
    assert (again["settings"]["tau"], again["settings"]["n_ood"]) == (0.005, 3)
    assert old.steps == 60_000
    # A user's few settings, on the other hand, are completed by the preset.
    partial = to_json(from_json({"preset": "fast", "n_ood": 3}))
    assert partial["settings"]["tau"] == 0.01
