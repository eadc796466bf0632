"""Exported files against the torch agents they came from, for every algorithm and variant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from algorithm_tester import tiny_dataset

from pbrl.algorithms import ALGORITHMS
from pbrl.algorithms.base import Algorithm
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import TrainingData
from pbrl.deploy.agent import Agent
from pbrl.deploy.agreement import check_model
from pbrl.deploy.export import build_model, export_onnx
from pbrl.errors import PbrlError

DATA = tiny_dataset(600)
INFO = {"data": {"name": "tiny", "fingerprint": DATA.fingerprint}, "versions": {"pbrl": "x"}}
SMALL = {"hidden": (16, 16), "policy_hidden": (16, 16), "batch_size": 64}


def make_agent(name: str, steps: int = 3, **overrides: Any) -> Agent:
    """A hardly trained agent with action bounds that are not [-1, 1]."""
    cls: type[Algorithm] = ALGORITHMS[name]
    fields = {**cls.presets["demo"], **overrides}
    fields |= {k: v for k, v in SMALL.items() if k in cls.Config.__dataclass_fields__}
    low, high = np.array([-2, -1], np.float32), np.array([1, 3], np.float32)
    maps = Preprocessing.fit(DATA, normalize_observations=True, action_low=low, action_high=high)
    algorithm = cls(cls.Config(**fields), 3, 2, seed=1, total_steps=10)
    data, generator = TrainingData(DATA, maps), torch.Generator().manual_seed(0)
    if name != "mopo":  # its model is another matter; its policy and critics are SAC's
        algorithm.prepare(data)
        for _ in range(steps):
            algorithm.update(data.sample(64, generator))
    return Agent(algorithm, maps, INFO)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ALGORITHMS),
    ("pbrl", {"authors_code": True}),
    ("pbrl-prior", {"authors_code": True}),
    ("pbrl-ablations", {"spectral_norm": 2}),
    ("pbrl-anchored", {"policy_average": 0.0}),
    ("pbrl", {"ensemble_size": 2}),
    ("pbrl-prior", {"prior_scale": 3.0}),
]


@pytest.mark.parametrize(("name", "overrides"), VARIANTS, ids=str)
def test_onnxruntime_gives_what_the_agent_gives(
    name: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    agent = make_agent(name, **overrides)
    report = export_onnx(agent, tmp_path / "p.onnx", guard=False)
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx", providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["observation"]
    s = np.random.default_rng(5).normal(size=(33, 3)).astype(np.float32)
    for rows in (s, s[:1]):
        found = dict(zip(report.outputs, session.run(None, {"observation": rows}), strict=True))
        action = agent.act(rows)
        assert found["action"].shape == action.shape
        np.testing.assert_allclose(found["action"], action, atol=1e-5)
        if agent.algorithm.has_critics:
            q, u = agent.q_values(rows, action), agent.uncertainty(rows, action)
            size = np.abs(q).max()
            np.testing.assert_allclose(found["q_mean"], q.mean(0), atol=1e-5 * size)
            np.testing.assert_allclose(found["uncertainty"], u, atol=1e-5 * size)
            assert u.max() > 1e-4 * size  # not the trivial agreement of zeros
        else:
            assert report.outputs == ("action",)
            assert "no critics" in report.notes[0]


def test_metadata_names_data_versions_and_percentiles(tmp_path: Path) -> None:
    agent = make_agent("pbrl")
    agent.fit_guard(DATA, steps=20)
    export_onnx(agent, tmp_path / "p.onnx")
    model = onnx.load(tmp_path / "p.onnx")
    properties = {p.key: p.value for p in model.metadata_props}
    assert properties["data_fingerprint"] == DATA.fingerprint
    about = json.loads(properties["pbrl"])
    assert about["versions"] == {"pbrl": "x"}
    grid = about["uncertainty_quantiles"]
    assert grid == sorted(grid)
    u = agent.uncertainty(DATA.observations, DATA.actions)
    assert grid[500] == pytest.approx(np.median(u), rel=0.02)


def test_an_export_that_disagrees_is_refused_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent("pbrl")
    truth = agent.q_values
    monkeypatch.setattr(agent, "q_values", lambda s, a: truth(s, a) * 1.001)
    with pytest.raises(PbrlError, match="values are off"):
        export_onnx(agent, tmp_path / "p.onnx", guard=False)
    other = make_agent("pbrl")
    other.preprocessing = replace(
        other.preprocessing, observation_shift=other.preprocessing.observation_shift + 1
    )
    wrong = make_agent("pbrl")
    monkeypatch.setattr(wrong, "act", other.act)
    with pytest.raises(PbrlError, match="actions are off"):
        export_onnx(wrong, tmp_path / "p.onnx", guard=False)
    assert list(tmp_path.iterdir()) == []


def test_networks_that_are_not_finite_are_not_exported(tmp_path: Path) -> None:
    for part in ("policy", "critics"):
        agent = make_agent("pbrl")
        next(agent.algorithm.networks()[part].parameters()).data.view(-1)[0] = torch.inf
        with pytest.raises(PbrlError, match="not finite"):
            export_onnx(agent, tmp_path / "p.onnx", guard=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bear", "uwac"])
def test_near_ties_of_candidates_are_no_disagreement(name: str, tmp_path: Path) -> None:
    """Critics that hardly look at the action: rounding alone decides which candidate is best."""
    agent = make_agent(name)
    main: Any = agent.algorithm.critics.main
    with torch.no_grad():
        main.weights[0][:, -2:] *= 1e-7
    s = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)
    built: Any = build_model(agent)[0]
    content = built if isinstance(built, bytes) else built.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    exported = session.run(["action"], {"observation": s})[0]
    assert np.abs(exported - agent.act(s)).max() > 0.01  # they do choose differently
    agent.fit_guard(DATA, steps=10)
    report = export_onnx(agent, tmp_path / "p.onnx", observations=s)
    assert report.action_error < 1e-5
    # Equal values do not excuse an action that is none of the candidates.
    agent.algorithm.parts().candidate_noise.add_(0.01)  # type: ignore[union-attr]
    with pytest.raises(PbrlError, match="actions are off"):
        check_model(content, agent, s)


def test_a_worse_candidate_is_a_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, other = make_agent("bear"), make_agent("bear")
    other.algorithm.critics.main.head_weight.data *= -1  # the worst is its best
    monkeypatch.setattr(agent, "act", other.act)
    with pytest.raises(PbrlError, match="actions are off"):
        export_onnx(agent, tmp_path / "p.onnx", guard=False)


def test_size_of_the_papers_networks(tmp_path: Path) -> None:
    for name, limit in (("pbrl", 7e6), ("pbrl-prior", 13e6)):
        cls = ALGORITHMS[name]
        agent = Agent(cls(cls.Config(), 11, 3), Preprocessing.identity(11, 3))
        assert export_onnx(agent, tmp_path / "p.onnx", guard=False).size < limit


def test_without_a_guard_or_data_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PbrlError, match="fit_guard"):
        export_onnx(make_agent("pbrl"), tmp_path / "p.onnx")
