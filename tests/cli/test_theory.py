"""``pbrl theory`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pbrl.cli.theory import main
from pbrl.errors import PbrlError
from pbrl.theory import experiments
from pbrl.theory.experiments import Claim, Experiment, lemma2


def test_one_experiment_writes_its_picture_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "results"
    assert main(["lemma2", "--seed", "3", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"lemma2.png", "results.json"}
    assert (out / "lemma2.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["seed"] == 3
    (experiment,) = results["experiments"]
    assert experiment["name"] == "lemma2"
    assert [set(claim) for claim in experiment["claims"]] == [
        {"claim", "prediction", "measurement", "verdict", "as_predicted"}
    ] * 3
    printed = capsys.readouterr().out
    for word in ("claim", "prediction", "measurement", "verdict", "3 of 3 verdicts as predicted"):
        assert word in printed


def test_all_runs_every_experiment_and_a_surprise_is_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    genuine = lemma2.run(0)

    def surprising(seed: int) -> Experiment:
        claims = (Claim("x", "p", "m", holds=False), *genuine.claims)
        return Experiment("lemma2", genuine.title, claims, genuine.series)

    pair = (lambda seed: genuine, lemma2.draw)
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"lemma1": pair, "lemma2": pair})
    assert main(["--out", str(tmp_path)]) == 0
    assert (tmp_path / "lemma1.png").exists()
    assert (tmp_path / "lemma2.png").exists()
    monkeypatch.setattr(
        experiments, "EXPERIMENTS", {"lemma1": pair, "lemma2": (surprising, lemma2.draw)}
    )
    assert main(["all", "--out", str(tmp_path)]) == 1
    assert "6 of 7 verdicts as predicted" in capsys.readouterr().out


def test_bad_input_is_said_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PbrlError, match="choose another --out"):
        main(["lemma2", "--out", str(file)])
    with pytest.raises(PbrlError, match=r"--seed must lie in \[0, 2\^31\), got -1"):
        main(["lemma2", "--seed", "-1", "--out", str(tmp_path)])
    with pytest.raises(PbrlError, match=r"takes one of .*lemma1.* not 'lemma3'"):
        main(["lemma3"])
