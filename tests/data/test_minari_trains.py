"""The whole of Minari's door-human set: trained on, and evaluated in its environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pbrl


def test_door_human_trains_and_evaluates(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium_robotics")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(real_data / "minari"))
    run = pbrl.train(
        "D4RL/door/human-v2",
        preset="demo",
        steps=200,
        eval_every=200,
        eval_episodes=2,
        run_dir=tmp_path / "run",
        tensorboard=False,
        quiet=True,
    )
    assert run.env_id == "AdroitHandDoor-v1"
    assert run.reference_scores == (-45.80706024169922, 2940.578369140625)
    evaluations = [record for record in run.metrics() if record["kind"] == "eval"]
    assert evaluations
    assert evaluations[-1]["step"] == 200
    assert np.isfinite(evaluations[-1]["return_mean"])
    agent = pbrl.load_agent(run.path)
    assert agent.act(np.zeros(39, np.float32)).shape == (28,)
