"""Sweeps: known by content, resumed, retried, and the same bits however they were disturbed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from pbrl.errors import PbrlError
from pbrl.sweep.cost import estimate, progress_of
from pbrl.sweep.jobs import Job, content_key, expand, find_runs, make_jobs, read_spec
from pbrl.sweep.runner import FAILURE, WORKER, Resources, run_sweep
from pbrl.sweep.view import SweepView, read_progress
from pbrl.training.checkpoint import list_checkpoints
from pbrl.training.loop import Interrupted
from pbrl.training.metrics import CLOCK_FIELDS, read_metrics
from pbrl.training.run import CONFIG, SUMMARY

HERE = Resources(workers=1)


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data.npz", seed=0)


def write_data(path: Path, seed: int, rows: int = 300) -> Path:
    rng = np.random.default_rng(seed)
    ends = np.zeros(rows, bool)
    ends[29::30] = True
    np.savez(
        path,
        observations=rng.standard_normal((rows, 3)).astype(np.float32),
        actions=rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rewards=rng.uniform(0, 1, rows).astype(np.float32),
        next_observations=rng.standard_normal((rows, 3)).astype(np.float32),
        terminals=np.zeros(rows, bool),
        timeouts=ends,
    )
    return path


def spec(data: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "steps": 60,
        "eval": False,
        "ensemble_size": 2,
        "hidden": [8],
        "policy_hidden": [8],
        "batch_size": 16,
        "n_ood": 1,
        "checkpoint_every": 20,
        "log_every": 10,
        "tensorboard": False,
        "action_low": [-1],
        "action_high": [1],
    }
    settings |= changes.pop("settings", {})
    return {"datasets": [str(data)], "preset": "demo", "settings": settings, **changes}


def content(job: Job) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Everything a run leaves that tells nothing of the clock."""
    records = [
        {k: v for k, v in record.items() if k not in CLOCK_FIELDS}
        for record in read_metrics(job.run_dir)
    ]
    last = list_checkpoints(job.run_dir / "checkpoints")[-1]
    return records, {file.name: file.read_bytes() for file in sorted(last.iterdir())}


# ------------------------------------------------------------------------------ what to run


def test_a_grid_is_every_combination(data_file: Path) -> None:
    planned = expand(spec(data_file, seeds=3, grid={"n_ood": [0, 2], "beta_in": [0.0, 0.01]}))
    assert len(planned) == 12
    assert {label for label, _ in planned} == {
        f"pbrl n_ood={n} beta_in={b}" for n in (0, 2) for b in (0.0, 0.01)
    }
    assert {config.seed for _, config in planned} == {0, 1, 2}


def test_variants_may_change_algorithm_and_settings(data_file: Path) -> None:
    variants = [
        {"label": "plain"},
        {"label": "with priors", "algorithm": "pbrl-prior"},
        {"label": "max", "algorithm": "pbrl-ablations", "settings": {"actor_objective": "max"}},
    ]
    planned = dict(expand(spec(data_file, variants=variants)))
    assert planned["with priors"].algorithm == "pbrl-prior"
    assert planned["max"].settings.actor_objective == "max"  # type: ignore[attr-defined]
    assert planned["plain"].settings.n_ood == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"grids": {}}, "Did you mean 'grid'"),
        ({"grid": {"n_ood": []}}, "empty list"),
        ({"grid": {"n_oodd": [1]}}, "n_ood"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [True]}, "seeds"),
        ({"algorithms": "pbrll"}, "Did you mean 'pbrl'"),
        ({"settings": {"steps": "many"}}, "steps"),
        ({"variants": {}}, "list"),
        ({"grid": [1]}, "mapping"),
    ],
    ids=str,
)
def test_bad_specs_get_one_sentence(
    data_file: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(PbrlError, match=complaint) as caught:
        expand(spec(data_file, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "\x00"])
def test_bad_yaml_gets_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(PbrlError) as caught:
        read_spec(tmp_path / "bad.yaml")
    assert "\n" not in str(caught.value)


def test_content_is_settings_and_data_not_names(data_file: Path, tmp_path: Path) -> None:
    (job,) = make_jobs(expand(spec(data_file)), tmp_path / "a")
    copied = tmp_path / "elsewhere.npz"
    shutil.copy(data_file, copied)
    other = write_data(tmp_path / "other.npz", seed=1)

    def key(path: Path, **changes: Any) -> str:
        return make_jobs(expand(spec(path, **changes)), tmp_path / "b", threads=2)[0].key

    assert key(copied) == job.key
    assert key(copied, settings={"tensorboard": True, "checkpoint_every": 7}) == job.key
    assert key(other) != job.key
    assert key(copied, settings={"n_ood": 2}) != job.key
    assert key(copied, seeds=[1]) != job.key
    # A run that was extended from 30 steps had other schedules: not the same.
    assert content_key(job.config, "x", 30) != content_key(job.config, "x")


def test_a_folder_called_demo_does_not_hide_the_embedded_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    (job,) = make_jobs(expand({"datasets": "demo"}), tmp_path / "runs")
    assert job.config.dataset == "demo"


def test_paths_of_data_are_made_absolute_for_workers_elsewhere(
    data_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data_file.parent)
    (job,) = make_jobs(expand(spec(Path(data_file.name))), data_file.parent / "runs")
    assert job.config.dataset == str(data_file)


# ------------------------------------------------------------------------------ running


def test_finished_runs_are_known_again_under_any_name(data_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    jobs = make_jobs(expand(spec(data_file, seeds=2)), out)
    first = run_sweep(jobs, HERE, quiet=True)
    assert [o.result for o in first] == ["done", "done"]
    assert [o.attempts for o in first] == [1, 1]
    (out / "deeper").mkdir()
    moved = out / "deeper" / "my favourite run"
    jobs[0].run_dir.rename(moved)

    again = make_jobs(expand(spec(data_file, seeds=3)), out)
    assert again[0].run_dir == moved
    assert len(find_runs(out)) == 2
    assert [progress_of(job)[0] for job in again] == ["finished", "finished", "new"]
    assert [o.attempts for o in run_sweep(again, HERE, quiet=True)] == [0, 0, 1]


def test_a_divergent_run_does_not_stop_the_rest(data_file: Path, tmp_path: Path) -> None:
    planned = expand(spec(data_file, grid={"critic_lr": [1e3, 1e-3]}))
    jobs = make_jobs(planned, tmp_path / "runs")
    bad, good = run_sweep(jobs, HERE, quiet=True)
    assert (bad.result, good.result) == ("diverged", "done")
    assert "diverged" in bad.message
    assert bad.job.config.settings.critic_lr == 1e3  # type: ignore[attr-defined]
    # It would diverge again, so the next sweep reports it without running it.
    assert [o.attempts for o in run_sweep(jobs, HERE, quiet=True)] == [0, 0]
    (jobs[0].run_dir / FAILURE).read_text()
    tried = run_sweep(jobs, HERE, quiet=True, retry_failed=True)
    assert [o.attempts for o in tried] == [1, 0]


def test_a_mistake_in_the_settings_is_reported_not_retried(data_file: Path, tmp_path: Path) -> None:
    jobs = make_jobs(expand(spec(data_file, settings={"batch_size": 10_000})), tmp_path / "runs")
    (outcome,) = run_sweep(jobs, HERE, quiet=True)
    assert (outcome.result, outcome.attempts) == ("failed", 1)
    assert "fewer than one batch" in outcome.message


def test_stopped_and_started_again_gives_the_same(data_file: Path, tmp_path: Path) -> None:
    settings = {"steps": 400, "checkpoint_every": 1000}
    whole = make_jobs(expand(spec(data_file, settings=settings)), tmp_path / "whole")
    run_sweep(whole, HERE, quiet=True)

    jobs = make_jobs(expand(spec(data_file, settings=settings, seeds=2)), tmp_path / "stopped")

    def interrupt() -> None:
        while read_progress(jobs[0].run_dir).step < 50:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="the same command goes on") as caught:
        run_sweep(jobs, HERE, quiet=True)
    thread.join()
    assert caught.value.exit_code == 130
    assert progress_of(jobs[0])[0] == "half done"
    assert progress_of(jobs[1])[0] == "new"
    assert all(o.result == "done" for o in run_sweep(jobs, HERE, quiet=True))
    assert content(jobs[0]) == content(whole[0])


def test_a_half_done_run_goes_on_on_another_device(data_file: Path, tmp_path: Path) -> None:
    (job,) = make_jobs(expand(spec(data_file)), tmp_path / "runs", threads=2)
    run_sweep([job], HERE, quiet=True)
    whole = content(job)
    (job.run_dir / SUMMARY).unlink()
    # As a GPU would have left it after 40 steps, with random generators of 16 bytes.
    forty, last = list_checkpoints(job.run_dir / "checkpoints")
    shutil.rmtree(last)
    tensors = load_file(forty / "training.safetensors")
    generators = [name for name in tensors if name.startswith("rng/")]
    assert len(generators) == 2
    tensors |= {name: torch.arange(16, dtype=torch.uint8) for name in generators}
    save_file(tensors, forty / "training.safetensors")
    manifest = json.loads((forty / "checkpoint.json").read_text())
    written = (forty / "training.safetensors").read_bytes()
    manifest["sha256"]["training.safetensors"] = hashlib.sha256(written).hexdigest()
    (forty / "checkpoint.json").write_text(json.dumps(manifest))
    info = json.loads((job.run_dir / CONFIG).read_text())
    info["device"] = info["config"]["device"] = "cuda"
    (job.run_dir / CONFIG).write_text(json.dumps(info))
    left = tmp_path / "left"
    shutil.copytree(tmp_path / "runs", left)

    results = []
    for out in (tmp_path / "runs", left):
        (moved,) = make_jobs(expand(spec(data_file, settings={"device": "cpu"})), out, threads=1)
        assert moved.run_dir == out / job.run_dir.name
        assert progress_of(moved) == ("half done", 40)
        (outcome,) = run_sweep([moved], HERE, quiet=True)
        assert (outcome.result, outcome.message) == ("done", "")
        results.append(content(moved))
    assert results[0] == results[1]
    # On from the 40 steps, not over from none; then with new random numbers.
    assert [r["step"] for r in results[0][0]] == [r["step"] for r in whole[0]]
    assert results[0][0][:4] == whole[0][:4]
    assert results[0][0][-1] != whole[0][-1]


@pytest.mark.slow
def test_ray_loses_nothing_when_a_worker_is_killed(data_file: Path, tmp_path: Path) -> None:
    """Twelve runs on two workers, one of them killed on the way, against runs left in peace."""
    pytest.importorskip("ray")
    plan = spec(data_file, seeds=6, settings={"steps": 160}, grid={"n_ood": [0, 2]})
    calm = make_jobs(expand(plan), tmp_path / "calm")
    assert len(calm) == 12
    run_sweep(calm, HERE, quiet=True)

    jobs = make_jobs(expand(plan), tmp_path / "disturbed")
    killed: list[Path] = []
    finished = threading.Event()

    def kill_one() -> None:
        while not finished.is_set():
            for job in jobs:
                state, step = progress_of(job)
                if state == "half done" and step < 160:
                    pid = json.loads((job.run_dir / WORKER).read_text())["pid"]
                    os.kill(pid, signal.SIGKILL)
                    killed.append(job.run_dir)
                    return
            time.sleep(0.002)

    thread = threading.Thread(target=kill_one)
    thread.start()
    try:
        outcomes = run_sweep(jobs, Resources(workers=2), console=Console(quiet=True))
    finally:
        finished.set()
        thread.join()
    assert len(killed) == 1
    assert [o.result for o in outcomes] == ["done"] * 12
    attempts = {o.job.run_dir: o.attempts for o in outcomes}
    assert attempts.pop(killed[0]) == 2
    for mine, peaceful in zip(jobs, calm, strict=True):
        assert content(mine) == content(peaceful)
    import ray

    assert not ray.is_initialized()


def test_ray_saves_every_run_when_it_is_stopped(data_file: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    pytest.importorskip("ray")
    # Far too long to finish, and no checkpoint on the way: only a saved stop leaves one.
    plan = spec(data_file, seeds=2, settings={"steps": 10**6, "checkpoint_every": 10**6})
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(plan))
    command = [sys.executable, "-m", "pbrl", "sweep", str(file), "--out", str(tmp_path / "runs")]
    with subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.PIPE) as process:
        jobs = make_jobs(expand(plan), tmp_path / "runs")
        deadline = time.monotonic() + 300
        while any(read_progress(job.run_dir).step < 20 for job in jobs):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        pids = [json.loads((job.run_dir / WORKER).read_text())["pid"] for job in jobs]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"the same command goes on" in said
    assert [progress_of(job)[0] for job in jobs] == ["half done", "half done"]
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):  # no worker is left behind
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_ray_that_does_not_start_gets_one_sentence(
    data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    tries: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        tries.append(options)
        raise Exception("The current node timed out during startup.\nMore of it.")

    monkeypatch.setattr(ray, "init", init)
    jobs = make_jobs(expand(spec(data_file, seeds=2)), tmp_path / "runs")
    with pytest.raises(PbrlError, match=r"on this machine: The current node.*--workers 1"):
        run_sweep(jobs, Resources(workers=2), quiet=True)
    assert len(tries) == 3  # a busy machine gets another chance
    assert not tries[0]["include_dashboard"]
    with pytest.raises(PbrlError, match="at nowhere:1"):
        run_sweep(jobs, Resources(address="nowhere:1"), quiet=True)
    assert tries[-1]["address"] == "nowhere:1"


# ------------------------------------------------------------------------------ what is shown


def test_the_table_tells_states_speed_and_time_left(data_file: Path, tmp_path: Path) -> None:
    jobs = make_jobs(expand(spec(data_file, seeds=4)), tmp_path / "runs")
    outcomes = {o.job.key: o for o in run_sweep(jobs[:1], HERE, quiet=True)}
    running = jobs[1].run_dir
    running.mkdir(parents=True)
    (running / WORKER).write_text("{}")
    record = {"step": 40, "kind": "train", "steps_per_second": 2.0}
    score = {"step": 40, "kind": "eval", "return_mean": 7.0, "score_mean": 33.25}
    torn = '{"step": 50, "ki'
    (running / "metrics.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(score)}\n{torn}")
    view = SweepView(jobs, outcomes, Console())
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view.table())
    text = console.export_text()
    console.file.close()
    assert [view.state(job) for job in jobs] == ["done", "running", "queued", "queued"]
    assert "40/60" in text
    assert "33.2" in text
    assert "0:00:10" in text  # 20 steps at 2 a second
    assert "1 done, 2 queued, 1 running" in text
    assert "about 0:01:10 left" in text  # 20 + 60 + 60 steps


def test_estimate_counts_only_what_is_left(data_file: Path, tmp_path: Path) -> None:
    jobs = make_jobs(expand(spec(data_file, seeds=2)), tmp_path / "runs")
    run_sweep(jobs[:1], HERE, quiet=True)
    done, new = estimate(jobs, budget_seconds=0.01)
    assert (done.steps, new.steps) == (0, 60)
    assert new.seconds_per_step is not None
    assert new.hours == pytest.approx(60 * new.seconds_per_step / 3600)
    assert 1e-5 < new.seconds_per_step < 5


def test_a_dry_run_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBRL_DATA_DIR", str(tmp_path / "empty"))
    plan = expand({"datasets": "hopper-medium-v2", "preset": "paper"})
    (job,) = make_jobs(plan, tmp_path / "runs", download=False)
    assert (job.observation_dim, job.action_dim) == (11, 3)
    assert not (tmp_path / "runs").exists()
