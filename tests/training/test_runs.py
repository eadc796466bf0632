"""Whole runs through the public interface: what they write, what they refuse."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pendulum_log import ENV, SMALL, write_log

import pbrl
from pbrl.cli.main import main
from pbrl.training import files


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "pendulum.npz")


def small(dataset: Any, run_dir: Path, **more: Any) -> pbrl.Run:
    settings: dict[str, Any] = {**SMALL, "steps": 30, "eval": False, "quiet": True, **more}
    return pbrl.train(dataset, run_dir=run_dir, **settings)


def test_a_run_directory_explains_itself(log: Path, tmp_path: Path) -> None:
    run = small(log, tmp_path / "run", eval=True, env_id=ENV, eval_episodes=2, tensorboard=True)
    config = json.loads((run.path / "config.json").read_text())
    assert config["config"]["settings"]["beta_in"] == 0.01
    assert config["data"]["transitions"] == 400
    assert len(config["data"]["fingerprint"]) == 64
    assert config["versions"]["torch"]
    kinds = {r["kind"] for r in run.metrics()}
    assert kinds == {"train", "eval"}
    wanted = {
        "td_loss", "ood_loss", "actor_loss", "alpha", "entropy", "beta_ood", "q_data", "u_data",
        "q_policy", "u_policy", "q_ood", "u_ood",
    }  # fmt: skip
    assert wanted <= next(r for r in run.metrics() if r["kind"] == "train").keys()
    assert list((run.path / "tensorboard").iterdir())
    assert run.summary is not None
    assert run.summary["last_evaluation"]["episodes"] == 20
    assert not list(run.path.rglob("*.tmp"))


def test_agent_speaks_numpy_in_raw_units(log: Path, tmp_path: Path) -> None:
    run = small(log, tmp_path / "run", eval=True, env_id=ENV, eval_episodes=1)
    agent = pbrl.load_agent(run.path)
    one, many = np.zeros(4), np.zeros((5, 4))
    assert agent.act(one).shape == (1,)
    actions = agent.act(many)
    assert actions.shape == (5, 1)
    assert actions.dtype == np.float32
    assert np.abs(actions).max() <= 3
    q = agent.q_values(many, actions)
    assert q.shape == (3, 5)
    np.testing.assert_allclose(agent.uncertainty(many, actions), q.std(0), rtol=1e-4, atol=1e-6)
    assert agent.q_values(one, actions[0]).shape == (3,)
    assert agent.uncertainty(one, actions[0]).shape == ()
    assert np.array_equal(agent.act(one), agent.act(one)), "deterministic unless asked"
    assert not np.array_equal(agent.act(many, deterministic=False), actions)
    for bad in (np.zeros(3), np.zeros((2, 5)), np.full(4, np.nan), "text"):
        with pytest.raises(pbrl.PbrlError, match="observations"):
            agent.act(bad)
    with pytest.raises(pbrl.PbrlError, match="same number of rows"):
        agent.q_values(many, actions[:2])


def test_actions_are_mapped_to_the_unit_box_and_back(tmp_path: Path) -> None:
    """Two logs that differ by the units of their actions train to the same policy."""
    unit = write_log(tmp_path / "unit.npz", actions=np.linspace(-1, 1, 400)[:, None])
    wide = write_log(tmp_path / "wide.npz", actions=np.linspace(10, 30, 400)[:, None])
    a = small(unit, tmp_path / "a")
    b = small(wide, tmp_path / "b", action_low=(10.0,), action_high=(30.0,))
    s = np.random.default_rng(0).normal(0, 0.1, (7, 4))
    small_actions, wide_actions = a.agent().act(s), b.agent().act(s)
    np.testing.assert_allclose(wide_actions, 20 + 10 * small_actions, rtol=1e-4)
    assert b.info["preprocessing"]["action_low"] == [10.0]
    # Without declared bounds the data's own extremes serve.
    c = small(wide, tmp_path / "c")
    assert c.info["preprocessing"]["action_high"] == [30.0]


def test_training_needs_no_simulator(log: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['gymnasium'] = None; sys.modules['mujoco'] = None\n"
        "from pbrl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["train", "--dataset", str(log), "--no-eval", "--steps", "20", "--batch-size", "16"]
    words += ["--hidden", "8", "--policy-hidden", "8", "--run-dir", str(tmp_path / "r")]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_normalisation_is_saved_and_applied_by_itself(tmp_path: Path) -> None:
    shifted = np.random.default_rng(1).normal([5, 0, 0, -3], [9, 1, 0.1, 2], (400, 4))
    log = write_log(tmp_path / "log.npz", observations=shifted, next_observations=shifted)
    run = small(log, tmp_path / "run", normalize_observations=True)
    maps = run.preprocessing
    np.testing.assert_allclose(maps.observation_shift, shifted.mean(0), rtol=1e-4)
    agent = run.agent()
    unit = (shifted - maps.observation_shift) / maps.observation_scale
    import torch

    direct = agent.algorithm.act(torch.tensor(unit, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(agent.act(shifted), maps.raw_actions(direct), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("reward", "floor"), [(1.0, 0.0), (-1.0, -100.0), (0.0, 0.0)], ids=["plus", "minus", "zero"]
)
def test_the_floor_follows_the_sign_of_the_rewards(
    tmp_path: Path, reward: float, floor: float, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.npz", rewards=np.full(400, reward))
    small(log, tmp_path / "run", steps=1, quiet=False)
    assert f"floored at {floor:g} " in capsys.readouterr().err


def test_divergence_stops_with_the_quantity_the_step_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = np.ones(400)
    rewards[200] = 1e25  # its square is beyond float32: the batch that draws it diverges
    log = write_log(tmp_path / "log.npz", rewards=rewards)
    words = ["train", "--dataset", str(log), "--algorithm", "pbrl", "--no-eval", "--steps", "2000"]
    words += ["--batch-size", "8"]
    words += ["--hidden", "8", "--policy-hidden", "8", "--run-dir", str(tmp_path / "r")]
    words += ["--threads", "1", "--checkpoint-every", "1", "--log-every", "1", "--n-ood", "1"]
    assert main(words) == 3
    text = capsys.readouterr().err
    assert "diverged" in text
    assert "at step" in text
    assert "critic_lr" in text
    assert "Traceback" not in text
    pbrl.load_agent(tmp_path / "r")


def test_disk_full_loses_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(log, tmp_path / "run", steps=10)
    before = sorted(p.name for p in run.checkpoints.iterdir())

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pbrl.training.checkpoint._write_durably", full)
    with pytest.raises(pbrl.PbrlError, match="No space left"):
        small(log, run.path, steps=20, resume=True)
    monkeypatch.undo()
    assert sorted(p.name for p in run.checkpoints.iterdir()) == before
    small(log, run.path, steps=20, resume=True)


def test_write_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.json"
    files.write_json(target, {"a": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(pbrl.PbrlError, match="No space left"):
        files.write_json(target, {"a": 2})
    assert json.loads(target.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


BAD: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "unknown algorithm": ({}, ["--algorithm", "pbrl-priro"], "Did you mean 'pbrl-prior'"),
    "unknown preset": ({}, ["--preset", "papr"], "Did you mean 'paper'"),
    "unknown environment": ({}, ["--env-id", "InvertedPendulm-v5"], "InvertedPendulum-v5"),
    "environment that does not fit": ({}, ["--env-id", "Hopper-v5"], "11 observation"),
    "actions out of the environment's bounds": (
        {"actions": np.full((400, 1), 3.5)},
        ["--env-id", ENV],
        "--clip-actions",
    ),
    "NaN": ({"rewards": np.full(400, np.nan)}, ["--no-eval"], "NaN"),
    "missing key": ({"rewards": None}, ["--no-eval"], "'rewards'"),
    "lengths": ({"rewards": np.ones(399)}, ["--no-eval"], "differ in length"),
    "fewer rows than a batch": ({}, ["--no-eval", "--batch-size", "4096"], "fewer than one batch"),
    "bad gamma": ({}, ["--no-eval", "--gamma", "1.5"], "gamma"),
    "bad steps": ({}, ["--no-eval", "--steps", "0"], "steps"),
    "bad config file": ({}, ["--config", "nowhere.json"], "nowhere.json"),
    "cuda where there is none": ({}, ["--no-eval", "--device", "cuda"], "CUDA"),
    "bad seeds": ({}, ["--seeds", "0,x"], "--seeds"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
    changes, words, phrase = BAD[name]
    log = write_log(tmp_path / "log.npz", **changes)
    run_dir = tmp_path / "run"
    base = ["train", "--dataset", str(log), "--run-dir", str(run_dir), "--steps", "5"]
    assert main([*base, "--threads", "1", *words]) == 2
    text = capsys.readouterr().err
    assert phrase in text
    assert "Traceback" not in text
    assert not run_dir.exists(), "nothing half-written"


def test_unknown_dataset_and_missing_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dataset, phrase in {"dmeo": "Did you mean 'demo'", "none.hdf5": "none.hdf5"}.items():
        assert main(["train", "--dataset", dataset, "--run-dir", str(tmp_path / "r")]) == 2
        assert phrase in capsys.readouterr().err
    for command in ("evaluate", "probe"):
        assert main([command, str(tmp_path / "nothing")]) == 2
        assert "no pbrl run" in capsys.readouterr().err


def test_no_write_permission(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    words = ["train", "--dataset", str(log), "--no-eval", "--run-dir", str(blocked / "run")]
    assert main(words) == 2
    assert "Cannot write" in capsys.readouterr().err


def test_clip_actions_repairs_what_it_offers_to(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.npz", actions=np.full((400, 1), 3.5))
    run = small(log, tmp_path / "run", eval=True, env_id=ENV, eval_episodes=1, clip_actions=True)
    assert run.info["preprocessing"]["action_high"] == [3.0]


def test_evaluate_and_probe_write_their_results(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(log, tmp_path / "run")
    assert main(["evaluate", str(run.path), "--env-id", ENV, "--episodes", "3"]) == 0
    first = json.loads((run.path / "evaluation.json").read_text())
    assert len(first["returns"]) == 3
    assert main(["evaluate", str(run.path), "--env-id", ENV, "--episodes", "3"]) == 0
    assert json.loads((run.path / "evaluation.json").read_text()) == first
    assert main(["probe", str(run.path)]) == 0
    probe = json.loads((run.path / "probe.json").read_text())
    assert list(probe["kinds"]) == ["offline", "policy", "random", "noise1", "noise2"]
    assert (run.path / "probe.png").stat().st_size > 1000
    assert "noise2" in capsys.readouterr().out


def test_evaluate_under_noise(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(log, tmp_path / "run")
    words = ["evaluate", str(run.path), "--env-id", ENV, "--episodes", "3"]
    noise = ["--observation-noise", "0.5", "--action-noise", "2"]

    def result(*more: str) -> dict[str, Any]:
        assert main([*words, *more]) == 0
        values: dict[str, Any] = json.loads((run.path / "evaluation.json").read_text())
        return values

    clean, noisy = result(), result(*noise)
    assert (
        "noise of 0.5 deviations of the data on observations and 2 on actions"
        in capsys.readouterr().out
    )
    assert (clean["observation_noise"], clean["action_noise"]) == (0, 0)
    assert (noisy["observation_noise"], noisy["action_noise"]) == (0.5, 2)
    assert noisy["returns"] != clean["returns"]
    assert result(*noise) == noisy
    assert result(*noise, "--seed", "1")["returns"] != noisy["returns"]
    assert main([*words, "--action-noise", "-1"]) == 2
    assert "0 or more" in capsys.readouterr().err
    moved = log.rename(log.with_name("moved.npz"))
    assert main([*words, *noise]) == 2
    assert "--dataset" in capsys.readouterr().err
    assert result(*noise, "--dataset", str(moved)) == noisy


def test_several_seeds_in_one_command(log: Path, tmp_path: Path) -> None:
    words = ["train", "--dataset", str(log), "--algorithm", "pbrl", "--env-id", ENV]
    words += ["--steps", "20", "--batch-size", "16"]
    words += ["--hidden", "8", "--policy-hidden", "8", "--run-dir", str(tmp_path / "r")]
    words += ["--eval-episodes", "1", "--no-tensorboard", "--seeds", "0,1"]
    assert main(words) == 0
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert len(summary["return_mean"]["by_seed"]) == 2
    alone = small(
        log, tmp_path / "alone", env_id=ENV, eval=True, steps=20, batch_size=16, seed=1,
        hidden=(8,), policy_hidden=(8,), eval_episodes=1, ensemble_size=10, n_ood=10,
    )  # fmt: skip
    last = "checkpoints/step_000000020/networks.safetensors"
    assert (tmp_path / "r" / "seed_1" / last).read_bytes() == (alone.path / last).read_bytes()


def test_config_file_gives_the_same_run(log: Path, tmp_path: Path) -> None:
    run = small(log, tmp_path / "a", gamma=0.9, preset="fast", n_ood=3)
    words = ["train", "--config", str(run.path / "config.json"), "--quiet"]
    assert main([*words, "--run-dir", str(tmp_path / "b")]) == 0
    last = "checkpoints/step_000000030/networks.safetensors"
    assert (run.path / last).read_bytes() == (tmp_path / "b" / last).read_bytes()


def test_import_changes_neither_threads_nor_allocator() -> None:
    script = (
        "import torch; torch.set_num_threads(1); import ctypes\n"
        "import pbrl, pbrl.algorithms.pbrl, pbrl.training.loop, pbrl.data\n"
        "assert torch.get_num_threads() == 1\n"
        "import sys; assert 'matplotlib' not in sys.modules, 'import must stay light'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    light = "import sys, pbrl; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", light], check=True)
