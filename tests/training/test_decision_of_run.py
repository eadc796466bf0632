"""Held-out episodes of a run, and the run judged by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pendulum_log import SMALL, write_log

import pbrl
from pbrl.cli.main import main
from pbrl.errors import PbrlError
from pbrl.training.decision_of_run import judges_of_run

SETTINGS: dict[str, Any] = {**SMALL, "steps": 20, "eval": False, "quiet": True}
QUICK = ["--steps", "60", "--ensemble-size", "3", "--hidden", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("decide") / "pendulum.npz", rows=1600)


@pytest.fixture(scope="module")
def run(log: Path) -> pbrl.Run:
    return pbrl.train(log, run_dir=log.parent / "run", hold_out=0.3, **SETTINGS)


def test_held_out_episodes_are_recorded_and_not_learned_from(run: pbrl.Run, log: Path) -> None:
    whole = pbrl.load_dataset(log)
    data = run.info["data"]
    assert len(data["held_out_episodes"]) == 24  # of 80
    assert data["transitions"] == 56 * 20
    judges = judges_of_run(run)
    assert judges.unseen
    first = list(whole.episodes())[data["held_out_episodes"][0]]
    np.testing.assert_array_equal(judges.episodes.observations[:20], whole.observations[first])
    # Another seed and other settings leave out the same episodes, also of loaded data.
    other = pbrl.train(
        whole, run_dir=log.parent / "other", hold_out=0.3, seed=3, algorithm="bc", steps=5,
        eval=False, quiet=True, threads=1, batch_size=32, tensorboard=False,
    )  # fmt: skip
    assert other.info["data"]["held_out_episodes"] == data["held_out_episodes"]
    assert other.info["data"]["fingerprint"] == data["fingerprint"]
    # The guard is fitted on what the run learned from.
    assert run.agent().require_guard().about["data_fingerprint"] == data["fingerprint"]


def test_a_run_that_has_seen_its_judges_is_told_so(log: Path) -> None:
    seen = pbrl.train(log, run_dir=log.parent / "seen", **SETTINGS)
    judges = judges_of_run(seen, share=0.25)
    assert not judges.unseen
    assert sum(1 for _ in judges.episodes.episodes()) == 20
    new = write_log(log.parent / "new.npz", rows=400, seed=9)
    judges = judges_of_run(seen, str(new))
    assert judges.unseen
    assert len(judges.episodes) == 400
    with pytest.raises(PbrlError, match="dimensions"):
        judges_of_run(seen, "demo")


def test_decide_prints_a_page_and_its_exit_code_is_the_answer(
    run: pbrl.Run, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decide", str(run.path), *QUICK, "--out", str(tmp_path)]) == 4
    printed = " ".join(capsys.readouterr().out.split())
    assert "NOT SHOWN TO BE BETTER" in printed
    assert "24 of 80 episodes, which the run left out" in printed
    assert "the run's guard warns of" in printed
    found = json.loads((tmp_path / "decision.json").read_text())
    assert set(found["opinions"]) == {"fqe", "wis", "pdis", "dr", "model"}
    assert found["deploy"] is False
    page = (tmp_path / "decision.html").read_text()
    assert "Why" in page
    assert "<svg" in page
    # Compared with itself there is no difference to show.
    words = ["decide", str(run.path), *QUICK, "--out", str(tmp_path)]
    assert main([*words, "--baseline", str(run.path)]) == 4
    found = json.loads((tmp_path / "decision.json").read_text())
    assert found["opinions"]["fqe"]["difference"] == 0


def test_a_decision_can_be_yes(
    run: pbrl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pbrl.evaluation.decision as decision

    monkeypatch.setattr(decision, "_too_low", lambda *_: [])
    monkeypatch.setattr(decision, "_contradictions", lambda *_: [])
    monkeypatch.setattr(decision, "overlap_troubles", lambda *_: [])
    assert main(["decide", str(run.path), *QUICK, "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "decision.json").read_text())["verdict"] == "deploy"


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["decide", "nowhere"], "holds no pbrl run"),
        (["decide", "RUN", "--level", "1.5"], "level"),
        (["decide", "RUN", "--dataset", "demo"], "dimensions"),
        (["decide", "RUN", "--baseline", "nowhere"], "holds no pbrl run"),
        (["decide", "RUN", "--dataset", "ONE"], "have 1 of them"),
        (["decide", "RUN", "--dataset", "SAME"], "always did the same"),
        (["train", "--hold-out", "1.0", "--dataset", "LOG"], "hold_out"),
        (["train", "--hold-out", "0.5", "--dataset", "ONE", "--no-eval"], "at least two"),
    ],
)
def test_mistakes_get_one_sentence(
    run: pbrl.Run, log: Path, words: list[str], piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, same = log.parent / "one.npz", log.parent / "same.npz"
    if not one.exists():
        never = np.zeros(60, np.bool_)
        write_log(one, rows=60, terminals=never, timeouts=np.arange(60) == 59)
        write_log(same, rows=400, actions=np.full((400, 1), 0.5, np.float32))
    places = {"RUN": run.path, "LOG": log, "ONE": one, "SAME": same}
    arguments = [str(places.get(word, word)) for word in words]
    if words[0] == "decide":
        arguments += QUICK
    else:
        arguments += ["--run-dir", str(log.parent / "never"), "--steps", "5"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert piece in error
    assert "Traceback" not in error
