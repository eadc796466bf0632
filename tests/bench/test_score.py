"""``pbrl bench --score``: CPU minutes until a policy is as good as the yardstick's last one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pbrl.bench.score import TimedCurve, compare_scores
from pbrl.cli.main import main
from pbrl.errors import PbrlError

CURVE = TimedCurve("td3bc", 300, [1.0, 2.0, 3.0], [10.0, 45.0, 40.0])


@pytest.mark.parametrize(("score", "minutes"), [(5.0, 1.0), (10.0, 1.0), (36.0, 2.0), (45.0, 2.0)])
def test_the_first_evaluation_of_at_least_the_score_counts(score: float, minutes: float) -> None:
    assert CURVE.reached(score) == minutes


def test_a_score_never_reached_has_no_minutes() -> None:
    assert CURVE.reached(45.1) is None


def test_both_systems_train_for_the_same_cpu_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--score", "--minutes", "0.02", "--json", "score.json"]) == 0
    [found] = json.loads((tmp_path / "score.json").read_text())
    yardstick, ours = found["systems"]
    assert [yardstick["system"], ours["system"]] == ["td3bc", "pbrl-anchored"]
    assert found["score"] == pytest.approx(0.9 * yardstick["scores"][-1])
    for system in (yardstick, ours):
        assert len(system["scores"]) == len(system["minutes"]) == 20
        assert np.all(np.diff(system["minutes"]) > 0)
        reached = system["minutes_to_score"]
        first = [m for m, s in zip(system["minutes"], system["scores"], strict=True)
                 if s >= found["score"]][:1]  # fmt: skip
        assert [reached] == (first or [None])
    assert yardstick["minutes_to_score"] is not None, "its own last evaluation reaches it"
    assert yardstick["steps"] > ours["steps"], "a step of TD3+BC is cheaper"
    assert "CPU minutes to it" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["score.json"]


def test_data_without_an_environment_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "log.npz",
        observations=rng.normal(size=(600, 3)),
        actions=rng.uniform(-1, 1, (600, 2)),
        rewards=rng.uniform(size=600),
        terminals=np.arange(600) % 30 == 29,
    )
    with pytest.raises(PbrlError, match="no environment that could tell a score"):
        compare_scores(str(tmp_path / "log.npz"), 0.01)


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan")])
def test_no_time_is_refused(minutes: float) -> None:
    with pytest.raises(PbrlError, match="minutes"):
        compare_scores("demo", minutes)
