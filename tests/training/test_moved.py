"""Runs from before pbrl-anchored and pbrl-ablations had names go on, or say where to go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pendulum_log import write_log

import pbrl
from pbrl.cli.main import main
from pbrl.training.config import from_json, make_config, to_json
from pbrl.training.moved import ALWAYS_OURS, GONE, moved

TINY: dict[str, Any] = {"hidden": (8,), "policy_hidden": (8,), "batch_size": 16}
RUN: dict[str, Any] = {"eval": False, "quiet": True, "tensorboard": False, "threads": 1}
FAST = {"layer_norm": True, "critic_init": "fan-in", "cloning_unit": "gain"}


def older(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Settings as a run of the old ``pbrl`` stored them: all 45."""
    return GONE | settings | changes


def make_old(run: pbrl.Run, algorithm: str, preset: str, **changes: Any) -> None:
    """Rewrite a run's config as the version before would have written it."""
    file = run.path / "config.json"
    info = json.loads(file.read_text())
    config = info["config"]
    config |= {"algorithm": algorithm, "preset": preset}
    config["settings"] = older(config["settings"], **changes)
    file.write_text(json.dumps(info))
    for manifest in run.checkpoints.glob("*/checkpoint.json"):  # they did not say whose they are
        values = json.loads(manifest.read_text())
        own = {name: values[name] for name in ("format_version", "step", "sha256")}
        manifest.write_text(json.dumps(own))


@pytest.mark.parametrize(
    ("now", "then", "changes"),
    [("pbrl-anchored", "pbrl", FAST), ("pbrl-ablations", "pbrl", {}), ("pbrl", "pbrl", {})],
)
def test_an_old_run_goes_on_with_the_same_bytes(
    now: str, then: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    log = write_log(tmp_path / "log.npz")
    settings: dict[str, Any] = TINY | RUN | {"algorithm": now}
    if now == "pbrl-ablations":
        settings["l2"] = 0.1
    if now == "pbrl-anchored":
        settings["normalize_observations"] = True  # the old preset said so, not the algorithm
    whole = pbrl.train(log, run_dir=tmp_path / "whole", steps=30, checkpoint_every=15, **settings)
    begun = pbrl.train(log, run_dir=tmp_path / "begun", steps=30, checkpoint_every=15, **settings)
    for name in ("step_000000030",):  # as if it had been stopped half way
        for file in (begun.checkpoints / name).iterdir():
            file.unlink()
        (begun.checkpoints / name).rmdir()
    make_old(begun, then, "fast", **changes)
    opened = pbrl.Run.open(begun.path)
    assert opened.config.algorithm == now
    assert opened.agent().algorithm.name == now
    assert main(["train", "--resume", "--quiet", "--run-dir", str(begun.path)]) == 0
    for name in ("networks.safetensors", "training.safetensors"):
        last = Path("step_000000030") / name
        assert (begun.checkpoints / last).read_bytes() == (whole.checkpoints / last).read_bytes()


@pytest.mark.parametrize(
    ("changes", "home"),
    [
        ({"layer_norm": True}, "pbrl-anchored"),
        ({"policy_noise": 0.2, "ood_margin": 1.0}, "pbrl-anchored"),
        ({"std_correction": 1}, "pbrl --authors-code"),
        ({"l2": 0.1, "target_init": "separate"}, "pbrl-ablations and pbrl --authors-code"),
    ],
)
def test_what_has_no_single_home_is_refused_in_one_sentence(
    changes: dict[str, Any], home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.npz")
    run = pbrl.train(log, run_dir=tmp_path / "run", steps=2, **TINY, **RUN)
    make_old(run, "pbrl", "paper", **changes)
    for words in (["train", "--resume"], ["train", "--resume", "--steps", "4"]):
        assert main([*words, "--run-dir", str(run.path)]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert home in said
        assert "train anew" in said
    with pytest.raises(pbrl.PbrlError, match="pbrl no longer has"):
        _ = pbrl.Run.open(run.path).config


def test_priors_go_along() -> None:
    old = to_json(make_config("pbrl-prior", "paper", "x"))
    old["settings"] = older(old["settings"], actor_objective="max")
    config = from_json(old, complete=True)
    assert config.algorithm == "pbrl-ablations"
    assert config.settings.prior_scale == 1.0  # type: ignore[attr-defined]


def test_the_preset_of_bear_that_was_less_than_the_first_release_has_another_name() -> None:
    old = to_json(make_config("bear", "fixed-weight", "x")) | {"preset": "first-release"}
    config = from_json(old, complete=True)
    assert config.preset == "fixed-weight"
    assert config.settings == make_config("bear", "fixed-weight", "x").settings


def test_other_configs_stay_as_they_are() -> None:
    for name in ("pbrl", "pbrl-anchored", "td3bc"):
        config = to_json(make_config(name, "fast", "x"))
        assert moved(config, "config") is config


def test_what_moved_is_no_setting_of_pbrl() -> None:
    pbrls = to_json(make_config("pbrl", "paper", "x"))["settings"]
    anchored = to_json(make_config("pbrl-anchored", "fast", "x"))["settings"]
    ablations = to_json(make_config("pbrl-ablations", "paper", "x"))["settings"]
    assert not pbrls.keys() & GONE.keys()
    assert not anchored.keys() & ALWAYS_OURS.keys()
    assert GONE.keys() - ALWAYS_OURS.keys() - anchored.keys() - ablations.keys() == {
        "ood_next_states", "std_correction", "prior_init", "target_init",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "home"), [("policy_noise", "pbrl-anchored"), ("l2", "pbrl-ablations")]
)
def test_a_setting_of_another_algorithm_is_named_with_its_home(setting: str, home: str) -> None:
    with pytest.raises(
        pbrl.PbrlError, match=f"pbrl has no setting '{setting}'; it is one of .*{home}"
    ):
        make_config("pbrl", "paper", "x", **{setting: 0.5})
