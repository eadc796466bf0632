"""The exported policy on its own: same answers, same light, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from algorithm_tester import tiny_dataset
from test_export import DATA, make_agent

from pbrl.deploy.agent import Agent
from pbrl.deploy.export import export_onnx
from pbrl.deploy.onnx_policy import CHECKSUM_SPACE, OnnxPolicy, with_checksum
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


IMPOSSIBLE = (np.nan, np.inf, -np.inf, 3e38, -3e38, 5e37, 1e300)


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize("column", [0, slice(None)], ids=str)
def test_what_is_not_finite_is_an_alarm_and_the_fallback_acts(
    exported: Path, value: float, column: int | slice
) -> None:
    safe = np.array([0.25, 0.75], np.float32)
    policy = OnnxPolicy(exported, fallback=lambda observation: safe)
    s = DATA.observations[:5].astype(np.float64)
    usual = policy.decide(s)
    s[2, column] = value
    decision = policy.decide(s)
    assert decision.alarm[2]
    np.testing.assert_array_equal(decision.action[2], safe)
    np.testing.assert_array_equal(decision.alarm[[0, 1, 3, 4]], usual.alarm[[0, 1, 3, 4]])
    np.testing.assert_allclose(decision.action[[0, 1, 3, 4]], usual.action[[0, 1, 3, 4]], atol=1e-6)
    assert policy.decide(s[2]).alarm
    np.testing.assert_array_equal(policy(s[2]), safe)
    assert policy.judge(s, DATA.actions[:5]).alarm[2]
    # Without a fallback the light is on all the same, and a bare action is refused.
    alone = OnnxPolicy(exported)
    assert alone.decide(s).alarm[2]
    if not abs(value) < 1e100:
        with pytest.raises(PbrlError, match="NaN"):
            alone(s)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_proposal_that_is_not_finite_is_an_alarm(exported: Path, value: float) -> None:
    s, a = DATA.observations[:3], DATA.actions[:3].copy()
    a[1, 0], a[2] = value, value
    assert OnnxPolicy(exported).judge(s, a).alarm[1:].all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 5e37])
def test_the_graph_itself_scores_infinity(exported: Path, value: float) -> None:
    """onnxruntime alone, without this package around it."""
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    s = DATA.observations[:3].copy()
    s[1] = value
    a = DATA.actions[:3].copy()
    a[2, 1] = np.nan  # half a proposal
    for feed in ({"observation": s}, {"observation": s, "proposed_action": a}):
        (score,) = session.run(["guard_score"], feed)
        assert score[1] == np.inf
        assert np.isfinite(score[0])
        assert np.isfinite(score[2]) == ("proposed_action" not in feed)


def test_the_graph_scores_infinity_where_its_weights_are_lost(exported: Path) -> None:
    model = onnx.load(exported)
    found = set()
    for place, tensor in enumerate(model.graph.initializer):
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.ndim < 2 or not np.isfinite(values).all():
            continue
        poisoned = onnx.ModelProto()
        poisoned.CopyFrom(model)
        lost = onnx.numpy_helper.from_array(np.full_like(values, np.nan), tensor.name)
        poisoned.graph.initializer[place].CopyFrom(lost)
        content = poisoned.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        feed = {"observation": DATA.observations[:4], "proposed_action": DATA.actions[:4]}
        score = session.run(["guard_score"], feed)[0]
        found.add(bool((score == np.inf).all()))
        with pytest.raises(PbrlError, match="checksum"):
            OnnxPolicy(content)
    assert found == {True}


def rewritten(path: Path, **changes: object) -> bytes:
    """An exported file with other metadata, and a checksum that fits them."""
    model = onnx.load(path)
    for entry in model.metadata_props:
        if entry.key == "pbrl":
            entry.value = json.dumps(json.loads(entry.value) | changes)
        elif entry.key == "sha256":
            entry.value = CHECKSUM_SPACE
    return with_checksum(model.SerializeToString())


def test_damaged_files_are_refused(exported: Path) -> None:
    assert OnnxPolicy(rewritten(exported)).guarded
    grid = OnnxPolicy(exported).metadata["guard_quantiles_own"]
    odd: tuple[object, ...] = (
        [float("nan"), *grid[1:]],
        [*grid[:-1], float("inf")],
        grid[::-1],
        [],
        None,
        "x",
    )
    for name in ("guard_quantiles_own", "guard_quantiles_proposed", "uncertainty_quantiles"):
        for values in odd:
            with pytest.raises(PbrlError, match="damaged"):
                OnnxPolicy(rewritten(exported, **{name: values}))
    sound = exported.read_bytes()
    for place in (len(sound) // 3, len(sound) // 2, 2 * len(sound) // 3):
        with pytest.raises(PbrlError, match=r"checksum|cannot read"):
            OnnxPolicy(sound[:place] + bytes([sound[place] ^ 16]) + sound[place + 1 :])
    model = onnx.load(exported)
    kept = [entry for entry in model.metadata_props if entry.key != "sha256"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    with pytest.raises(PbrlError, match="no checksum"):
        OnnxPolicy(model.SerializeToString())


def test_a_fallback_must_answer(exported: Path) -> None:
    answers: tuple[Any, ...] = (np.full(2, np.nan), np.zeros(3), "stop", None)
    for answer in answers:
        policy = OnnxPolicy(exported, fallback=partial(lambda given, observation: given, answer))
        with pytest.raises(PbrlError, match="fallback must return 2"):
            policy(FAR)


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


def test_a_file_without_guard_alarms_at_lost_numbers_alone(agent: Agent, tmp_path: Path) -> None:
    export_onnx(agent, tmp_path / "p.onnx", guard=False)
    policy = OnnxPolicy(tmp_path / "p.onnx")
    decision = policy.decide(FAR)
    assert not policy.guarded
    assert not decision.alarm
    assert policy.decide(np.full(3, np.nan)).alarm
    assert policy.decide(np.full(3, 3e38)).alarm
    assert np.isnan(decision.percentile)
    assert decision.uncertainty > 0
    export_onnx(make_agent("bc"), tmp_path / "bc.onnx", guard=False)
    plain = OnnxPolicy(tmp_path / "bc.onnx")
    assert plain.decide(np.array([0, np.nan, 0])).alarm
    assert not plain.decide(FAR).alarm
    with pytest.raises(PbrlError, match="judge no action"):
        plain.judge(FAR, np.zeros(2))


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> tuple[Agent, OnnxPolicy]:
    """An agent whose data name their columns, and its export."""
    agent = make_agent("pbrl", steps=5)
    names = {
        "observation_names": ["pressure, bar", "température", "level [%]"],
        "action_names": ["valve", "heater"],
    }
    agent.info = {**agent.info, "data": names}
    path = tmp_path_factory.mktemp("named") / "policy.onnx"
    export_onnx(agent, path, guard=False)
    return agent, OnnxPolicy(path)


def test_names_travel_into_the_file_and_order_no_longer_matters(
    named: tuple[Agent, OnnxPolicy],
) -> None:
    agent, policy = named
    assert policy.observation_names == ("pressure, bar", "température", "level [%]")
    assert policy.action_names == ("valve", "heater")
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    a = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
    by_name = {n: rows[:, i] for i, n in enumerate(policy.observation_names)}
    turned = dict(reversed(by_name.items())) | {"time": ["a", "b", "c", "d"]}
    expected = policy.decide(rows).action
    np.testing.assert_array_equal(policy.decide(turned).action, expected)
    np.testing.assert_array_equal(policy.decide(pd.DataFrame(turned)).action, expected)
    np.testing.assert_array_equal(agent.act(turned), agent.act(rows))
    one = {name: str(column[0]) for name, column in by_name.items()}  # as csv.DictReader gives it
    np.testing.assert_array_equal(policy.decide(one).action, policy.decide(rows[0]).action)
    series = pd.DataFrame(turned).iloc[0]
    np.testing.assert_array_equal(policy.decide(series).action, policy.decide(rows[0]).action)
    proposed = {"heater": a[:, 1], "valve": a[:, 0]}
    np.testing.assert_array_equal(
        policy.judge(turned, proposed).q_mean, policy.judge(rows, a).q_mean
    )
    np.testing.assert_array_equal(agent.q_values(turned, proposed), agent.q_values(rows, a))


def test_wrong_names_and_a_wrong_order_are_refused(named: tuple[Agent, OnnxPolicy]) -> None:
    policy = named[1]
    row = np.zeros(3, np.float32)
    right = list(policy.observation_names)
    assert np.isfinite(policy.decide(row, names=right).action).all()
    assert np.isfinite(policy(row, names=right)).all()
    with pytest.raises(PbrlError, match="come in another order than the training data"):
        policy.decide(row, names=right[::-1])
    with pytest.raises(PbrlError, match="are not those of the training data"):
        policy(row, names=["pressure", "temperature", "level"])
    with pytest.raises(PbrlError, match=r"observations lack 'level \[%\]'"):
        policy.decide({"pressure, bar": 1, "température": 2, "Level [%]": 3})
    with pytest.raises(PbrlError, match="differ in length"):
        policy.decide({right[0]: [1, 2], right[1]: [1, 2], right[2]: [1]})


@pytest.mark.parametrize("cell", ["", None, "Bad Input", "NaN", pd.NA])
def test_a_sensor_without_a_number_is_an_alarm(named: tuple[Agent, OnnxPolicy], cell: Any) -> None:
    policy = named[1]
    row: dict[str, Any] = dict.fromkeys(policy.observation_names, 0.5)
    assert not policy.decide(row).alarm
    assert policy.decide(row | {"level [%]": cell}).alarm


def test_a_policy_of_nameless_data_numbers_its_columns(exported: Path) -> None:
    policy = OnnxPolicy(exported)
    row = {"obs_2": 0.3, "obs_0": 0.1, "obs_1": 0.2}
    expected = policy.decide([0.1, 0.2, 0.3]).action
    np.testing.assert_array_equal(policy.decide(row).action, expected)
