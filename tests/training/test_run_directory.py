"""Whose directory it is: one process at a time, and a name that other settings do not share."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pendulum_log import PBRL, write_log

import pbrl
from pbrl.cli.main import main
from pbrl.training.checkpoint import list_checkpoints
from pbrl.training.config import make_config
from pbrl.training.lock import Busy, only_one
from pbrl.training.metrics import read_metrics

TINY: dict[str, Any] = {"algorithm": "bc", "hidden": (8,), "batch_size": 16, "tensorboard": False}
TINY |= {"eval": False, "quiet": True, "threads": 1, "device": "cpu"}


def words(log: Path, run_dir: Path, *more: str) -> list[str]:
    return [
        "train", "--dataset", str(log), "--algorithm", "bc", "--no-eval", "--no-tensorboard",
        "--hidden", "8", "--batch-size", "16", "--threads", "1", "--quiet",
        "--run-dir", str(run_dir), *more,
    ]  # fmt: skip


def weights(run_dir: Path) -> bytes:
    last = list_checkpoints(run_dir / "checkpoints")[-1]
    return (last / "networks.safetensors").read_bytes()


@pytest.mark.parametrize("more", [[], ["--resume"]], ids=["new", "resumed"])
def test_of_two_runs_started_together_one_is_refused(tmp_path: Path, more: list[str]) -> None:
    log, place = write_log(tmp_path / "log.npz"), tmp_path / "run"
    both = []
    for seed in ("0", "1"):
        command = [*PBRL, *words(log, place, "--steps", "1000", "--seed", seed, *more)]
        both.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=120)[1] for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 2], said
    assert "Traceback" not in "".join(said)
    winner = codes.index(0)
    assert json.loads((place / "config.json").read_text())["config"]["seed"] == winner
    alone = pbrl.train(log, run_dir=tmp_path / "alone", steps=1000, seed=winner, **TINY)
    assert weights(place) == weights(alone.path)


def test_a_run_that_is_going_is_not_resumed_beside_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, place = write_log(tmp_path / "log.npz"), tmp_path / "run"
    long = words(log, place, "--steps", "500000", "--checkpoint-every", "500000")
    with subprocess.Popen([*PBRL, *long], stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 120
            while not list(read_metrics(place)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            before = (place / "config.json").read_bytes()
            for more in ([], ["--resume"]):
                assert main([*long, *more]) == 2
                assert "Another process is at work" in capsys.readouterr().err
            assert (place / "config.json").read_bytes() == before
        finally:
            process.kill()
    # A killed process holds nothing.
    with only_one(place):
        pass


def test_several_seeds_hold_their_common_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, place = write_log(tmp_path / "log.npz"), tmp_path / "run"
    with only_one(place):
        assert main(words(log, place, "--seeds", "0,1", "--steps", "5")) == 2
    assert "Another process is at work" in capsys.readouterr().err
    assert not place.exists()


def test_what_is_refused_leaves_no_directory_and_waiting_helps(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    with pytest.raises(KeyError), only_one(place):
        raise KeyError
    assert not (tmp_path / "a").exists()
    with only_one(place):
        with pytest.raises(Busy, match="--run-dir"), only_one(place):
            pass
        started = time.monotonic()
        with pytest.raises(Busy), only_one(place, wait=0.6):
            pass
        assert time.monotonic() - started >= 0.6
        (place / "something").touch()
    assert [path.name for path in place.iterdir()] == ["something"]


def test_settings_that_cannot_be_resumed_as_each_other_have_other_directories() -> None:
    def name(preset: str = "paper", dataset: str = "d/log.npz", **settings: Any) -> str:
        config = make_config("pbrl", preset, dataset, **settings)
        place = config.resolved().run_dir
        assert place is not None
        assert place == replace(config, seed=config.seed).resolved().run_dir
        return str(place)

    assert name() == "runs/log-pbrl-paper-seed0"
    assert name(seed=3) == "runs/log-pbrl-paper-seed3"
    assert name("demo", "demo") == "runs/demo-pbrl-demo-seed0"
    changes: list[dict[str, Any]] = [
        {"gamma": 0.9}, {"gamma": 0.95}, {"n_ood": 3}, {"normalize_observations": True},
        {"eval": False}, {"log_every": 7}, {"gamma": 0.9, "n_ood": 3},
    ]  # fmt: skip
    names = {name(**change) for change in changes} | {name(), name("adroit")}
    assert len(names) == len(changes) + 2
    assert name(gamma=0.9).endswith("-seed0")
    # What resume may change does not: the longer run goes on in its own directory.
    assert name(steps=10, threads=2, device="cpu", keep_every=5) == name()
    assert name(gamma=0.9, steps=10) == name(gamma=0.9)
