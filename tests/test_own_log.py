"""A plant log goes from CSV to decisions by the commands of docs/own-log.md; no simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plant_log import ACTION, OBSERVATIONS, PlantLog, write_plant_log

PAGE = Path(__file__).parent.parent / "docs" / "own-log.md"
FENCE = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# As the run has them: the prefix first, then the others.
NAMES = [*(name for name in OBSERVATIONS if name.startswith("reactor_")), "jacket_temp_C"]
# An hour is too long for a test, and so is a judgement of twenty thousand steps.
SHORTER = {
    "--hours 1": "--steps 120 --hidden 16 16 --policy-hidden 16 16 --batch-size 64 --threads 1",
    "pbrl ope runs/plant": "pbrl ope runs/plant --steps 200 --ensemble-size 3 --threads 1",
    "pbrl decide runs/plant": "pbrl decide runs/plant --steps 200 --ensemble-size 3 --threads 1",
}
# What the machine that acts does not have.
WITHOUT_TORCH = "import sys; sys.modules.update(torch=None, gymnasium=None, h5py=None)\n"


def follow(kind: str, code: str, place: Path) -> str:
    """What a block of the page prints."""
    for words, shorter in SHORTER.items():
        code = code.replace(words, shorter)
    here = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
    }
    code = WITHOUT_TORCH + code if kind == "python" else code
    command = [sys.executable, "-c", code] if kind == "python" else ["bash", "-ec", code]
    done = subprocess.run(
        command, cwd=place, env=here, capture_output=True, text=True, timeout=600, check=False
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return said


@pytest.fixture
def plant(tmp_path: Path) -> PlantLog:
    return write_plant_log(tmp_path / "plant.csv", batches=40, blanks=40)


@pytest.mark.slow
def test_from_csv_to_decisions(plant: PlantLog, tmp_path: Path) -> None:
    blocks = [(m[1], m[2]) for m in FENCE.finditer(PAGE.read_text())]
    ask, look, train, ope, decide, export, act = blocks

    said = follow(*ask, tmp_path)
    assert "observations, actions, rewards, terminals" in said
    proposed = re.search(r"--columns (observations=\S+ .*episode=batch)", said)
    assert proposed is not None
    assert "actions=valve_pct rewards=profit_eur terminals=tripped" in proposed[1]

    said = follow(*look, tmp_path)
    rows_with_gaps = len(set(plant.blanks[:, 0]))
    assert f"40 cells hold no number, in {rows_with_gaps} of {plant.rows:,} rows" in said
    assert "Observations that never change: reactor_pressure_bar" in said
    assert "100.0% of the rewards are negative" in said or "rewards are negative" in said
    assert all(name in said for name in (*NAMES, ACTION))

    said = follow(*train, tmp_path)
    run = tmp_path / "runs" / "plant"
    assert "Your own data, no GPU" in said or "pbrl-anchored" in said
    assert "none reaches across a gap" in said
    assert "pbrl ope runs/plant" in said
    config = json.loads((run / "config.json").read_text())
    assert config["config"]["algorithm"] == "pbrl-anchored"
    assert config["data"]["observation_names"] == NAMES
    assert config["data"]["action_names"] == [ACTION]
    assert config["preprocessing"]["action_high"] == [40]
    # Of the batches that were learned from: between the worst and the best that were logged.
    mean = config["data"]["behaviour_return_mean"]
    assert abs(mean - plant.returns.mean()) < 0.5 * plant.returns.std()
    card = (run / "MODEL_CARD.md").read_text()
    assert all(name in card for name in (*NAMES, ACTION))
    assert not list(run.glob("evaluation*"))

    said = follow(*ope, tmp_path)
    estimate = json.loads((run / "ope.json").read_text())
    assert estimate["behaviour"]["value"] < 0
    assert np.isfinite(next(iter(estimate["policies"].values()))["value"])

    said = follow(*decide, tmp_path)
    assert json.loads((run / "decision.json").read_text())
    assert "deploy" in said.lower() or "not shown" in said.lower()

    said = follow(*export, tmp_path)
    assert (tmp_path / "plant.onnx").stat().st_size > 1000

    said = follow(*act, tmp_path)
    found = re.search(r"valve: \[?([-\d.]+)\]? alarm: (True|False)", said)
    assert found is not None, said
    assert 0 <= float(found[1]) <= 40
