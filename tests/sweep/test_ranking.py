"""Runs of a sweep ordered by what can be shown of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paid_log import paid_by_action

from pbrl.cli.main import main
from pbrl.evaluation.fqe import FQEConfig
from pbrl.sweep.ranking import rank_runs

SPEC = """
datasets: {data}
algorithms: [bc, td3bc]
seeds: 1
settings: {{steps: {steps}, eval: false, hidden: [16], batch_size: 64, hold_out: 0.4}}
"""


def test_a_sweep_ranks_its_runs_without_a_simulator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = paid_by_action(100)
    never = np.zeros(len(log), np.bool_)
    columns: dict[str, Any] = {
        name: value for name, value in log.columns().items() if name != "episode_ends"
    }
    data = tmp_path / "paid.npz"
    np.savez(data, **columns | {"terminals": never, "timeouts": log.episode_ends})
    spec, out = tmp_path / "sweep.yaml", tmp_path / "runs"
    spec.write_text(SPEC.format(data=data, steps=300))
    words = ["sweep", str(spec), "--out", str(out), "--workers", "1"]
    assert main([*words, "--rank-by", "decide", "--rank-steps", "60"]) == 0
    printed = capsys.readouterr().out
    assert "which the run left out" in printed
    ranked = json.loads((out / "ranking.json").read_text())
    assert len(ranked) == 2
    # Two runs share the 5 % of being wrong.
    assert ranked[0]["level"] == pytest.approx(0.975)
    bounds = [run["difference_lower_bound"] or -np.inf for run in ranked]
    assert bounds == sorted(bounds, reverse=True)
    # A dataset's runs are judged by the same episodes, each run once.
    paths = [Path(run["run"]) for run in ranked]
    again = rank_runs([*paths, paths[0]], FQEConfig(steps=60, hidden=(8,), ensemble_size=3))
    assert {each.path for each in again} == set(paths)
    assert {each.decision.episodes for each in again} == {40}
    assert len({each.decision.opinions["fqe"].baseline for each in again}) == 1
