"""The card beside every finished run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pendulum_log import ENV, SMALL, write_log

import pbrl
from pbrl.errors import PbrlError
from pbrl.training.model_card import write_model_card


def trained(tmp_path: Path, **more: Any) -> pbrl.Run:
    log = write_log(tmp_path / "pendulum.npz", rewards=np.full(400, 100, np.float32))
    settings: dict[str, Any] = {**SMALL, "steps": 5, "quiet": True, "eval_episodes": 1, **more}
    return pbrl.train(log, run_dir=tmp_path / "run", **settings)


def section(card: str, title: str) -> str:
    return card.split(f"## {title}\n")[1].split("\n## ")[0]


def test_card_tells_data_settings_scores_and_limits(tmp_path: Path) -> None:
    run = trained(tmp_path, env_id=ENV, beta_in=0.037)
    card = (run.path / "MODEL_CARD.md").read_text()
    assert card.startswith("---\nlibrary_name: pbrl\n")
    assert run.info["data"]["fingerprint"] in section(card, "Training data")
    assert "400" in section(card, "Training data")
    assert "| Actions | `action_0` |" in section(card, "Training data")
    assert "| beta_in | `0.037` |" in section(card, "Settings")
    assert run.summary is not None
    last = run.summary["last_evaluation"]
    results = section(card, "Results")
    assert f"{last['return_mean']:.1f} ± {last['return_std']:.1f}" in results
    assert "20 episodes" in results
    profile = section(card, "Uncertainty profile")
    assert f"{run.summary['last_training']['u_random']:.4g}" in profile
    # The log's episodes earn 2,000; an untrained policy falls at once, and the card says so.
    assert "below that of the logged behaviour (2000.0)" in section(card, "Limits")
    assert str(tmp_path) not in card


EVIL = "</td><script>alert(1)</script> [click](http://x) `code`\n\n# Head\n\x1b[31mred"


def test_words_of_a_file_are_words_in_the_card(tmp_path: Path) -> None:
    log = write_log(tmp_path / "[x](y)<b>.npz")
    with np.load(log) as arrays:
        known = dict(arrays)
    metadata = {"env_id": f"{EVIL}:x-v0", "recipe": {"provenance": f"regenerated {EVIL}"}}
    names = {"action_names": ["`<i>`"], "score_source": EVIL, "reference_scores": [0, 1]}
    np.savez(log, **known, more=np.zeros(2), metadata=np.array(json.dumps(metadata | names)))
    settings: dict[str, Any] = {**SMALL, "steps": 5, "quiet": True, "eval_episodes": 1}
    run = pbrl.train(log, run_dir=tmp_path / "run", env_id=ENV, **settings)
    card = (run.path / "MODEL_CARD.md").read_text()
    assert "alert(1)" in section(card, "Training data")
    assert "\x1b" not in card
    assert "\n# Head" not in card
    # HTML stands between backticks alone, where Markdown shows it as it is.
    body = re.sub(r"(?<!\\)`[^`\n]*`", "", card.split("\n---\n", 1)[1])
    assert "<" not in body
    assert "](" not in body.replace("\\]", "")
    assert "| Actions | `'<i>'` |" in section(card, "Training data")
    for note in run.info["data"]["notes"]:
        assert note.isprintable()


def test_card_without_environment_claims_no_score(tmp_path: Path) -> None:
    run = trained(tmp_path, eval=False)
    card = (run.path / "MODEL_CARD.md").read_text()
    assert "Never played" in section(card, "Results")
    assert "unknown" in section(card, "Limits")
    assert "model-index" not in card


def test_card_of_an_algorithm_without_critics(tmp_path: Path) -> None:
    log = write_log(tmp_path / "pendulum.npz")
    run = pbrl.train(
        log, algorithm="bc", hidden=(8,), batch_size=32, steps=3, eval=False, quiet=True,
        threads=1, tensorboard=False, run_dir=tmp_path / "bc",
    )  # fmt: skip
    card = (run.path / "MODEL_CARD.md").read_text()
    assert "no critics" in section(card, "Intended use")
    assert "no critics" in section(card, "Uncertainty profile")


def test_card_can_be_written_again_but_not_too_early(tmp_path: Path) -> None:
    run = trained(tmp_path, eval=False)
    path = run.path / "MODEL_CARD.md"
    before = path.read_text()
    path.unlink()
    assert write_model_card(run.path).read_text() == before
    (run.path / "summary.json").unlink()
    with pytest.raises(PbrlError, match="not finished"):
        write_model_card(run.path)
