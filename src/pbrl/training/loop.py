"""The one training loop: every algorithm, every dataset, offline from the first step to the last.

A run that is killed at any moment and resumed ends with the same bytes as one never interrupted:
all randomness comes from generators whose state is in the checkpoint, evaluations depend on (seed,
step) alone, and metric records after the checkpoint are dropped and written again.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console

from pbrl.console import plain_console
from pbrl.data.dataset import TransitionDataset
from pbrl.data.loading import Source
from pbrl.errors import PbrlError, is_out_of_memory
from pbrl.evaluation.rollout import Evaluator
from pbrl.training.budget import TWO_LENGTHS, Budget, steps_for_hours
from pbrl.training.config import TrainConfig, make_config, to_json, usual_algorithm
from pbrl.training.files import write_json
from pbrl.training.lock import only_one
from pbrl.training.machine import (
    busy_machine,
    keep_freed_memory,
    pick_device,
    stop_signals,
    use_threads,
    use_wide_products,
)
from pbrl.training.model_card import write_model_card
from pbrl.training.progress import TrainingProgress
from pbrl.training.run import CONFIG, SUMMARY, Run
from pbrl.training.session import Extension, Session, claim_directory, diverged, open_session

FINAL_EPISODES = 20


class Interrupted(PbrlError):
    """The user stopped the run; it is saved."""

    exit_code = 130


def train(
    dataset: Source | TransitionDataset | None = None,
    *,
    algorithm: str | None = None,
    preset: str | None = None,
    hours: float | None = None,
    resume: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train an agent from logged data.

    Args:
        dataset: a name, a path or a loaded dataset; a mapping of arrays or of columns, or a pandas
            or polars frame (as ``load_dataset`` takes them); the embedded demo when omitted.
        algorithm: name of the algorithm; ``pbrl``, or ``pbrl-anchored`` where dataset and preset
            are omitted as well.
        preset: one of the algorithm's, such as ``paper``, ``adroit``, ``fast`` or ``demo``;
            ``demo`` where the dataset is omitted, else ``paper`` where there is a paper.
        hours: fix ``steps`` so that training takes about this long here, by measuring the
            speed for up to a minute first, and again on the way; a run that is resumed keeps its
            own.
        resume: go on with the run in ``run_dir`` if there is one.
        quiet: print nothing.
        **settings: any field of ``TrainConfig`` or of the algorithm's config.

    Returns:
        The finished run.
    """
    loaded = dataset if isinstance(dataset, TransitionDataset) else None
    if algorithm is None:
        algorithm = usual_algorithm(dataset is not None or preset is not None)
    if preset is None and dataset is None:
        preset = "demo"
    in_memory = dataset is not None and not isinstance(dataset, str | Path | TransitionDataset)
    name = "memory" if in_memory else "demo" if dataset is None else str(dataset)
    if loaded is not None:
        name = loaded.info.name
    config, budget = make_config(algorithm, preset, name, **settings), None
    if in_memory:
        loaded = config.load_dataset(dataset)
    if hours is not None:
        if "steps" in settings:
            raise PbrlError(TWO_LENGTHS)
        run_dir = config.resolved().run_dir
        assert run_dir is not None
        begun = claim_directory(run_dir, resume) is not None
        steps = Run.open(run_dir).config.steps if begun else steps_for_hours(config, hours, loaded)
        config = replace(config, steps=steps)
        budget = None if begun else Budget(hours)
    return run_training(config, loaded, resume=resume, quiet=quiet, budget=budget)


def run_training(
    config: TrainConfig,
    dataset: TransitionDataset | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
    console: Console | None = None,
    extension: Extension | None = None,
    wait: float = 0.0,
    budget: Budget | None = None,
) -> Run:
    """Run ``config`` from its start or, with ``resume``, from its newest checkpoint.

    With a ``budget`` its steps follow the speed that is measured on the way. Where another process
    is at work in the directory, it is refused after ``wait`` seconds.
    """
    console = console or plain_console(stderr=True)
    config = config.resolved()
    assert config.run_dir is not None
    with only_one(config.run_dir, wait):
        return _run_alone(config, dataset, resume, quiet, console, extension, budget)


def _run_alone(
    config: TrainConfig,
    dataset: TransitionDataset | None,
    resume: bool,
    quiet: bool,
    console: Console,
    extension: Extension | None,
    budget: Budget | None,
) -> Run:
    """What ``run_training`` does while nobody else can."""
    assert config.run_dir is not None
    stored = claim_directory(config.run_dir, resume)
    if stored is not None and config.threads == 0:
        config = replace(config, threads=int(stored["threads"]))
    threads = use_threads(config.threads)
    device = pick_device(config.device)
    if device == "cpu":
        use_wide_products()
        if config.tune_allocator:
            keep_freed_memory()

    session = open_session(config, dataset, device, threads, stored, extension)
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
    progress.say(f"{config.algorithm}, preset {config.preset}: {config.steps:,} steps.")
    if config.keep_every % config.checkpoint_every:
        session.notes.append(
            f"--keep-every {config.keep_every} keeps only what is written, every "
            f"{config.checkpoint_every:,} steps: multiples of "
            f"{math.lcm(config.keep_every, config.checkpoint_every):,}. Give --checkpoint-every "
            f"{config.keep_every} as well to keep all."
        )
    for note in session.notes:
        progress.say(note)
    try:
        with _stop_signals() as stop:
            while (steps := _train(session, progress, stop, budget)) is not None:
                session = _of_other_length(session, steps, dataset, device, threads, extension)
                progress.extend(steps)
                progress.say(f"Measured again: {steps:,} steps fit into the time.")
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise PbrlError(
            f"Out of memory at step {session.algorithm.step}: lower batch_size, n_ood or "
            f"ensemble_size; the run resumes from its last checkpoint. ({error})"
        ) from error
    finally:
        progress.close()
        session.close()
    return session.run


def _of_other_length(
    session: Session,
    steps: int,
    dataset: TransitionDataset | None,
    device: str,
    threads: int,
    extension: Extension | None,
) -> Session:
    """The same run, resumed from where it stands with its schedules over so many steps."""
    session.save()
    config = replace(session.config, steps=steps)
    stored = {**session.run.info, "config": to_json(config), "schedule_steps": steps}
    write_json(session.run.path / CONFIG, stored)
    session.close()
    return open_session(config, dataset, device, threads, stored, extension)


def _train(
    session: Session, progress: TrainingProgress, stop: list[int], budget: Budget | None
) -> int | None:
    """To the end of the run, or to where the budget wants another length, which is returned."""
    config, algorithm, data = session.config, session.algorithm, session.data
    size = config.settings.batch_size
    clock = _Clock(algorithm.step)
    while algorithm.step < config.steps:
        batch = data.sample(size, session.sampler)
        metrics = algorithm.update(batch)
        step = algorithm.step
        last = step == config.steps
        if step % config.log_every == 0 or last:
            values = {k: float(v) for k, v in (metrics | algorithm.diagnostics(batch)).items()}
            _require_sound(values, session)
            values |= clock.lap(step)
            session.log.record(step, "train", values)
            progress.update(step, values)
        else:
            progress.update(step)
        if session.evaluator is not None and (step % config.eval_every == 0 or last):
            with clock.paused():
                episodes = (
                    max(config.eval_episodes, FINAL_EPISODES) if last else config.eval_episodes
                )
                values = evaluate_session(session, session.evaluator, episodes)
            session.log.record(step, "eval", values)
            progress.update(step, values)
        if stop:
            session.save()
            raise Interrupted(
                f"Stopped at step {step:,} and saved; go on with: "
                f"{session.command} --resume --run-dir {session.run.path}"
            )
        if step % config.checkpoint_every == 0 or last:
            session.save()
        if budget is not None and not last and (steps := budget.steps(step, config.steps)):
            return steps
    _write_summary(session)
    return None


def evaluate_session(session: Session, evaluator: Evaluator, episodes: int) -> dict[str, float]:
    """What the session's policy earns now, as metrics."""
    start = time.monotonic()
    # The seed depends on nothing but (seed, step), so a resumed run repeats it.
    seed = session.config.seed * 1_000_000_007 + session.algorithm.step
    result = evaluator.evaluate(session.agent.act, episodes, seed)
    return {
        **result.summary(),
        "episodes": float(episodes),
        "evaluation_seconds": time.monotonic() - start,
    }


def _require_sound(values: dict[str, float], session: Session) -> None:
    for name, value in values.items():
        exploded = name.startswith("q_") and abs(value) > session.q_limit
        if not np.isfinite(value) or exploded:
            raise diverged(name, value, session.algorithm.step, session.run)


def _write_summary(session: Session) -> None:
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
    write_model_card(session.run, session.agent)


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
    """The first Ctrl-C (or other stop) asks the loop to save and stop; the second one insists."""
    stop: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(number)

    try:
        before = {n: signal.signal(n, note) for n in (signal.SIGINT, *stop_signals())}
    except ValueError:  # not in the main thread: nothing to catch
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
