"""Going on online: half log, half world, fading pessimism, and the same bytes after a resume."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pendulum_log import ENV, SMALL, write_log
from safetensors.torch import load_file, save_file

import pbrl
from pbrl.cli.main import main
from pbrl.data.training_data import Batch
from pbrl.deploy.agent import Agent
from pbrl.errors import PbrlError
from pbrl.training.checkpoint import MANIFEST, NETWORKS
from pbrl.training.config import TrainConfig
from pbrl.training.finetune import OnlineBatches, finetune

TUNE: dict[str, Any] = {"eval_every": 40, "eval_episodes": 1, "threads": 1, "quiet": True}


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> pbrl.Run:
    place = tmp_path_factory.mktemp("offline")
    log = write_log(place / "pendulum.npz")
    settings: dict[str, Any] = {**SMALL, "steps": 30, "eval": False, "quiet": True, "env_id": ENV}
    return pbrl.train(log, run_dir=place / "run", **settings)


def weights(run: pbrl.Run) -> dict[str, bytes]:
    files = (run.checkpoints / sorted(p.name for p in run.checkpoints.iterdir())[-1]).iterdir()
    return {path.name: path.read_bytes() for path in files}


def test_starts_from_the_run_and_relaxes_its_pessimism(offline: pbrl.Run, tmp_path: Path) -> None:
    run = finetune(offline.path, steps=60, run_dir=tmp_path / "tuned", relax=0.1, **TUNE)
    beta = [r["beta_ood"] for r in run.metrics() if r["kind"] == "train"]
    assert beta[0] == pytest.approx(0.2, rel=0.1)  # the offline schedule's last value
    assert beta[-1] == pytest.approx(0.02, rel=0.1)
    assert beta == sorted(beta, reverse=True)
    first = next(r for r in run.metrics() if r["kind"] == "eval")
    assert first["step"] == 0
    origin = run.info["finetune"]
    assert origin["step"] == 30
    assert run.summary is not None
    assert run.summary["steps"] == 60
    observation = np.array([0.01, 0.02, 0.0, 0.0])
    assert not np.array_equal(run.agent().act(observation), offline.agent().act(observation))
    assert "Fine-tuned online from" in (run.path / "MODEL_CARD.md").read_text()
    # One step a gradient step, all kept.
    saved = load_file(run.checkpoints / "step_000000060" / "training.safetensors")
    assert saved["online/rows"].shape == (60, 4 + 1 + 1 + 4 + 1)


def test_goes_on_from_the_averaged_policy_and_the_last_cloning_weight(tmp_path: Path) -> None:
    settings = {**SMALL, "steps": 30, "eval": False, "quiet": True, "env_id": ENV}
    settings |= {"policy_average": 0.9, "cloning": 0.4, "cloning_end": 0.2, "actor_lr": 1e-3}
    settings |= {"algorithm": "pbrl-anchored"}
    log = write_log(tmp_path / "pendulum.npz")
    parent = pbrl.train(log, run_dir=tmp_path / "run", **settings)
    run = finetune(parent.path, steps=1, run_dir=tmp_path / "tuned", relax=0.1, **TUNE)
    assert run.config.settings.cloning == pytest.approx(0.2)  # type: ignore[attr-defined]
    assert run.config.settings.cloning_end == pytest.approx(0.02)  # type: ignore[attr-defined]
    before, after = (r.agent().algorithm.networks()["policy"].state_dict() for r in (parent, run))
    moved = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert moved < 3e-3  # a step of Adam; the trained policy is several steps away from its average


def test_a_killed_fine_tuning_ends_with_the_same_bytes(
    offline: pbrl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finetune(offline.path, steps=90, run_dir=tmp_path / "whole", **TUNE)

    class Killed(BaseException):
        pass

    taken = 0
    original = OnlineBatches._step

    def dying(self: OnlineBatches) -> None:
        nonlocal taken
        taken += 1
        if taken == 53:
            raise Killed
        original(self)

    resolved = TrainConfig.resolved

    def often(self: TrainConfig) -> TrainConfig:
        return dataclasses.replace(resolved(self), checkpoint_every=25)

    monkeypatch.setattr(TrainConfig, "resolved", often)
    monkeypatch.setattr(OnlineBatches, "_step", dying)
    with pytest.raises(Killed):
        finetune(offline.path, steps=90, run_dir=tmp_path / "killed", **TUNE)
    monkeypatch.setattr(OnlineBatches, "_step", original)
    resumed = finetune(offline.path, steps=90, run_dir=tmp_path / "killed", resume=True, **TUNE)
    assert weights(resumed) == weights(whole)
    clock = ("seconds", "steps_per_second", "evaluation_seconds")
    strip = [{k: v for k, v in r.items() if k not in clock} for r in whole.metrics()]
    assert [{k: v for k, v in r.items() if k not in clock} for r in resumed.metrics()] == strip


class Log:
    """Rows that can be told from online ones: rewards are -1000."""

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        ones = torch.ones(size)
        return Batch(torch.zeros(size, 4), ones[:, None], -1000 * ones, torch.zeros(size, 4), ones)


def batches_of(agent: Agent, share: float = 0.5, capacity: int = 1000) -> OnlineBatches:
    return OnlineBatches(Log(), agent, ENV, 0, capacity=capacity, offline_share=share)


def test_batches_are_half_log_and_half_world(offline: pbrl.Run) -> None:
    batches, generator = batches_of(offline.agent()), torch.Generator().manual_seed(0)
    first = batches.sample(20, generator)
    assert (first.rewards == -1000).all()  # nothing of its own to draw from yet
    for _ in range(30):
        batch = batches.sample(20, generator)
    assert (batch.rewards == -1000).sum() == 10
    online = batch.rewards[10:]
    assert set(online.tolist()) <= {0.0, 1.0}  # the pendulum pays 1 a step while it stands
    assert (online == 1).sum() >= 5
    assert batch.observations[10:].abs().sum() > 0
    assert batches.replay.total == 31


def test_rows_are_what_the_environment_gave(offline: pbrl.Run) -> None:
    """Played again by hand from the same seed: observations, terminal flags and episode starts."""
    agent, generator = offline.agent(), torch.Generator().manual_seed(0)
    batches = batches_of(agent)
    for _ in range(120):
        batches.sample(8, generator)
    s, a, r, s2, t = torch.split(batches.replay.rows[:120], batches.replay.widths, dim=1)
    assert t.sum() >= 1, "no episode ended: the test would see no episode boundary"
    env, episode, observation = pbrl.make_env(ENV), 0, None
    for i in range(120):
        if observation is None:
            episode += 1
            seed = int(np.random.SeedSequence([0, episode]).generate_state(1)[0])
            observation, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(s[i].numpy(), observation.astype(np.float32))
        raw = agent.preprocessing.raw_actions(a[i].numpy())
        after, reward, terminated, _, _ = env.step(replay_action(raw))
        np.testing.assert_allclose(s2[i].numpy(), after.astype(np.float32), rtol=1e-3, atol=1e-4)
        assert float(r[i]) == reward
        assert bool(t[i]) == terminated
        # Rounding of the action's unit grows over an episode: go on from the row itself.
        observation = None if terminated else s2[i].numpy()
        if observation is not None:
            env.unwrapped.set_state(*state_of(observation))  # type: ignore[attr-defined]
    env.close()


def replay_action(raw: Any) -> Any:
    return np.clip(raw, -3, 3)


def state_of(observation: Any) -> tuple[Any, Any]:
    """InvertedPendulum observes (qpos, qvel) as they are."""
    return observation[:2].astype(np.float64), observation[2:].astype(np.float64)


def test_old_rows_make_room(offline: pbrl.Run) -> None:
    batches, generator = batches_of(offline.agent(), 0.0, 1000), torch.Generator().manual_seed(0)
    batches.replay.rows = batches.replay.rows[:50]
    for _ in range(70):
        batches.sample(8, generator)
    assert batches.replay.total == 70
    other = batches_of(offline.agent(), 0.0, 1000)
    other.replay.rows = torch.zeros_like(batches.replay.rows)
    other.load(batches.state())
    assert torch.equal(other.replay.rows, batches.replay.rows)
    assert batches.playing is not None, "no episode is running: nothing would be played again"
    for _ in range(5):
        one, two = batches.sample(8, generator), other.sample(8, generator)
        assert torch.equal(one.observations, two.observations)
    assert torch.equal(other.replay.rows, batches.replay.rows)


def test_refuses_what_does_not_fit(
    offline: pbrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for bad in ({"offline_share": 1.0}, {"relax": 0.0}, {"capacity": 10}, {"from_step": 7}):
        with pytest.raises(PbrlError, match=next(iter(bad)).split("_")[-1]):
            finetune(offline.path, run_dir=tmp_path / "no", quiet=True, **bad)
    other = pbrl.load_dataset(write_log(tmp_path / "other.npz", seed=9))
    with pytest.raises(PbrlError, match="not the data"):
        finetune(offline.path, run_dir=tmp_path / "no", dataset=other, quiet=True)
    assert not (tmp_path / "no").exists()
    words = ["finetune", str(offline.path), "--env-id", "Hopper-v5", "--run-dir"]
    assert main([*words, str(tmp_path / "no")]) == 2
    assert "observation" in capsys.readouterr().err


def test_a_run_of_a_gpu_is_fine_tuned_without_one(offline: pbrl.Run, tmp_path: Path) -> None:
    run = Path(shutil.copytree(offline.path, tmp_path / "run"))
    info = json.loads((run / "config.json").read_text())
    info["device"] = info["config"]["device"] = "cuda"
    (run / "config.json").write_text(json.dumps(info))
    place = sorted((run / "checkpoints").iterdir())[-1]
    file, manifest = place / "training.safetensors", json.loads((place / MANIFEST).read_text())
    ours = load_file(file)
    theirs = {name: torch.arange(16, dtype=torch.uint8) for name in ours if name.startswith("rng/")}
    save_file(ours | theirs, file)
    manifest["sha256"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    (place / MANIFEST).write_text(json.dumps(manifest))
    tuned = finetune(run, steps=3, device="cpu", run_dir=tmp_path / "tuned", **TUNE)
    # A fine-tuning has random numbers of its own, whatever the run's were.
    plain = finetune(offline.path, steps=3, run_dir=tmp_path / "plain", **TUNE)
    assert weights(tuned)[NETWORKS] == weights(plain)[NETWORKS]
    assert tuned.info["device"] == tuned.config.device == "cpu"


def test_a_fine_tuning_is_not_resumed_as_a_training(offline: pbrl.Run, tmp_path: Path) -> None:
    finetune(offline.path, steps=20, run_dir=tmp_path / "tuned", **TUNE)
    with pytest.raises(PbrlError, match="resume it the way it was started"):
        finetune(
            offline.path, steps=30, run_dir=tmp_path / "tuned", capacity=2000, resume=True, **TUNE
        )


def test_the_command_line_tells_the_lowest_early_return(
    offline: pbrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--steps", "20", "--eval-every", "10", "--eval-episodes", "1", "--threads", "1"]
    assert main(["finetune", str(offline.path), "--run-dir", str(tmp_path / "t"), *words]) == 0
    assert "lowest in the first 5,000 steps" in capsys.readouterr().out
    assert pbrl.Run.open(tmp_path / "t").summary is not None
