"""The warning light: what it must see, and where its numbers come from."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from pendulum_log import SMALL, write_log

import pbrl
from pbrl.algorithms.pbrl import PBRL, PBRLConfig
from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.deploy.agent import Agent
from pbrl.deploy.guard import Guard
from pbrl.deploy.guard_fit import fit_guard
from pbrl.errors import PbrlError


def ring_log(episodes: int = 60, length: int = 40, seed: int = 0) -> TransitionDataset:
    """States on a ring in the plane (plus a constant column), actions near a function of them."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, episodes * length)
    radius = 1 + 0.05 * rng.normal(size=len(angle))
    s = np.stack([radius * np.cos(angle), radius * np.sin(angle), np.ones_like(angle)], 1)
    a = np.tanh(
        np.stack([np.cos(angle), np.sin(2 * angle)], 1) + 0.1 * rng.normal(size=(len(s), 2))
    )
    ends = np.arange(len(s)) % length == length - 1
    states, actions = s.astype(np.float32), a.astype(np.float32)
    rewards = np.ones(len(s), np.float32)
    return TransitionDataset(states, actions, rewards, states, ends & False, ends)


@pytest.fixture(scope="module")
def agent() -> Agent:
    log = ring_log()
    config = PBRLConfig(ensemble_size=4, hidden=(16,), policy_hidden=(16,))
    agent = Agent(PBRL(config, 3, 2, seed=0), Preprocessing.identity(3, 2))
    agent.fit_guard(log, steps=1000)
    return agent


def auroc(usual: Any, odd: Any) -> float:
    """Share of pairs that are in the right order, computed pair by pair."""
    usual, odd = np.asarray(usual)[:, None], np.asarray(odd)[None]
    return float((odd > usual).mean() + 0.5 * (odd == usual).mean())


def test_sees_states_and_actions_the_log_has_not(agent: Agent) -> None:
    held = ring_log(episodes=10, seed=1)
    rng = np.random.default_rng(2)
    s, a = held.observations, held.actions
    usual = agent.guard(s, a).score
    noisy = np.clip(a + 0.5 * rng.normal(size=a.shape), -1, 1)
    assert auroc(usual, agent.guard(s, noisy).score) > 0.9
    uniform = rng.uniform(-1, 1, a.shape)
    assert auroc(usual, agent.guard(s, uniform).score) > 0.9
    # The middle of the ring is inside every column's range: only the joint distance sees it.
    inside = s * np.array([0.3, 0.3, 1], np.float32)
    assert auroc(agent.guard(s).score, agent.guard(inside).score) > 0.95
    moved = s + np.array([0, 0, 0.05], np.float32)  # a column that never varied
    assert auroc(agent.guard(s).score, agent.guard(moved).score) > 0.95


def test_alarm_rate_on_held_out_data_is_what_the_quantile_says(agent: Agent) -> None:
    held = ring_log(episodes=50, seed=3)
    for quantile in (0.8, 0.95):
        own = agent.guard(held.observations, quantile=quantile).alarm.mean()
        proposed = agent.guard(held.observations, held.actions, quantile).alarm.mean()
        assert abs(own - (1 - quantile)) < 0.08
        assert abs(proposed - (1 - quantile)) < 0.08


def test_percentile_of_uncertainty_is_among_the_training_data(agent: Agent) -> None:
    log = ring_log()
    u = agent.uncertainty(log.observations, log.actions)
    some = slice(0, 50)
    reading = agent.guard(log.observations[some], log.actions[some])
    # Not to the last bit: products of other sizes may round otherwise.
    np.testing.assert_allclose(reading.uncertainty, u[some], rtol=1e-5)
    expected = [100 * (u < value).mean() for value in u[some]]
    np.testing.assert_allclose(reading.percentile, expected, atol=1.5)


def test_state_distance_is_the_distance_to_the_nearest_prototype(agent: Agent) -> None:
    model = agent.require_guard().model
    s = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    x = ((s - model.shift) / model.scale).double() @ model.whitening.double()
    expected = torch.cdist(x, model.prototypes.double()).amin(1)
    torch.testing.assert_close(model.state(s).double(), expected, rtol=1e-3, atol=1e-3)


def test_single_rows_and_the_policys_own_action(agent: Agent) -> None:
    s = ring_log(1, 5).observations
    many, one = agent.guard(s), agent.guard(s[0])
    np.testing.assert_array_equal(many.action, agent.act(s))
    assert one.action.shape == (2,)
    assert float(one.score) == pytest.approx(float(many.score[0]), rel=1e-4)
    # Its own action is not measured against the logged ones; the same action as a proposal is.
    as_proposal = agent.guard(s, agent.act(s))
    np.testing.assert_array_equal(as_proposal.uncertainty, many.uncertainty)
    assert not np.allclose(as_proposal.score, many.score)


def test_score_by_hand(agent: Agent) -> None:
    """Scaled measurements in float64: the leading one, and the others beyond 1."""
    model = agent.require_guard().model
    rng = np.random.default_rng(7)
    s = (ring_log(2, 30).observations * rng.choice([1.0, 1.8], (60, 1))).astype(np.float32)
    a = rng.uniform(-1, 1, (60, 2)).astype(np.float32)
    parts = [
        model.state(torch.from_numpy(s)).numpy(),
        agent.uncertainty(s, a),
        model.action(torch.from_numpy(s), torch.from_numpy(a)).numpy(),
    ]
    state, u, action = (
        (part.astype(np.float64) - float(model.medians[i])) / float(model.spreads[i])
        for i, part in enumerate(parts)
    )
    expected = [
        max([x, *(y for y in others if y > 1)]) for x, *others in zip(action, state, u, strict=True)
    ]
    np.testing.assert_allclose(agent.guard(s, a).score, expected, rtol=1e-4, atol=1e-4)
    assert (state > 1).any()
    assert (state < 1).any()


def test_saved_and_loaded_guards_agree(agent: Agent, tmp_path: Path) -> None:
    guard = agent.require_guard()
    guard.save(tmp_path / "g.safetensors")
    loaded = Guard.load(tmp_path / "g.safetensors")
    other = Agent(agent.algorithm, agent.preprocessing)
    other.fitted_guard = loaded
    s = ring_log(2, 10, seed=5).observations
    for name, values in vars(agent.guard(s)).items():
        np.testing.assert_array_equal(values, getattr(other.guard(s), name))


IMPOSSIBLE = (np.nan, np.inf, -np.inf, 3e38, -3e38, 5e37, 1e300)


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize("column", [0, 2, slice(None)], ids=str)
def test_what_is_not_finite_lights_up_and_leaves_other_rows_alone(
    agent: Agent, value: float, column: int | slice
) -> None:
    usual = ring_log(1, 9, seed=4)
    s, a = usual.observations.astype(np.float64), usual.actions.astype(np.float64)
    broken = s.copy()
    broken[4, column] = value
    for actions in (None, a):
        before, after = agent.guard(s, actions), agent.guard(broken, actions)
        assert after.alarm[4]
        others = np.arange(9) != 4
        np.testing.assert_allclose(after.score[others], before.score[others], rtol=1e-3, atol=1e-4)
        assert agent.guard(broken[4], None if actions is None else a[4]).alarm


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_proposal_that_is_not_finite_lights_up(agent: Agent, value: float) -> None:
    usual = ring_log(1, 3, seed=4)
    proposed = usual.actions.copy()
    proposed[1, 0] = value
    assert agent.guard(usual.observations, proposed).alarm[1]


@pytest.mark.parametrize("part", ["policy", "critics", "guard", "quantiles"])
def test_numbers_lost_in_memory_light_up(part: str) -> None:
    config = PBRLConfig(ensemble_size=2, hidden=(8,), policy_hidden=(8,))
    agent, log = Agent(PBRL(config, 3, 2), Preprocessing.identity(3, 2)), ring_log(12, 10)
    guard = agent.fit_guard(log, steps=20)
    assert not agent.guard(log.observations).alarm.all()
    if part == "quantiles":
        guard.own[:], guard.proposed[:] = np.nan, np.nan
    else:
        network = guard.model if part == "guard" else agent.algorithm.networks()[part]
        for value in network.state_dict().values():
            value.fill_(torch.nan)
    assert agent.guard(log.observations).alarm.all()
    if part != "policy":  # which has no say in what others propose
        assert agent.guard(log.observations, log.actions).alarm.all()


def test_a_guard_of_lost_numbers_cannot_be_made(agent: Agent) -> None:
    broken = PBRL(agent.algorithm.config, 3, 2)
    for value in broken.networks()["critics"].state_dict().values():
        value.fill_(torch.nan)
    with pytest.raises(PbrlError, match="not finite"):
        fit_guard(broken, agent.preprocessing, ring_log(12, 10), steps=5)
    guard = agent.require_guard()
    for name in ("own", "proposed", "uncertainty"):
        grid = getattr(guard, name).copy()
        grid[500] = np.nan
        with pytest.raises(PbrlError, match="not finite"):
            replace(guard, **{name: grid})


def test_damaged_and_old_files_are_refused(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    agent.require_guard().save(path)
    sound = path.read_bytes()
    (header,) = struct.unpack("<Q", sound[:8])
    for place in (8 + header + 40, len(sound) // 2, len(sound) - 3):  # weights and quantiles
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1 :])
        with pytest.raises(PbrlError, match="checksum"):
            Guard.load(path)
    for content in (b"nothing", sound[:-1], sound[:100]):
        path.write_bytes(content)
        with pytest.raises(PbrlError, match="damaged"):
            Guard.load(path)
    path.write_bytes(sound)
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["guard"])
    del about["sha256"]
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {"guard": json.dumps(about)})
    with pytest.raises(PbrlError, match="without a checksum"):
        Guard.load(path)


def test_same_seed_same_guard() -> None:
    log = ring_log(12, 10)
    config = PBRLConfig(ensemble_size=2, hidden=(8,), policy_hidden=(8,))
    algorithm, maps = PBRL(config, 3, 2), Preprocessing.identity(3, 2)
    one, two = (fit_guard(algorithm, maps, log, steps=20).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_makes_its_guard_on_first_use_and_keeps_it(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.npz")
    settings: dict[str, Any] = {**SMALL, "steps": 5, "eval": False, "quiet": True}
    run = pbrl.train(log, run_dir=tmp_path / "run", **settings)
    reading = run.agent().guard(np.zeros(4))
    assert np.isfinite(reading.score)
    kept = list((run.path / "guards").iterdir())
    assert [path.name for path in kept] == ["step_000000005.safetensors"]
    content = kept[0].read_bytes()
    kept[0].write_bytes(content[:-8] + b"\xff" * 8)  # damaged: fitted again
    assert run.agent().guard(np.zeros(4)).score == reading.score
    assert kept[0].read_bytes() == content
    log.unlink()  # the data are needed once
    assert run.agent().guard(np.zeros(4)).score == reading.score
    kept[0].write_bytes(content[:-8] + b"\xff" * 8)
    with pytest.raises(PbrlError, match=r"checksum.*fit_guard"):
        run.agent().guard(np.zeros(4))
    kept[0].unlink()
    with pytest.raises(PbrlError, match="fit_guard"):
        run.agent().guard(np.zeros(4))
    write_log(log, seed=8)
    with pytest.raises(PbrlError, match="no longer holds"):
        run.agent().guard(np.zeros(4))


def test_bad_use_gets_a_sentence(agent: Agent) -> None:
    with pytest.raises(PbrlError, match="fit_guard"):
        Agent(agent.algorithm, agent.preprocessing).guard(np.zeros(3))
    with pytest.raises(PbrlError, match="quantile"):
        agent.guard(np.zeros(3), quantile=0)
    with pytest.raises(PbrlError, match="20 transitions"):
        agent.fit_guard(ring_log(1, 10))
    with pytest.raises(PbrlError, match="dimensions"):
        agent.fit_guard(pbrl.TransitionDataset(*[np.zeros((30, 1), np.float32)] * 6))  # type: ignore[arg-type]
