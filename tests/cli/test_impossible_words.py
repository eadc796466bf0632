"""Sizes, seeds and sweep files that no machine can follow: one sentence, at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pendulum_log import ENV, write_log

from pbrl.cli.main import main

TRAIN = [
    "--hidden", "8", "--policy-hidden", "8", "--batch-size", "16", "--steps", "2", "--no-eval",
    "--threads", "1", "--no-tensorboard",
]  # fmt: skip
SIZES = [
    "--hidden 100000 100000", "--hidden 1000000000", "--hidden 100000000000000",
    "--policy-hidden 99999999 99999999", "--ensemble-size 1000000000",
    "--batch-size 100000000000000000000", "--n-ood 1000000000", "--threads 100000000",
    "--seed -1", "--seed 2147483648", "--actor-lr inf", "--gamma nan", "--seeds 0,2147483648",
]  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "pendulum.npz")


@pytest.fixture(scope="module")
def run(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run") / "run"
    assert main(["train", "--dataset", str(log), *TRAIN, "--run-dir", str(place), "--quiet"]) == 0
    return place


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that is refused says."""
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "pbrl: " in error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize("words", SIZES)
def test_training(
    log: Path, tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run"
    error = said(
        ["train", "--dataset", str(log), *TRAIN, "--run-dir", str(place), *words.split()], capsys
    )
    assert any(word in error for word in ("GB", "memory", "must", "numbers in", "fewer"))


@pytest.mark.parametrize("capacity", ["-1", "100000000000000", "100000000000000000000000"])
def test_a_replay_that_fits_no_memory(
    run: Path, tmp_path: Path, capacity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env-id", ENV, "--steps", "2", "--capacity", capacity, "--run-dir"]
    assert "capacity" in said(["finetune", str(run), *words, str(tmp_path / "f")], capsys)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("seed", ["-1", "2147483648", "99999999999999999999999"])
@pytest.mark.parametrize("command", ["evaluate", "probe", "ope", "finetune", "collect"])
def test_seeds(run: Path, command: str, seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "collect", "Pendulum-v1"] if command == "collect" else [command, str(run)]
    error = said([*words, "--seed", seed], capsys)
    assert f"--seed must lie in [0, 2^31), got {seed}" in error


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_names_of_no_file(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no name of a file" in said(["report", str(run), "--out", name], capsys)


NESTED = "[" * 3000 + "]" * 3000
LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
SWEEPS = {
    "a date for a seed": ("seeds: [2026-01-01]", "seeds"),
    "dates for seeds": ("seeds: 2026-01-01", "seeds"),
    "no such date": ("seeds: 2026-13-77", "not valid YAML"),
    "a date for a setting": ("settings: {steps: 2026-01-01}", "steps"),
    "deep": (f"settings: {NESTED}", "not valid YAML"),
    "deep maps": ("settings: " + "{a: " * 2000 + "1" + "}" * 2000, "not valid YAML"),
    "many laughs": (LAUGHS, "Unknown key"),
    "a billion seeds": ("seeds: 1000000000", "seeds"),
    "a billion runs": (f"grid: {{gamma: {[0.9] * 999}, tau: {[0.1] * 999}}}", "at most"),
    "bytes": ("\xff\xfe\x00", "not valid YAML"),
    "python": ("settings: !!python/object/apply:os.system [ls]", "not valid YAML"),
}


@pytest.mark.parametrize("case", SWEEPS)
def test_sweep_files(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, wrong = SWEEPS[case]
    (tmp_path / "s.yaml").write_bytes(text.encode("latin1"))
    before = sys.getrecursionlimit()
    words = ["sweep", str(tmp_path / "s.yaml"), "--dry-run", "--out", str(tmp_path / "out")]
    assert wrong in said(words, capsys)
    assert sys.getrecursionlimit() == before
