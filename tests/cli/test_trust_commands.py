"""``pbrl ope`` and ``pbrl export`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pendulum_log import SMALL, write_log

import pbrl
from pbrl.cli.main import main
from pbrl.deploy.onnx_policy import OnnxPolicy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pbrl.Run:
    place = tmp_path_factory.mktemp("trust")
    log = write_log(place / "pendulum.npz")
    settings: dict[str, Any] = {**SMALL, "steps": 20, "checkpoint_every": 10, "keep_every": 10}
    return pbrl.train(log, run_dir=place / "run", eval=False, quiet=True, **settings)


def test_ope_ranks_milestones_and_writes_what_it_found(
    run: pbrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ope", str(run.path), "--milestones", "--steps", "60", "--ensemble-size", "4"]
    words += ["--hidden", "8", "--threads", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "behaviour" in printed
    assert "bootstrap samples" in printed
    found = json.loads((tmp_path / "ope.json").read_text())
    assert set(found["policies"]) == {"run@10", "run@20"}
    assert found["data_fingerprint"] == run.info["data"]["fingerprint"]
    # 20 rewards of 1 an episode, discounted by the run's own gamma; every second one was cut, and
    # goes on to earn at most 1 for ever.
    gamma = run.config.settings.gamma  # type: ignore[attr-defined]
    logged, most = (1 - gamma**20) / (1 - gamma), 1 / (1 - gamma)
    assert logged < found["behaviour"]["value"] < (logged + most) / 2
    assert "still to come" in found["behaviour"]["notes"][0]
    assert sum(found["ranking"]["best"]) == pytest.approx(1)
    assert (tmp_path / "ope.png").stat().st_size > 1000


def test_ope_sets_methods_beside_each_other_and_measures_them(
    run: pbrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps({"run@10": 30.0, "run@20": 40.0}))
    words = ["ope", str(run.path), "--milestones", "--steps", "60", "--ensemble-size", "3"]
    words += ["--hidden", "8", "--threads", "1", "--out", str(tmp_path), "--returns", str(truth)]
    assert main([*words, "--methods", "fqe,wis,pdis,dr,model"]) == 0
    printed = capsys.readouterr().out
    assert "regret@1" in printed
    found = json.loads((tmp_path / "ope.json").read_text())
    assert set(found["opinions"]["run@10"]) == {"fqe", "wis", "pdis", "dr", "model"}
    for opinion in found["opinions"]["run@20"].values():
        assert opinion["difference"] == pytest.approx(opinion["value"] - opinion["baseline"])
    assert set(found["accuracy"]["wis"]) == {"regret", "error", "rank_correlation"}
    truth.write_text(json.dumps({"run@10": 30.0}))
    assert main(words) == 2
    assert "no value for run@20" in capsys.readouterr().err


def test_export_writes_a_file_that_decides_as_the_run_does(
    run: pbrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run.path), str(tmp_path / "policy.onnx")]) == 0
    assert "inside" in capsys.readouterr().out
    policy, observation = OnnxPolicy(tmp_path / "policy.onnx"), np.zeros(4, np.float32)
    decision, reading = policy.decide(observation), run.agent().guard(observation)
    np.testing.assert_allclose(decision.action, reading.action, atol=1e-5)
    np.testing.assert_allclose(decision.score, reading.score, atol=1e-2)
    assert policy.metadata["data_fingerprint"] == run.info["data"]["fingerprint"]
    words = ["export", str(run.path), str(tmp_path / "old.onnx"), "--step", "10", "--no-guard"]
    assert main(words) == 0
    assert not OnnxPolicy(tmp_path / "old.onnx").guarded


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["ope", "nowhere"], "holds no pbrl run"),
        (["ope", "RUN@7", "--steps", "20"], "no checkpoint at step 7"),
        (["ope", "RUN@x"], "after @"),
        (["ope", "RUN", "--dataset", "demo", "--steps", "20"], "dimensions"),
        (["ope", "RUN", "--level", "2"], "level"),
        (["ope", "RUN", "--methods", "fqe,wiss"], "Did you mean 'wis'"),
        (["export", "nowhere", "x.onnx"], "holds no pbrl run"),
        (["export", "RUN", "x.onnx", "--step", "7"], "no checkpoint at step 7"),
        (["finetune", "RUN"], "--env-id"),
    ],
)
def test_mistakes_get_one_sentence(
    run: pbrl.Run, words: list[str], piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("RUN", str(run.path)) for word in words]) == 2
    error = capsys.readouterr().err
    assert piece in error
    assert "Traceback" not in error
