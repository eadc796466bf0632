"""Settings say what they are for; resume, sweeps, reports and reductions follow from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest

import pbrl
from pbrl.reports.gather import system_labels
from pbrl.sweep.jobs import content_key
from pbrl.training.config import TrainConfig, bound_settings, make_config, to_json
from pbrl.training.purposes import PLACE, Purpose, names_of, purposes

CHANGED: dict[str, Any] = {
    "device": "cuda", "threads": 2, "run_dir": "elsewhere", "checkpoint_every": 7,
    "tensorboard": False, "wandb": "p", "tune_allocator": False, "clip_actions": True,
    "preset": "fast",
    "dataset": "demo-low", "eval": False, "eval_every": 7, "eval_episodes": 3, "log_every": 7,
    "keep_every": 7, "env_id": "Hopper-v5", "steps": 70, "seed": 4, "normalize_observations": True,
    "normalize_rewards": "return-range", "next_observations": "shift", "action_low": (-1.0,),
    "action_high": (1.0,), "columns": ("reward=r",), "algorithm": "pbrl-prior",
    "missing": "split", "hold_out": 0.3,
}  # fmt: skip


def test_every_setting_says_what_it_is_for() -> None:
    fields = [field.name for field in dataclasses.fields(TrainConfig)]
    assert list(purposes(TrainConfig)) == fields
    assert set(CHANGED) | {"settings"} == set(fields), "a new setting needs a value here"

    @dataclass
    class Silent:
        spoken: Annotated[int, PLACE] = 0
        silent: int = 0

    with pytest.raises(pbrl.PbrlError, match="silent of Silent"):
        purposes(Silent)


@pytest.mark.parametrize("name", CHANGED)
def test_a_sweep_knows_a_run_by_all_but_its_place(name: str) -> None:
    config = make_config("pbrl", "demo", "demo", steps=50).resolved()
    other = replace(config, **{name: CHANGED[name]})
    same = content_key(config, "data") == content_key(other, "data")
    assert same == (purposes(TrainConfig)[name].kind == "place")


@pytest.mark.parametrize("name", CHANGED)
def test_resume_allows_another_value_of_what_is_changeable(name: str) -> None:
    config = make_config("pbrl", "demo", "demo", steps=50).resolved()
    other = replace(config, **{name: CHANGED[name]})
    same = bound_settings(to_json(config)) == bound_settings(to_json(other))
    assert same == purposes(TrainConfig)[name].changeable


@pytest.mark.parametrize(
    "name", [n for n in CHANGED if n not in ("algorithm", "run_dir", "dataset")]
)
def test_a_report_names_systems_by_what_decides_their_result(name: str) -> None:
    config = make_config("pbrl", "demo", "demo", steps=50).resolved()
    other = replace(config, **{name: CHANGED[name]})
    runs = [pbrl.Run(Path("run"), {"config": to_json(c)}) for c in (config, config, other)]
    expected = purposes(TrainConfig)[name].kind == "result" and name != "seed"
    assert ("(" in system_labels(runs)[2]) == expected


def test_names_of_kinds_cover_all_settings() -> None:
    kinds = {purpose.kind for purpose in purposes(TrainConfig).values()}
    assert kinds == {"result", "score", "record", "place"}
    assert names_of(TrainConfig, *kinds) == list(purposes(TrainConfig))
    assert Purpose("place", changeable=True) == PLACE
