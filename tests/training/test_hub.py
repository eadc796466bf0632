"""A run as model hubs expect one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pendulum_log import ENV, SMALL, write_log

import pbrl
from pbrl.cli.main import main
from pbrl.deploy.onnx_policy import OnnxPolicy
from pbrl.errors import PbrlError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pbrl.Run:
    place = tmp_path_factory.mktemp("hub")
    log = write_log(place / "pendulum.npz")
    settings: dict[str, Any] = {**SMALL, "steps": 10, "quiet": True, "eval_episodes": 2}
    return pbrl.train(log, run_dir=place / "run", env_id=ENV, **settings)


def front_matter(card: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_has_a_model_index(run: pbrl.Run) -> None:
    values = front_matter((run.path / "MODEL_CARD.md").read_text())
    (model,) = values["model-index"]
    (result,) = model["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"]["name"] == ENV
    (metric,) = result["metrics"]
    assert metric["type"] == "mean_reward"
    assert run.summary is not None
    last = run.summary["last_evaluation"]
    assert metric["value"] == f"{last['return_mean']:.2f} +/- {last['return_std']:.2f}"


def test_a_hub_directory_acts_as_the_run_does(run: pbrl.Run, tmp_path: Path) -> None:
    place = tmp_path / "upload"
    assert main(["export", str(run.path), str(place), "--hub-layout"]) == 0
    names = {path.name for path in place.iterdir()}
    assert names == {"model.safetensors", "config.json", "README.md", "policy.onnx"}
    observations = np.random.default_rng(0).normal(0, 0.1, (5, 4)).astype(np.float32)
    expected = run.agent().act(observations)
    loaded = pbrl.load_agent(place)
    np.testing.assert_array_equal(loaded.act(observations), expected)
    actions = np.zeros((5, 1), np.float32)
    np.testing.assert_array_equal(
        loaded.q_values(observations, actions), run.agent().q_values(observations, actions)
    )
    decided = OnnxPolicy(place / "policy.onnx").decide(observations)
    np.testing.assert_allclose(decided.action, expected, atol=1e-4)
    assert front_matter((place / "README.md").read_text())["model-index"]
    for name in ("config.json", "README.md"):
        assert str(run.path.parent) not in (place / name).read_text()
    assert json.loads((place / "config.json").read_text())["config"]["dataset"] == "pendulum"


def test_nothing_is_overwritten_or_half_written(
    run: pbrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    assert main(["export", str(run.path), str(full), "--hub-layout", "--no-guard"]) == 2
    assert "new or empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert main(["export", str(run.path), "--hub-layout", "--no-guard"]) == 2
    assert "directory" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["export", str(run.path), str(empty), "--hub-layout", "--no-guard"]) == 0
    with pytest.raises(PbrlError, match="no checkpoint at step 5"):
        pbrl.load_agent(empty, step=5)
    weights = empty / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(PbrlError, match="damaged"):
        pbrl.load_agent(empty)
