"""What a reader meets on the way: pages, names and sentences that hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pendulum_log import write_log

import pbrl

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pbrl.Run]:
    place = tmp_path_factory.mktemp("small")
    log = write_log(place / "log.npz")
    before = Path.cwd()
    os.chdir(place)
    yield pbrl.train(
        log, algorithm="pbrl", eval=False, steps=4, batch_size=8, hidden=(8,), policy_hidden=(8,),
        quiet=True, tensorboard=False, threads=1, run_dir="runs/it's mine",
    )  # fmt: skip
    os.chdir(before)


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = [line.split(".")[-1] for line in page.splitlines() if line.startswith(":::")]
    assert set(pbrl.__all__) <= set(listed)
    others = {"OnnxPolicy", "fitted_q_evaluation", "EpisodeRecorder", "Algorithm"}
    assert others <= set(listed)


def test_a_run_is_told_in_a_line(run: pbrl.Run) -> None:
    assert repr(run) == """Run("runs/it's mine": pbrl, 4 steps)"""


def test_the_model_cards_code_runs(run: pbrl.Run) -> None:
    card = (run.path / "MODEL_CARD.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_milestones_that_are_never_written_are_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.npz")
    pbrl.train(
        log, algorithm="bc", eval=False, steps=6, batch_size=8, hidden=(8,), threads=1,
        tensorboard=False, keep_every=2, checkpoint_every=3, run_dir=tmp_path / "run",
    )  # fmt: skip
    said = " ".join(capsys.readouterr().err.split())
    assert "--keep-every 2 keeps only what is written, every 3 steps: multiples of 6" in said


def test_rewards_that_are_all_negative_are_not_a_percentage(tmp_path: Path) -> None:
    from pbrl.data.loading import open_source
    from pbrl.data.summary import summarize

    log = write_log(tmp_path / "log.npz", rewards=-np.ones(400))
    assert summarize(open_source(log)).findings()[0].startswith("All rewards are negative (mean -1")
