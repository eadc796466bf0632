"""Lights over whole episodes: the promise, by counting; and who keeps it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from pendulum_log import SMALL, write_log
from test_guard import ring_log

import pbrl
from pbrl.algorithms.pbrl import PBRL, PBRLConfig
from pbrl.cli.main import main
from pbrl.data.preprocessing import Preprocessing
from pbrl.deploy.agent import Agent
from pbrl.deploy.episodes import EpisodeCalibration, EpisodeLight, conformal_threshold, peak
from pbrl.deploy.export import export_onnx
from pbrl.deploy.guard import Guard
from pbrl.deploy.onnx_policy import OnnxPolicy
from pbrl.errors import PbrlError


def calibration(peaks: Any, window: tuple[int, int] = (2, 3)) -> EpisodeCalibration:
    values = np.asarray(peaks, np.float64)
    return EpisodeCalibration(window, values, values + 10, 50, True)


def alarms_by_counting(scores: Any, level: float, window: tuple[int, int]) -> bool:
    """As the definition says it: some n steps in a row hold k above the level."""
    k, n = window
    above = [not score <= level for score in scores]
    return any(sum(above[max(0, t - n + 1) : t + 1]) >= k for t in range(len(above)))


def test_peak_by_hand() -> None:
    scores = [1.0, 5, 2, 4, 0, 9, 0, 0, 0]
    assert peak(scores, (1, 1)) == 9
    assert peak(scores, (2, 3)) == 4  # 5 and 4, or 4 and 9, within three steps
    assert peak(scores, (2, 2)) == 2
    assert peak(scores, (3, 5)) == 4
    assert peak([3.0], (1, 4)) == 3
    assert peak([3.0, 4], (3, 5)) == -np.inf  # too short to alarm
    assert peak([], (1, 1)) == -np.inf
    assert peak([np.nan, 0], (1, 2)) == np.inf


@pytest.mark.parametrize("window", [(1, 1), (1, 4), (2, 3), (3, 5), (5, 5)])
def test_an_episode_alarms_exactly_below_its_peak(window: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.normal(size=int(rng.integers(1, 12))).round(1)
        top = peak(scores, window)
        for level in (*scores, top - 1e-9, top + 1e-9):
            light = EpisodeLight(calibration([level], window), alpha=0.5)
            seen = [bool(light.update(score)[0]) for score in scores]
            assert seen[-1] == (level < top) == alarms_by_counting(scores, level, window)
            assert seen == sorted(seen)  # once on, it stays on


def test_thresholds_by_hand() -> None:
    peaks = np.random.default_rng(0).permutation(np.arange(1, 40))  # 39 episodes
    assert conformal_threshold(peaks, 0.05).level == 38  # 2 of 40 ranks lie above
    assert conformal_threshold(peaks, 0.1).level == 36
    assert conformal_threshold(peaks, 0.1).promise == pytest.approx(0.1)
    assert conformal_threshold(np.arange(1, 20), 0.05).level == 19
    few = conformal_threshold([3, 1, 2], 0.05)
    assert (few.level, few.promise) == (3, 0.25)
    assert "At most 25.0%" in few.sentence()
    assert "to promise 5.0% takes at least 19" in few.sentence()
    assert "takes" not in conformal_threshold(np.arange(1, 20), 0.05).sentence()


@pytest.mark.parametrize(("episodes", "alpha"), [(19, 0.05), (30, 0.1), (57, 0.05), (9, 0.05)])
def test_the_promise_holds_and_is_not_idle(episodes: int, alpha: float) -> None:
    """Over many logs and one new episode each, alarms are as rare as promised, and no rarer."""
    rng, logs = np.random.default_rng(1), 20_000
    peaks = rng.standard_cauchy((logs, episodes + 1))
    found = [conformal_threshold(row[1:], alpha) for row in peaks]
    rate = np.mean([row[0] > threshold.level for row, threshold in zip(peaks, found, strict=True)])
    promise = found[0].promise
    assert promise <= max(alpha, 1 / (episodes + 1)) + 1e-12
    assert abs(rate - promise) < 4 * np.sqrt(promise * (1 - promise) / logs)


def test_drift_of_the_log_is_seen() -> None:
    rng = np.random.default_rng(2)
    steady = calibration(rng.normal(size=200)).drift(0.1)
    moved = calibration(np.sort(rng.normal(size=200))).drift(0.1)
    assert steady is not None
    assert moved is not None
    assert steady.episodes == moved.episodes == 100
    assert steady.promise == pytest.approx(10 / 101)
    assert steady.alarms < 25
    assert moved.alarms > 80
    assert calibration([1, 2, 3]).drift() is None


def test_episodes_side_by_side_and_their_ends() -> None:
    light = EpisodeLight(calibration([1.0]), alpha=0.5)
    rows = np.array([[2, 0, 2], [2, 0, 0], [0, np.nan, 2], [0, np.inf, 0]])
    assert light.update(rows[0]).tolist() == [False] * 3
    assert light.update(rows[1]).tolist() == [True, False, False]
    assert light.update(rows[2]).tolist() == [True, False, True]
    assert light.count.tolist() == [2, 1, 2]
    light.reset([True, False, False])
    assert light.update(rows[3]).tolist() == [False, True, True]
    assert light.steps.tolist() == [1, 4, 4]
    with pytest.raises(PbrlError, match=r"3 episodes are running, and 2 rows.*reset"):
        light.update([0, 0])
    with pytest.raises(PbrlError, match="mask of the 3"):
        light.reset([True])
    light.reset()
    assert light.update(2.0).tolist() == [False]
    # Proposed actions have a threshold of their own, 10 higher here.
    light.reset()
    assert not any(light.update(5.0, proposed=True)[0] for _ in range(5))
    assert light.update(11.5, proposed=True).tolist() == [False]
    assert light.update(5.0).tolist() == [True]


def test_calibrations_survive_files_and_odd_ones_are_refused() -> None:
    known = calibration([3.5, -np.inf, 1 / 3])
    again = EpisodeCalibration.from_json(json.loads(json.dumps(known.to_json(), allow_nan=False)))
    np.testing.assert_array_equal(again.own, known.own)
    np.testing.assert_array_equal(again.proposed, known.proposed)
    assert (again.window, again.longest, again.unseen) == ((2, 3), 50, True)
    for peaks in ([], [np.nan, 1], [np.inf, 1]):
        with pytest.raises(PbrlError):
            calibration(peaks)
    for window in ((0, 3), (4, 3)):
        with pytest.raises(PbrlError, match="give 1 <= k <= n"):
            calibration([1.0], window)
    with pytest.raises(PbrlError, match="alpha"):
        EpisodeLight(known, alpha=0)


# ------------------------------------------------------------------------- in agents and files


def new_agent() -> Agent:
    config = PBRLConfig(ensemble_size=3, hidden=(16,), policy_hidden=(16,))
    return Agent(PBRL(config, 3, 2, seed=0), Preprocessing.identity(3, 2))


@pytest.fixture(scope="module")
def agent() -> Agent:
    agent = new_agent()
    agent.fit_guard(ring_log(episodes=400, length=12), steps=200)
    return agent


@pytest.fixture(scope="module")
def exported(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("episodes") / "policy.onnx"
    export_onnx(agent, path, alpha=0.1)
    return path


@pytest.mark.parametrize("proposed", [False, True])
def test_fresh_episodes_like_the_log_alarm_as_rarely_as_promised(
    agent: Agent, proposed: bool
) -> None:
    fresh = ring_log(episodes=500, length=12, seed=11)
    scores = agent.guard(fresh.observations, fresh.actions if proposed else None).score
    light = agent.episode_light(alpha=0.2)
    for step in scores.reshape(500, 12).T:
        light.update(step, proposed)
    # Rates given one calibration on 40 episodes follow a beta law around 8 of 41 ranks.
    promise = light.own.promise
    assert promise == pytest.approx(8 / 41)
    spread = np.sqrt(promise * (1 - promise) * (1 / 42 + 1 / 500))
    assert abs(light.alarm.mean() - promise) < 3.5 * spread
    moved = 0.3 * fresh.observations[: 12 * 20]
    light.reset()
    for step in agent.guard(moved).score.reshape(20, 12).T:
        light.update(step)
    assert light.alarm.all()


def test_the_file_counts_as_the_agent_does(agent: Agent, exported: Path) -> None:
    policy, light = OnnxPolicy(exported), agent.episode_light(alpha=0.1)
    assert policy.episode.own == light.own
    assert policy.episode.own.alpha == 0.1
    assert OnnxPolicy(exported, alpha=0.3).episode.own == agent.episode_light(0.3).own
    some = ring_log(episodes=30, length=12, seed=5)
    s = some.observations.reshape(30, 12, 3) * np.linspace(1, 0.5, 30)[:, None, None]
    for t in range(12):
        decision = policy.step(s[:, t])
        light.update(agent.guard(s[:, t]).score)
        np.testing.assert_array_equal(decision.alarm, light.alarm)
        np.testing.assert_allclose(decision.action, agent.act(s[:, t]), atol=1e-5)
    assert light.alarm.any()
    assert not light.alarm.all()
    np.testing.assert_array_equal(policy.episode.steps, np.full(30, 12))
    # Asking without counting changes nothing.
    policy.decide(s[0, 0])
    np.testing.assert_array_equal(policy.episode.steps, np.full(30, 12))


def test_once_on_the_fallback_acts_until_the_episode_ends(exported: Path) -> None:
    safe = np.array([0.25, 0.75], np.float32)
    policy = OnnxPolicy(exported, fallback=lambda observation: safe)
    usual, far = np.array([1, 0, 1], np.float32), np.full(3, 50, np.float32)
    assert not policy.step(usual).alarm
    seen = [bool(policy.step(far).alarm) for _ in range(3)]
    assert seen == [False, False, True]  # three of five steps
    decision = policy.step(usual)
    assert decision.alarm
    np.testing.assert_array_equal(decision.action, safe)
    policy.reset()
    decision = policy.step(usual)
    assert not decision.alarm
    assert not np.allclose(decision.action, safe)
    # What is not finite is an alarm at once, but one lost reading does not hold the episode.
    lost = policy.step([np.nan, 0, 1])
    assert lost.alarm
    np.testing.assert_array_equal(lost.action, safe)
    assert not policy.step(usual).alarm
    assert policy.episode.count.tolist() == [1]
    # Proposals of another controller have their own threshold.
    policy.reset()
    assert not policy.step(usual, actions=np.tanh([1.0, 0.0])).alarm
    wild = [bool(policy.step(usual, actions=[-0.9, -0.9]).alarm) for _ in range(3)]
    assert wild == [False, False, True]


def test_named_episodes_teach_the_guard_nothing() -> None:
    log = ring_log(episodes=40, length=12)
    held = [2, 5, 30]
    rows = np.concatenate([np.arange(12 * i, 12 * i + 12) for i in held])
    log.observations[rows] += 5  # as if they came from elsewhere
    agent = new_agent()
    guard = agent.fit_guard(log, steps=20, held_out=held)
    assert guard.episodes is not None
    assert len(guard.episodes) == 3
    assert guard.episodes.unseen
    assert float(guard.model.prototypes.shape[0]) == 12 * 37
    plain = new_agent().fit_guard(log.rows(np.setdiff1d(np.arange(480), rows)), steps=20)
    assert plain.episodes is not None
    assert not plain.episodes.unseen
    distance = guard.model.state(torch.from_numpy(log.observations))
    assert distance[rows].min() > 1000  # a column that never varied, moved by 5
    assert distance[np.setdiff1d(np.arange(480), rows)].max() < 0.1  # every one a prototype
    with pytest.raises(PbrlError, match="by their numbers, 0 to 39"):
        agent.fit_guard(log, held_out=[40])
    with pytest.raises(PbrlError, match="Every episode"):
        agent.fit_guard(log, held_out=range(40))


def test_calibrated_on_another_log(agent: Agent) -> None:
    other = new_agent()
    other.fitted_guard = agent.require_guard()
    moved = ring_log(episodes=25, length=12, seed=3)
    moved.observations[:] *= 0.5
    before = other.episode_light().own
    guard = other.calibrate_guard(moved, window=(1, 2))
    after = other.episode_light().own
    assert after.episodes == 25
    assert after.level > before.level
    assert guard.episodes is not None
    assert guard.episodes.window == (1, 2)
    scores = other.guard(moved.observations).score.reshape(25, 12)
    np.testing.assert_allclose(guard.episodes.own, scores.max(1), rtol=1e-5)
    assert agent.require_guard().episodes is not guard.episodes
    with pytest.raises(PbrlError, match="dimensions"):
        other.calibrate_guard(pbrl.TransitionDataset(*[np.zeros((30, 1), np.float32)] * 6))  # type: ignore[arg-type]


def test_without_enough_episodes_there_is_no_light_but_a_sentence(tmp_path: Path) -> None:
    agent = new_agent()
    for log in (ring_log(episodes=5), ring_log(episodes=60, length=2)):
        assert agent.fit_guard(log, steps=5).episodes is None
        with pytest.raises(PbrlError, match="calibrate_guard"):
            agent.episode_light()
    report = export_onnx(agent, tmp_path / "p.onnx")
    assert any("No light for whole episodes" in note for note in report.notes)
    policy = OnnxPolicy(tmp_path / "p.onnx")
    assert np.isfinite(policy.decide(np.zeros(3)).score)
    for call in (policy.reset, lambda: policy.step(np.zeros(3))):
        with pytest.raises(PbrlError, match="no light for whole episodes"):
            call()


def as_an_older_pbrl_wrote_it(path: Path) -> None:
    """Rewrite a guard file without what was not there before."""
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["guard"])
    del about["episodes"], about["sha256"], about["about"]["held_out_episodes"]
    about["format_version"] = 2
    tensors = safetensors.torch.load_file(path)
    text = json.dumps(about, sort_keys=True).encode()
    about["sha256"] = hashlib.sha256(text + safetensors.torch.save(tensors)).hexdigest()
    safetensors.torch.save_file(tensors, path, {"guard": json.dumps(about)})


def test_older_guards_serve_single_steps_and_are_renewed_where_data_are_there(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "log.npz")
    settings: dict[str, Any] = {**SMALL, "steps": 5, "eval": False, "quiet": True}
    run = pbrl.train(log, run_dir=tmp_path / "run", **settings)
    score = run.agent().guard(np.zeros(4)).score
    kept = run.path / "guards" / "step_000000005.safetensors"
    as_an_older_pbrl_wrote_it(kept)
    assert Guard.load(kept).episodes is None
    assert run.agent().episode_light().own.episodes == 5
    as_an_older_pbrl_wrote_it(kept)
    log.unlink()
    agent = run.agent()
    assert agent.guard(np.zeros(4)).score == score
    with pytest.raises(PbrlError, match="older pbrl"):
        agent.episode_light()


def test_export_calibrates_as_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.npz")
    settings: dict[str, Any] = {**SMALL, "steps": 5, "eval": False, "quiet": True}
    run = pbrl.train(log, run_dir=tmp_path / "run", **settings)
    file, trial = tmp_path / "policy.onnx", write_log(tmp_path / "trial.npz", rows=600, seed=9)
    assert main(["export", str(run.path), str(file)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "At most 16.7% of episodes like the log" in said  # 20 episodes, a quarter held out
    assert "to promise 5.0% takes at least 19" in said
    assert "critics learned from these" in said
    words = ["--alpha", "0.1", "--window", "1", "2", "--calibrate-on", str(trial)]
    assert main(["export", str(run.path), str(file), *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(1 of 2 steps): At most 9.7% of episodes" in said  # 3 of 31 ranks
    assert "critics learned" not in said
    policy = OnnxPolicy(file)
    assert (policy.episode.own.alpha, policy.episode.own.episodes) == (0.1, 30)
    observations = np.load(trial)["observations"]
    peaks = run.agent().guard(observations).score.reshape(30, 20).max(1)
    assert policy.episode.own.level == pytest.approx(np.sort(peaks)[-3], rel=1e-5)
    for bad in (["--alpha", "1"], ["--window", "3", "2"]):
        assert main(["export", str(run.path), str(file), *bad]) == 2
