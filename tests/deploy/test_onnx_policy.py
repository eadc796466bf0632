"""The exported policy on its own: same answers, same light, no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from algorithm_tester import tiny_dataset
from test_export import DATA, make_agent

from pbrl.deploy.agent import Agent
from pbrl.deploy.export import export_onnx
from pbrl.deploy.onnx_policy import OnnxPolicy
from pbrl.errors import PbrlError

FAR = np.full(3, 50, np.float32)


@pytest.fixture(scope="module")
def agent() -> Agent:
    agent = make_agent("pbrl", steps=20)
    agent.fit_guard(DATA, steps=100)
    return agent


@pytest.fixture(scope="module")
def exported(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "policy.onnx"
    export_onnx(agent, path)
    return path


def test_same_decisions_as_the_agent(agent: Agent, exported: Path) -> None:
    policy = OnnxPolicy(exported)
    s = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    a = np.random.default_rng(1).uniform([-2, -1], [1, 3], (50, 2)).astype(np.float32)
    readings = [(policy.decide(s), agent.guard(s)), (policy.judge(s, a), agent.guard(s, a))]
    for decision, reading in readings:
        np.testing.assert_allclose(decision.action, reading.action, atol=1e-5)
        np.testing.assert_allclose(decision.uncertainty, reading.uncertainty, rtol=1e-3)
        np.testing.assert_allclose(decision.percentile, reading.percentile, atol=0.2)
        np.testing.assert_allclose(decision.score, reading.score, atol=1e-2)
        np.testing.assert_allclose(decision.score_percentile, reading.score_percentile, atol=1)
    assert not np.allclose(readings[0][0].score, readings[1][0].score)
    one = policy.decide(s[0])
    assert one.action.shape == (2,)
    np.testing.assert_allclose(one.action, policy(s)[0], atol=1e-6)
    assert one.alarm.shape == ()


def test_fallback_takes_over_where_the_light_is_on(agent: Agent, exported: Path) -> None:
    safe = np.array([0.25, 0.75], np.float32)
    seen = []

    def fallback(observation: np.ndarray) -> np.ndarray:
        seen.append(observation)
        return safe

    policy = OnnxPolicy(exported, fallback=fallback)
    usual = DATA.observations[:20]
    actions = policy(np.vstack([usual, FAR]))
    np.testing.assert_array_equal(actions[-1], safe)
    np.testing.assert_array_equal(seen[-1], FAR)
    decision = policy.decide(FAR)
    assert decision.alarm
    assert not np.allclose(decision.policy_action, safe)
    others = tiny_dataset(400, seed=9).observations
    assert policy.decide(others).alarm.mean() < 0.1
    # A lower quantile lights it more often; without a fallback the policy's action stays.
    eager = OnnxPolicy(exported, quantile=0.5).decide(others)
    assert 0.2 < eager.alarm.mean() < 0.8
    np.testing.assert_array_equal(eager.action, eager.policy_action)


def test_runs_without_torch(exported: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from pbrl.deploy.onnx_policy import OnnxPolicy\n"
        f"d = OnnxPolicy({str(exported)!r}).decide(np.zeros(3))\n"
        "assert d.action.shape == (2,) and d.uncertainty > 0\n"
        "assert 'torch' not in sys.modules and 'onnx' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_bad_files_and_input_get_a_sentence(exported: Path, tmp_path: Path) -> None:
    policy = OnnxPolicy(exported)
    for bad, piece in ((np.zeros(4), "shape"), (np.full(3, np.nan), "NaN"), ("x", "numbers")):
        with pytest.raises(PbrlError, match=piece):
            policy(bad)
    with pytest.raises(PbrlError, match="rows"):
        policy.judge(np.zeros((2, 3)), np.zeros((1, 2)))
    with pytest.raises(PbrlError, match="no file"):
        OnnxPolicy(tmp_path / "none.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(PbrlError, match="cannot read"):
        OnnxPolicy(broken)
    with pytest.raises(PbrlError, match="quantile"):
        OnnxPolicy(exported, quantile=1)


def test_a_file_without_guard_never_alarms(agent: Agent, tmp_path: Path) -> None:
    export_onnx(agent, tmp_path / "p.onnx", guard=False)
    policy = OnnxPolicy(tmp_path / "p.onnx")
    decision = policy.decide(FAR)
    assert not policy.guarded
    assert not decision.alarm
    assert np.isnan(decision.percentile)
    assert decision.uncertainty > 0
    export_onnx(make_agent("bc"), tmp_path / "bc.onnx", guard=False)
    with pytest.raises(PbrlError, match="judge no action"):
        OnnxPolicy(tmp_path / "bc.onnx").judge(FAR, np.zeros(2))
