"""``--hours``: steps are measured once and written down; the run is reproducible from there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pendulum_log import write_log

import pbrl
from pbrl.algorithms import ALGORITHMS, bc
from pbrl.cli.main import main
from pbrl.training import budget
from pbrl.training.config import make_config

LAST = "checkpoints/step_000000100/networks.safetensors"


class Clock:
    """Time that passes by updates alone: slow ones while the machine warms up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow: int, seconds: float) -> None:
        self.now, self.updates, self.seconds = 0.0, 0, seconds
        update = bc.BC.update

        def timed(algorithm: bc.BC, batch: Any) -> Any:
            self.updates += 1
            self.now += 10.0 if self.updates <= slow else self.seconds
            return update(algorithm, batch)

        monkeypatch.setattr(bc.BC, "update", timed)
        monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """``pbrl train`` of the smallest run there is, without its directory."""
    log = write_log(tmp_path / "log.npz")
    words = ["train", "--dataset", str(log), "--algorithm", "bc", "--no-eval", "--no-tensorboard"]
    return [*words, "--hidden", "8", "--batch-size", "16", "--threads", "1"]


def stored(run_dir: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((run_dir / "config.json").read_text())["config"]
    return config


def test_steps_fill_nine_tenths_of_the_time_at_the_speed_after_warm_up(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Clock(monkeypatch, slow=budget.WARM_UP, seconds=0.5)
    assert main([*words, "--hours", "0.125", "--run-dir", str(tmp_path / "run")]) == 0
    assert stored(tmp_path / "run")["steps"] == 800  # 0.9 * 450 s / 0.5 s = 810, in hundreds
    assert "800 steps" in " ".join(capsys.readouterr().err.split())


def test_a_moment_of_load_does_not_decide_about_an_hour(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, slow=budget.WARM_UP + 1, seconds=0.5)
    config = make_config("bc", "paper", words[2], hidden=(8,), batch_size=16)
    # 53 updates in a hundredth of the time: one of 10 s, 52 of 0.5 s. 20 would have given 3,300.
    assert budget.steps_for_hours(config, 1.0) == 4800


@pytest.mark.parametrize(("before", "after", "steps"), [(0.5, 2.0, 214), (2.0, 0.5, 850)])
def test_hours_are_kept_on_a_machine_that_changes_its_speed(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: float,
    after: float,
    steps: int,
) -> None:
    clock = Clock(monkeypatch, slow=0, seconds=before)
    measure = budget.steps_for_hours

    def measured(*arguments: Any) -> int:
        found = measure(*arguments)
        clock.now, clock.seconds = 0.0, after  # from here on somebody else works here, or stops
        return found

    monkeypatch.setattr(budget, "steps_for_hours", measured)
    run = tmp_path / "run"
    assert main([*words, "--hours", "0.125", "--run-dir", str(run)]) == 0
    assert abs(stored(run)["steps"] - steps) < 15
    assert 0.9 * 450 < clock.now < 450
    assert "Measured again" in capsys.readouterr().err
    info = json.loads((run / "config.json").read_text())
    assert info["schedule_steps"] == info["config"]["steps"]
    assert (pbrl.Run.open(run).summary or {})["steps"] == info["config"]["steps"]
    assert main([*words, "--resume", "--run-dir", str(run)]) == 0


def test_without_a_gpu_own_data_take_an_hour_of_our_method(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []

    def no_measuring(config: Any, hours: float) -> int:
        asked.append((config.algorithm, config.preset, hours))
        return 2

    monkeypatch.setattr(budget, "steps_for_hours", no_measuring)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = ["--hidden", "8", "--policy-hidden", "8", "--batch-size", "16", "--no-tensorboard"]
    own = ["train", "--dataset", words[2], *small, "--no-eval", "--threads", "1"]
    assert main([*own, "--run-dir", str(tmp_path / "a")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert asked == [("pbrl-anchored", "fast", 1.0)]
    assert "Your own data, no GPU" in said
    assert "--algorithm pbrl --preset paper" in said
    assert main([*own, "--steps", "2", "--run-dir", str(tmp_path / "b")]) == 0
    assert len(asked) == 1
    assert stored(tmp_path / "b")["algorithm"] == "pbrl-anchored"
    assert main([*own, "--preset", "paper", "--steps", "2", "--run-dir", str(tmp_path / "c")]) == 0
    assert stored(tmp_path / "c")["algorithm"] == "pbrl"


def test_help_lists_the_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    listed = said.split("What to train: ", 1)[1].split(".", 1)[0]
    assert listed.split(", ") == list(ALGORITHMS)


@pytest.mark.parametrize(("first", "then"), [([], []), (["--seeds", "1"], ["--seeds", "0,1"])])
def test_a_run_that_is_there_is_refused_before_anything_is_measured(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: list[str],
    then: list[str],
) -> None:
    words = [*words, "--run-dir", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--steps", "5", *first]) == 0
    clock = Clock(monkeypatch, slow=0, seconds=0.5)
    assert main([*words, "--hours", "0.015", *then]) == 2
    assert clock.updates == 0


def test_the_run_is_reproducible_from_its_config_and_resumed_without_measuring(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, slow=0, seconds=0.5)
    hours = ["--hours", "0.015", "--quiet"]
    first, again = tmp_path / "a", tmp_path / "b"
    assert main([*words, *hours, "--run-dir", str(first)]) == 0
    config = str(first / "config.json")
    assert main(["train", "--config", config, "--run-dir", str(again), "--quiet"]) == 0
    assert (first / LAST).read_bytes() == (again / LAST).read_bytes()
    # A machine ten times as quick by now: the run that was begun keeps its steps.
    Clock(monkeypatch, slow=0, seconds=0.05)
    assert main([*words, *hours, "--run-dir", str(first), "--resume"]) == 0
    assert stored(first)["steps"] == 100


def test_a_run_in_its_default_place_is_resumed_without_measuring(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seeds, run in ([], "log-bc-paper-*-seed0"), (["--seeds", "0"], "log-bc-paper-*/seed_0"):
        for seconds in 0.5, 0.05:
            Clock(monkeypatch, slow=0, seconds=seconds)
            assert main([*words, *seeds, "--hours", "0.015", "--quiet", "--resume"]) == 0
            (place,) = (tmp_path / "runs").glob(run)
            assert stored(place)["steps"] == 100


@pytest.mark.parametrize("hours", ["-1", "0", "nan", "inf", "0.01 --steps 50"])
def test_bad_hours_are_refused_before_anything_is_written(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], hours: str
) -> None:
    run = tmp_path / "run"
    assert main([*words, "--run-dir", str(run), "--hours", *hours.split()]) == 2
    expected = "one of them" if "--steps" in hours else "must be a positive number"
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not run.exists()


def test_hours_from_python(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, slow=0, seconds=0.5)
    settings: dict[str, Any] = {"algorithm": "bc", "hidden": (8,), "batch_size": 16}
    settings |= {"eval": False, "quiet": True, "run_dir": tmp_path / "run", "hours": 0.015}
    data = pbrl.load_dataset(words[2])
    assert pbrl.train(data, **settings).config.steps == 100
    with pytest.raises(pbrl.PbrlError, match="one of them"):
        pbrl.train(data, **settings, steps=100)
    with pytest.raises(pbrl.PbrlError, match="already holds a run"):
        pbrl.train(data, **settings)
    Clock(monkeypatch, slow=0, seconds=0.05)
    assert pbrl.train(data, **settings, resume=True).config.steps == 100


def test_several_seeds_share_one_measurement(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, slow=0, seconds=0.5)
    base = tmp_path / "seeds"
    hours = ["--hours", "0.015", "--run-dir", str(base)]
    assert main([*words, *hours, "--seeds", "0,1"]) == 0
    assert [stored(base / f"seed_{seed}")["steps"] for seed in (0, 1)] == [100, 100]
    # A third seed, added on a quicker machine, has the steps of the others.
    Clock(monkeypatch, slow=0, seconds=0.05)
    assert main([*words, *hours, "--seeds", "0,1,2", "--resume"]) == 0
    assert stored(base / "seed_2")["steps"] == 100


def test_seeds_that_are_there_are_not_begun_again(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "seeds"
    words = [*words, "--run-dir", str(base), "--seeds", "0"]
    assert main([*words, "--steps", "5"]) == 0
    before = (base / "seeds.json").read_bytes()
    assert main([*words, "--steps", "9"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (base / "seeds.json").read_bytes() == before
