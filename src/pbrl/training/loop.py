"""The one training loop: every algorithm, every dataset, offline from the first step to the last.

A run that is killed at any moment and resumed ends with the same bytes as one never interrupted:
all randomness comes from generators whose state is in the checkpoint, evaluations depend on (seed,
step) alone, and metric records after the checkpoint are dropped and written again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from pbrl.algorithms import algorithm_class
from pbrl.algorithms.agent import Agent
from pbrl.algorithms.base import Algorithm
from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing, bounded_actions
from pbrl.data.training_data import TrainingData
from pbrl.errors import DivergenceError, PbrlError
from pbrl.evaluation.rollout import Evaluator
from pbrl.training.checkpoint import all_finite, latest_checkpoint, prune, save_checkpoint
from pbrl.training.config import TrainConfig, from_json, make_config, read_config, to_json
from pbrl.training.files import cannot_write, write_json
from pbrl.training.machine import busy_machine, keep_freed_memory, pick_device, use_threads
from pbrl.training.metrics import MetricLog
from pbrl.training.progress import TrainingProgress
from pbrl.training.run import CONFIG, SUMMARY, Run, git_revision, versions

# Settings that change neither the weights nor the records of a run.
FREE_ON_RESUME = {
    "dataset", "run_dir", "steps", "threads", "tensorboard", "wandb", "keep_every",
    "checkpoint_every", "tune_allocator", "preset", "clip_actions",
}  # fmt: skip
# Q beyond this many times the largest possible return counts as exploded.
EXPLOSION_FACTOR = 100.0
FINAL_EPISODES = 20


class Interrupted(PbrlError):
    """The user stopped the run; it is saved."""

    exit_code = 130


def train(
    dataset: str | Path | TransitionDataset | None = None,
    *,
    algorithm: str = "pbrl",
    preset: str | None = None,
    resume: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train an agent from logged data.

    Args:
        dataset: a name, a path or a loaded dataset; the embedded demo when omitted.
        algorithm: name of the algorithm.
        preset: ``paper``, ``adroit``, ``fast`` or ``demo``; ``paper`` unless the dataset is
            omitted too, then ``demo``.
        resume: go on with the run in ``run_dir`` if there is one.
        quiet: print nothing.
        **settings: any field of ``TrainConfig`` or of the algorithm's config.

    Returns:
        The finished run.
    """
    loaded = dataset if isinstance(dataset, TransitionDataset) else None
    if preset is None:
        preset = "demo" if dataset is None else "paper"
    name = loaded.info.name if loaded is not None else str(dataset or "demo")
    config = make_config(algorithm, preset, name, **settings)
    return run_training(config, loaded, resume=resume, quiet=quiet)


def run_training(
    config: TrainConfig,
    dataset: TransitionDataset | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
    console: Console | None = None,
) -> Run:
    """Run ``config`` from its start or, with ``resume``, from its newest checkpoint."""
    console = console or Console(stderr=True)
    config = config.resolved()
    assert config.run_dir is not None
    stored = _claim_directory(config.run_dir, resume)
    if stored is not None and config.threads == 0:
        config = replace(config, threads=int(stored["threads"]))
    threads = use_threads(config.threads)
    device = pick_device(config.device)
    if config.tune_allocator and device == "cpu":
        keep_freed_memory()

    session = _open_session(config, dataset, device, threads, stored)
    run, config = session.run, session.config
    finished = run.summary
    if finished is not None and session.algorithm.step >= config.steps:
        if not quiet:
            console.print(f"{run.path} is already finished ({config.steps:,} steps).")
        session.close()
        return run
    (run.path / SUMMARY).unlink(missing_ok=True)
    progress = TrainingProgress(config.steps, session.algorithm.step, console, quiet)
    if config.threads == 0 and (busy := busy_machine()) is not None:
        session.notes.append(busy)
    for note in session.notes:
        progress.say(note)
    try:
        with _stop_signals() as stop:
            _train(session, progress, stop)
    except RuntimeError as error:
        if "out of memory" not in str(error).lower() and "can't allocate" not in str(error):
            raise
        raise PbrlError(
            f"Out of memory at step {session.algorithm.step}: lower batch_size, n_ood or "
            f"ensemble_size; the run resumes from its last checkpoint. ({error})"
        ) from error
    finally:
        progress.close()
        session.close()
    return run


@dataclass
class _Session:
    """Everything a run holds while it is going."""

    config: TrainConfig
    run: Run
    data: TrainingData
    algorithm: Algorithm
    agent: Agent
    evaluator: Evaluator | None
    log: MetricLog
    sampler: torch.Generator
    notes: list[str]
    q_limit: float

    def close(self) -> None:
        self.log.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def state(self) -> dict[str, Tensor]:
        return {**self.algorithm.state_dict(), "rng/sampler": self.sampler.get_state()}

    def save(self) -> None:
        """Write a checkpoint, after the records it stands on are safe."""
        state = self.state()
        broken = all_finite(state)
        if broken is not None:
            raise _diverged(f"the tensor {broken}", float("nan"), self.algorithm.step, self.run)
        self.log.sync()
        fingerprint = self.run.info["data"]["fingerprint"]
        save_checkpoint(self.run.checkpoints, self.algorithm.step, state, fingerprint)
        prune(self.run.checkpoints, self.config.keep_every)


# ------------------------------------------------------------------------------- setting up


def _claim_directory(run_dir: Path, resume: bool) -> dict[str, Any] | None:
    """The stored config.json when resuming, None for a new run; refuses to overwrite a run."""
    config_file = run_dir / CONFIG
    if config_file.exists():
        if not resume:
            raise PbrlError(
                f"{run_dir} already holds a run; add --resume to go on with it, or give another "
                "--run-dir."
            )
        return read_config(config_file)
    if run_dir.exists() and not run_dir.is_dir():
        raise PbrlError(f"--run-dir {run_dir} is a file; give a directory.")
    return None


def _make_directory(run: Run) -> None:
    """Create the run on disk; only called once nothing is left to refuse."""
    try:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(run.path, error) from error
    write_json(run.path / CONFIG, run.info)


def _open_session(
    config: TrainConfig,
    dataset: TransitionDataset | None,
    device: str,
    threads: int,
    stored: dict[str, Any] | None,
) -> _Session:
    assert config.run_dir is not None
    notes: list[str] = []
    if dataset is None:
        dataset = config.load_dataset()
    notes += dataset.info.notes
    if len(dataset) < config.settings.batch_size:
        raise PbrlError(
            f"The dataset has {len(dataset)} transitions, fewer than one batch of "
            f"{config.settings.batch_size}; log more data or set --batch-size lower."
        )
    evaluator = _make_evaluator(config, dataset, notes)
    low, high = dataset.info.action_low, dataset.info.action_high
    if low is None and evaluator is not None:
        low, high = evaluator.action_bounds
        dataset = bounded_actions(dataset, low, high, clip=config.clip_actions)

    cls = algorithm_class(config.algorithm)
    normalize = config.normalize_observations
    preprocessing = Preprocessing.fit(
        dataset,
        normalize_observations=cls.normalize_observations if normalize is None else normalize,
        normalize_rewards=config.normalize_rewards,
        action_low=low,
        action_high=high,
    )
    schedule_steps = config.steps
    if stored is not None:
        schedule_steps = int(stored["schedule_steps"])
        config = _check_resume(config, dataset, preprocessing, stored, notes)
    info = {
        "format_version": 1,
        "config": to_json(config),
        "schedule_steps": schedule_steps,
        "threads": threads,
        "device": device,
        "data": {
            "name": dataset.info.name,
            "source": dataset.info.source,
            "fingerprint": dataset.fingerprint,
            "transitions": len(dataset),
            "observation_dim": dataset.observation_dim,
            "action_dim": dataset.action_dim,
            "env_id": evaluator.env_id if evaluator else (config.env_id or dataset.info.env_id),
            "reference_scores": dataset.info.reference_scores,
            "score_source": dataset.info.score_source,
            "behaviour_return_mean": float(dataset.episode_returns().mean()),
            "notes": list(dataset.info.notes),
        },
        "preprocessing": preprocessing.to_json(),
        "versions": versions(),
        "git_revision": git_revision(),
    }
    assert config.run_dir is not None
    run = Run(config.run_dir, info)

    data = TrainingData(dataset, preprocessing, device)
    algorithm = cls(config.settings, seed=config.seed, device=device, total_steps=schedule_steps)
    notes += algorithm.prepare(data)
    sampler_device = device if not dataset.memory_mapped else "cpu"
    sampler = torch.Generator(sampler_device).manual_seed(config.seed + 2_000_003)
    if stored is not None:
        checkpoint = latest_checkpoint(run.checkpoints, say=notes.append)
        if checkpoint is None:
            notes.append("No checkpoint yet: starting over.")
        else:
            algorithm.load_state_dict(checkpoint.state)
            sampler.set_state(checkpoint.state["rng/sampler"])
            notes.append(f"Resuming {run.path} at step {algorithm.step:,}.")
    _make_directory(run)
    log = MetricLog(run.path, algorithm.step, config.tensorboard, config.wandb, info)
    gamma = float(getattr(config.settings, "gamma", 0.99))
    largest = float(np.abs(preprocessing.rewards(dataset.rewards)).max())
    return _Session(
        config,
        run,
        data,
        algorithm,
        Agent(algorithm, preprocessing, info),
        evaluator,
        log,
        sampler,
        notes,
        q_limit=EXPLOSION_FACTOR * max(1.0, largest) / (1 - gamma),
    )


def _make_evaluator(
    config: TrainConfig, dataset: TransitionDataset, notes: list[str]
) -> Evaluator | None:
    env_id = config.env_id or dataset.info.env_id
    if not config.eval:
        return None
    if env_id is None:
        notes.append(
            "No environment is known for these data: training without evaluation (--env-id names "
            "one)."
        )
        return None
    try:
        evaluator = Evaluator(env_id, dataset.info.reference_scores)
    except PbrlError as error:
        raise PbrlError(f"{error} (--no-eval trains without a simulator.)") from error
    evaluator.require_spaces(dataset.observation_dim, dataset.action_dim)
    return evaluator


def _check_resume(
    config: TrainConfig,
    dataset: TransitionDataset,
    preprocessing: Preprocessing,
    stored: dict[str, Any],
    notes: list[str],
) -> TrainConfig:
    """Refuse other data or settings; explain a longer run."""
    # Through the present classes: settings younger than the run stand at their defaults.
    before, now = to_json(from_json(stored["config"], CONFIG)), to_json(config)
    differences = []
    if stored["data"]["fingerprint"] != dataset.fingerprint:
        differences.append(
            f"data: {stored['data']['name']} ({stored['data']['fingerprint'][:12]}) -> "
            f"{dataset.info.name} ({dataset.fingerprint[:12]})"
        )
    for name in before.keys() | now.keys():
        if name in FREE_ON_RESUME:
            continue
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += [
                f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
                for key in old.keys() | new.keys()
                if old.get(key) != new.get(key)
            ]
        elif old != new:
            differences.append(f"{name}: {old!r} -> {new!r}")
    if not differences and stored["preprocessing"] != preprocessing.to_json():
        differences.append("preprocessing: the data give other normalisation or action bounds")
    if config.steps < int(before["steps"]):
        differences.append(f"steps: {before['steps']} -> {config.steps} (a run can only grow)")
    if differences:
        raise PbrlError(
            "This run was started with other data or settings: "
            + "; ".join(sorted(differences))
            + ". Resume with the old ones, or give another --run-dir."
        )
    if config.steps > int(before["steps"]):
        notes.append(
            f"Extending the run from {before['steps']:,} to {config.steps:,} steps. Schedules keep "
            f"the length they began with ({stored['schedule_steps']:,} steps) and stay at their "
            "last value after it."
        )
    if config.threads != int(stored["threads"]):
        notes.append(
            f"The run had {stored['threads']} threads and now has {config.threads}: results will "
            "not be equal bit for bit."
        )
    return config


# ------------------------------------------------------------------------------- the loop


def _train(session: _Session, progress: TrainingProgress, stop: list[int]) -> None:
    config, algorithm, data = session.config, session.algorithm, session.data
    size = config.settings.batch_size
    update = torch.compile(algorithm.update) if config.compile else algorithm.update
    clock = _Clock(algorithm.step)
    while algorithm.step < config.steps:
        batch = data.sample(size, session.sampler)
        metrics = update(batch)
        step = algorithm.step
        last = step == config.steps
        if step % config.log_every == 0 or last:
            values = {k: float(v) for k, v in (metrics | algorithm.diagnostics(batch)).items()}
            _require_sound(values, session)
            values |= clock.lap(step)
            session.log.record(step, "train", values)
            progress.update(step, values)
        elif step % 20 == 0:
            progress.update(step)
        if session.evaluator is not None and (step % config.eval_every == 0 or last):
            with clock.paused():
                episodes = (
                    max(config.eval_episodes, FINAL_EPISODES) if last else config.eval_episodes
                )
                values = _evaluate(session, session.evaluator, episodes)
            session.log.record(step, "eval", values)
            progress.update(step, values)
        if stop:
            session.save()
            raise Interrupted(
                f"Stopped at step {step:,} and saved; go on with: "
                f"pbrl train --resume --run-dir {session.run.path}"
            )
        if step % config.checkpoint_every == 0 or last:
            session.save()
    _write_summary(session)


def _evaluate(session: _Session, evaluator: Evaluator, episodes: int) -> dict[str, float]:
    start = time.monotonic()
    # The seed depends on nothing but (seed, step), so a resumed run repeats it.
    seed = session.config.seed * 1_000_000_007 + session.algorithm.step
    result = evaluator.evaluate(session.agent.act, episodes, seed)
    return {
        **result.summary(),
        "episodes": float(episodes),
        "evaluation_seconds": time.monotonic() - start,
    }


def _require_sound(values: dict[str, float], session: _Session) -> None:
    for name, value in values.items():
        exploded = name.startswith("q_") and abs(value) > session.q_limit
        if not np.isfinite(value) or exploded:
            raise _diverged(name, value, session.algorithm.step, session.run)


def _diverged(name: str, value: float, step: int, run: Run) -> DivergenceError:
    return DivergenceError(
        f"Training diverged: {name} is {value:g} at step {step:,}. Try a lower critic_lr, "
        f"normalize_observations or normalize_rewards; the last good checkpoint is in "
        f"{run.checkpoints}."
    )


def _write_summary(session: _Session) -> None:
    records = list(session.run.metrics())
    evaluations = [r for r in records if r["kind"] == "eval"]
    summary: dict[str, Any] = {
        "steps": session.algorithm.step,
        "algorithm": session.config.algorithm,
        "dataset": session.run.info["data"]["name"],
        "seed": session.config.seed,
        "behaviour_return_mean": session.run.info["data"]["behaviour_return_mean"],
        "last_training": next((r for r in reversed(records) if r["kind"] == "train"), None),
    }
    if evaluations:
        summary["last_evaluation"] = evaluations[-1]
        summary["best_evaluation"] = max(evaluations, key=lambda r: float(r["return_mean"]))
    write_json(session.run.path / SUMMARY, summary)


class _Clock:
    """Seconds and speed of training, evaluations aside."""

    def __init__(self, step: int) -> None:
        self._start = self._lap_start = time.monotonic()
        self._lap_step = step
        self._pause = self._lap_pause = 0.0

    def lap(self, step: int) -> dict[str, float]:
        now = time.monotonic()
        seconds = now - self._lap_start - (self._pause - self._lap_pause)
        rate = (step - self._lap_step) / max(1e-9, seconds)
        self._lap_start, self._lap_step, self._lap_pause = now, step, self._pause
        return {"seconds": now - self._start, "steps_per_second": rate}

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._pause += time.monotonic() - start


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The first Ctrl-C (or SIGTERM) asks the loop to save and stop; the second one insists."""
    stop: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(number)

    try:
        before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: nothing to catch
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Interrupted", "from_json", "run_training", "train"]
