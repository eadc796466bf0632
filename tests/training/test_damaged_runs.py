"""Runs that somebody damaged, edited or mixed up: a sentence, or the checkpoint before is used."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pendulum_log import ENV, SMALL, write_log
from safetensors.torch import load_file, save_file
from torch import Tensor

import pbrl
from pbrl.cli.main import main

Words = list[str | Path]
LAST = "checkpoints/step_000000030"


def train(log: Path, run_dir: Path, **changes: Any) -> Path:
    settings = SMALL | {"env_id": ENV, "eval": False, "steps": 30, "checkpoint_every": 10} | changes
    if settings.get("algorithm") == "td3bc":
        settings = {k: v for k, v in settings.items() if k not in ("ensemble_size", "n_ood")}
    return pbrl.train(log, run_dir=run_dir, quiet=True, **settings).path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "pendulum.npz")


@pytest.fixture(scope="module")
def whole(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(log, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def resume(log: Path, run: Path) -> list[dict[str, Any]]:
    """Records of the run, gone on with for ten steps more."""
    return train_more(log, run).metrics()


def train_more(log: Path, run: Path) -> pbrl.Run:
    settings = SMALL | {"env_id": ENV, "eval": False, "steps": 40, "checkpoint_every": 10}
    return pbrl.train(log, run_dir=run, resume=True, quiet=True, **settings)


def change(run: Path, name: str, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Edits a file of the last checkpoint and its checksum with it."""
    file = run / LAST / name
    save_file(edit(load_file(file)), file)
    manifest = json.loads((run / LAST / "checkpoint.json").read_text())
    manifest["sha256"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
    (run / LAST / "checkpoint.json").write_text(json.dumps(manifest))


OTHERS: dict[str, dict[str, Any]] = {
    "algorithm": {"algorithm": "td3bc"},
    "size": {"hidden": (8, 8)},
    "seed": {"seed": 1},
    "data": {"other_log": True},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_checkpoint_of_another_run(
    log: Path, run: Path, tmp_path: Path, kind: str, whole: Path
) -> None:
    changes = dict(OTHERS[kind])
    data = write_log(tmp_path / "o.npz", seed=5) if changes.pop("other_log", False) else log
    other = train(data, tmp_path / "other", **changes)
    shutil.rmtree(run / LAST)
    shutil.copytree(other / LAST, run / LAST)
    before = Path(shutil.copytree(whole, tmp_path / "before"))
    shutil.rmtree(before / LAST)
    # As if it were not there: the same weights from the checkpoint before it.
    ours, theirs = train_more(log, run).agent(), train_more(log, before).agent()
    look = torch.zeros(3, 4).numpy()
    assert (ours.act(look) == theirs.act(look)).all()
    for place in sorted((run / "checkpoints").iterdir()):
        shutil.rmtree(place)
        shutil.copytree(other / LAST, place)
        manifest = json.loads((place / "checkpoint.json").read_text())
        manifest["step"] = int(place.name.removeprefix("step_"))
        (place / "checkpoint.json").write_text(json.dumps(manifest))
    with pytest.raises(pbrl.PbrlError, match=r"damaged or another run's.*(not of|not fit)"):
        train_more(log, run)
    with pytest.raises(pbrl.PbrlError, match=r"damaged or another run's"):
        pbrl.load_agent(run)


def without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {**state, name: value}


def with_nan(state: dict[str, Tensor]) -> dict[str, Tensor]:
    name = next(key for key in state if "actor" in key or "policy" in key)
    return {**state, name: state[name] * float("nan")}


TENSORS = {
    "no counter": ("training", without("extra/step")),
    "no moment": ("training", without("optimizers/actor/0/exp_avg")),
    "a moment of another shape": ("training", with_("optimizers/actor/0/exp_avg", torch.ones(2))),
    "no generator": ("training", without("rng/updates")),
    "no sampler": ("training", without("rng/sampler")),
    "a small generator": ("training", with_("rng/updates", torch.zeros(7, dtype=torch.uint8))),
    "a small sampler": ("training", with_("rng/sampler", torch.zeros(7, dtype=torch.uint8))),
    "a sampler of floats": ("training", with_("rng/sampler", torch.zeros(7))),
    "no entropy weight": ("networks", without("networks/alpha/log_alpha")),
    "another network": ("networks", with_("networks/x/weight", torch.zeros(7))),
    "NaN": ("networks", with_nan),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit(log: Path, run: Path, case: str) -> None:
    part, edit = TENSORS[case]
    change(run, f"{part}.safetensors", edit)
    records = resume(log, run)
    assert [r["step"] for r in records][-1] == 40


def test_weights_that_are_nan_are_not_evaluated(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step_000000020")
    change(run, "networks.safetensors", with_nan)
    with pytest.raises(pbrl.PbrlError, match="not finite"):
        pbrl.load_agent(run)


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", 31), ("step", "x"), ("data_fingerprint", "0"), ("seed", 9), ("preprocessing", "0"),
     ("format_version", None), ("sha256", [])],
)  # fmt: skip
def test_manifests_that_say_otherwise(log: Path, run: Path, name: str, value: object) -> None:
    shutil.rmtree(run / "checkpoints" / "step_000000020")
    file = run / LAST / "checkpoint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(pbrl.PbrlError, match="damaged or another run's"):
        pbrl.load_agent(run)
    with pytest.raises(pbrl.PbrlError, match="damaged or another run's"):
        train_more(log, run)


def test_a_preprocessing_that_was_changed_is_not_followed(run: Path) -> None:
    file = run / "config.json"
    info = json.loads(file.read_text())
    info["preprocessing"]["observation_scale"] = [2.0, 1.0, 1.0, 1.0]
    file.write_text(json.dumps(info))
    with pytest.raises(pbrl.PbrlError, match="preprocessing is another"):
        pbrl.load_agent(run)


GONE = object()
ODD: list[tuple[str, object]] = [
    *((name, GONE) for name in ("config", "data", "schedule_steps", "threads", "preprocessing")),
    *((f"data.{name}", GONE) for name in ("name", "fingerprint", "observation_dim", "env_id")),
    ("config", []), ("data", 5), ("schedule_steps", "x"), ("threads", -1), ("threads", None),
    ("preprocessing", []), ("preprocessing.observation_scale", [1.0]),
    ("preprocessing.observation_shift", ["x"] * 4), ("preprocessing.reward_scale", float("nan")),
    ("data.env_id", {}), ("data.observation_dim", 3), ("data.reference_scores", [1]),
    ("data.behaviour_return_mean", "x"), ("config.settings", 5), ("config.algorithm", 5),
    ("config.algorithm", "none"), ("config.seed", "x"), ("config.settings.hidden", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), ODD)
def test_config_json(
    run: Path, log: Path, path: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "config.json"
    info = json.loads(file.read_text())
    *above, name = path.split(".")
    place = info
    for key in above:
        place = place[key]
    if value is GONE:
        del place[name]
    else:
        place[name] = value
    file.write_text(json.dumps(info))
    evaluate: Words = ["evaluate", run, "--episodes", "1"]
    again: Words = ["train", "--resume", "--run-dir", run, "--dataset", log]
    report: Words = ["report", run, "--out", run / "r.html"]
    for words in (evaluate, again, report, ["probe", run]):
        assert main([str(word) for word in words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("pbrl: ")
        assert "Traceback" not in said


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", "{}", "\xff", "[" * 9999, '{"steps": "x", "algorithm": 5}']
)
def test_a_torn_summary_is_as_none_and_comes_again(log: Path, run: Path, text: str) -> None:
    (run / "summary.json").write_bytes(text.encode("latin1"))
    assert pbrl.Run.open(run).summary is None
    assert main(["report", str(run), "--out", str(run / "r.html")]) == 0
    summary = train_more(log, run).summary
    assert summary is not None
    assert summary["steps"] == 40


@pytest.mark.parametrize("line", [b"\xff\xfe", b"5", b"{}", b"[" * 9999, b'{"step": "x"}'])
def test_metrics_that_are_no_records(
    log: Path, run: Path, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "metrics.jsonl"
    file.write_bytes(line + b"\n" + file.read_bytes())
    assert main(["report", str(run), "--out", str(run / "r.html")]) == 2
    assert "damaged at line 1" in capsys.readouterr().err
