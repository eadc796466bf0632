"""A file may name an environment, but never the module that making it would import."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from pendulum_log import SMALL, write_log

import pbrl
from pbrl.cli.main import main
from pbrl.collect import collect_policy
from pbrl.training.finetune import finetune

EVIL = "pbrl_test_evil:PbrlTestEvil-v0"

# Importing it leaves a mark; its environment is InvertedPendulum's under a name of its own.
MODULE = """
from pathlib import Path
import gymnasium

Path(__file__).with_name("imported").touch()
gymnasium.register(
    "PbrlTestEvil-v0",
    entry_point="gymnasium.envs.mujoco.inverted_pendulum_v5:InvertedPendulumEnv",
    max_episode_steps=20,
)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module that must not be imported."""
    (tmp_path / "pbrl_test_evil.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("pbrl_test_evil", None)
    gymnasium.registry.pop("PbrlTestEvil-v0", None)


def imported(place: Path) -> bool:
    return (place / "imported").exists()


def npz(place: Path, env_id: str | None = EVIL) -> Path:
    carried: dict[str, Any] = (
        {} if env_id is None else {"metadata": np.array(json.dumps({"env_id": env_id}))}
    )
    return write_log(place / "log.npz", **carried)


def hdf5(place: Path) -> Path:
    arrays = dict(np.load(npz(place, None)))
    with h5py.File(place / "log.hdf5", "w") as file:
        for key, values in arrays.items():
            file[key] = values
        file.attrs["env_id"] = EVIL
    return place / "log.hdf5"


def hdf5_carried(place: Path) -> Path:
    path = hdf5(place)
    with h5py.File(path, "r+") as file:
        del file.attrs["env_id"]
        file.attrs["pbrl_metadata"] = json.dumps({"env_id": EVIL})
    return path


def minari(place: Path) -> Path:
    folder = place / "log-v0" / "data"
    folder.mkdir(parents=True)

    def box(size: int, bound: float) -> dict[str, Any]:
        low, high = [-bound] * size, [bound] * size
        return {"type": "Box", "shape": [size], "dtype": "float32", "low": low, "high": high}

    described = {
        "dataset_id": "log-v0",
        "data_format": "hdf5",
        "observation_space": json.dumps(box(4, 10.0)),
        "action_space": json.dumps(box(1, 3.0)),
        "env_spec": json.dumps({"id": EVIL, "max_episode_steps": 20}),
    }
    (folder / "metadata.json").write_text(json.dumps(described))
    rng = np.random.default_rng(0)
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number in range(20):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, 20
            group["observations"] = rng.normal(0, 0.1, (21, 4)).astype(np.float32)
            group["actions"] = rng.uniform(-3, 3, (20, 1)).astype(np.float32)
            group["rewards"] = np.ones(20)
            group["terminations"] = np.zeros(20, np.bool_)
            group["truncations"] = np.arange(20) == 19
    return folder.parent


def store(place: Path) -> Path:
    path = place / "log.store"
    assert main(["data", "convert", str(npz(place, "Pendulum-v1")), str(path)]) == 0
    changed = 0
    for file in path.glob("*.json"):
        text = file.read_text()
        changed += "Pendulum-v1" in text
        file.write_text(text.replace("Pendulum-v1", EVIL))
    assert changed
    return path


SOURCES = [hdf5, hdf5_carried, npz, minari, store]
FLAGS = ["--hidden", "8", "--batch-size", "32", "--steps", "4"]
FLAGS += ["--threads", "1", "--no-tensorboard", "--eval-episodes", "1"]


@pytest.mark.parametrize("make", SOURCES)
def test_data_do_not_choose_code(
    make: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(make(place))
    dataset = pbrl.load_dataset(source)
    assert dataset.info.env_id is None
    train = ["train", "--algorithm", "bc", "--dataset", source, "--run-dir", "run", *FLAGS]
    assert main(train) == 0
    said = capsys.readouterr()
    assert f"--env-id {EVIL}" in " ".join((said.out + said.err).split())
    assert pbrl.Run.open("run").env_id is None
    assert not imported(place)


def test_the_users_own_word_imports(place: Path) -> None:
    source = str(npz(place))
    assert pbrl.load_dataset(source, env_id=EVIL).info.env_id == EVIL
    train = ["train", "--algorithm", "bc", "--dataset", source, "--run-dir", "run", *FLAGS]
    assert main([*train, "--env-id", EVIL]) == 0
    assert imported(place)
    assert main(["evaluate", "run", "--env-id", EVIL, "--episodes", "1"]) == 0
    assert main(["train", "--run-dir", "run", "--resume", "--steps", "6", "--env-id", EVIL]) == 0


def test_seeds_hand_the_users_word_on(place: Path) -> None:
    """Each seed is a process of its own that reads the settings from a file."""
    train = ["train", "--algorithm", "bc", "--dataset", str(npz(place)), "--run-dir", "run", *FLAGS]
    assert main([*train, "--seeds", "0,1", "--env-id", EVIL]) == 0
    assert pbrl.Run.open("run/seed_1").info["data"]["env_id"] == EVIL
    (place / "imported").unlink()
    assert main(["train", "--run-dir", "run", "--seeds", "0,1", "--resume"]) == 2
    assert not imported(place)


@pytest.fixture
def run(place: Path) -> Path:
    """A run whose config.json names the module, as someone else's may."""
    run = pbrl.train(npz(place, None), run_dir="run", eval=False, steps=4, quiet=True, **SMALL)
    file = run.path / "config.json"
    values = json.loads(file.read_text())
    values["data"]["env_id"] = values["config"]["env_id"] = EVIL
    values["config"]["eval"] = True
    file.write_text(json.dumps(values))
    return run.path


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "run"],
        ["finetune", "run", "--steps", "2"],
        ["data", "collect", "--policy", "run", "--steps", "10"],
        ["train", "--run-dir", "run", "--resume", "--steps", "6"],
        ["train", "--config", "run/config.json", "--run-dir", "other"],
        ["train", "--config", "settings.json", "--run-dir", "other"],
        ["train", "--config", "settings.json", "--seeds", "0,1"],
        ["sweep", "sweep.yaml"],
        ["sweep", "sweep.yaml", "--dry-run"],
        ["sweep", "grid.yaml"],
    ],
)
def test_runs_and_settings_do_not_choose_code(
    words: list[str], run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"dataset": "log.npz", "env_id": EVIL, "steps": 4}
    (place / "settings.json").write_text(json.dumps(settings))
    lines = "datasets: log.npz\nsettings: {steps: 4}\n"
    (place / "sweep.yaml").write_text(f"{lines}variants: [{{settings: {{env_id: '{EVIL}'}}}}]\n")
    (place / "grid.yaml").write_text(f"{lines}grid: {{env_id: ['{EVIL}']}}\n")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "pbrl_test_evil" in error
    assert "--env-id" in error
    assert not imported(place)


def test_python_does_not_take_a_files_word_either(run: Path, place: Path) -> None:
    opened = pbrl.Run.open(run)
    with pytest.raises(pbrl.PbrlError, match="pbrl_test_evil"):
        pbrl.Evaluator(opened.env_id or "")
    with pytest.raises(pbrl.PbrlError, match="pbrl_test_evil"):
        finetune(run, steps=2)
    with pytest.raises(pbrl.PbrlError, match="pbrl_test_evil"):
        collect_policy(run, steps=10)
    assert opened.config.env_id is None
    assert not imported(place)
    assert collect_policy(run, EVIL, steps=10, out="collected", quiet=True).rows == 10
    assert imported(place)


def test_a_sweep_takes_the_users_word(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npz(place, None)
    settings = "{steps: 4, hidden: [8], batch_size: 32}"
    (place / "sweep.yaml").write_text(f"datasets: log.npz\nalgorithms: bc\nsettings: {settings}\n")
    assert main(["sweep", "sweep.yaml", "--dry-run", "--env-id", EVIL]) == 0
    assert "1 runs" in capsys.readouterr().out
