"""Many runs at once: on this machine or on a Ray cluster, each resumable, none in another's way.

A job is a ``run_training(resume=True)`` in a directory named by the content of its settings and
data. So a worker that dies is simply started again and goes on from its checkpoint, a sweep that is
stopped goes on when it is started again, and what is finished is not run twice. Runs on a cluster
need one directory that all machines see.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from pbrl.console import plain_console
from pbrl.errors import DivergenceError, PbrlError, optional_import
from pbrl.sweep.cost import progress_of
from pbrl.sweep.jobs import Job
from pbrl.sweep.view import SweepView
from pbrl.training.config import from_json, to_json
from pbrl.training.files import write_json
from pbrl.training.lock import Busy
from pbrl.training.loop import Interrupted, run_training
from pbrl.training.machine import cores, stops_as_interrupts

FAILURE, WORKER = "failure.json", "worker.json"
# Enough for handles and small results; datasets are read from files, not passed through Ray.
OBJECT_STORE_BYTES = 100_000_000
LOCK_SECONDS = 120.0
CANCEL_SECONDS = 30.0

Result = Literal["done", "diverged", "failed", "interrupted"]


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        job: the run.
        result: done, diverged, failed or interrupted.
        message: what went wrong, if anything.
        attempts: times it was started in this sweep; 0 when it was already there.
    """

    job: Job
    result: Result
    message: str = ""
    attempts: int = 0


@dataclass(frozen=True)
class Resources:
    """What the runs may use.

    Attributes:
        workers: runs at a time on this machine; None: one a core.
        address: of a Ray cluster (``auto`` or ``ray://host:10001``); None: a Ray of our own.
        memory_gb: memory a run asks the cluster for.
        gpus: GPUs a run asks the cluster for.
        retries: times a run is started again after its worker was lost or broke.
    """

    workers: int | None = None
    address: str | None = None
    memory_gb: float = 1.0
    gpus: float = 0.0
    retries: int = 3


def run_sweep(
    jobs: Sequence[Job],
    resources: Resources | None = None,
    *,
    console: Console | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
) -> list[Outcome]:
    """Run what is not finished and say how every job ended, in the order of ``jobs``.

    With one worker and no cluster the runs follow one another in this process; otherwise Ray
    spreads them. A run that diverges is reported and does not stop the rest; since it would diverge
    again, it is left alone next time unless ``retry_failed``.
    """
    resources = resources or Resources()
    console = console or plain_console(stderr=True)
    outcomes: dict[str, Outcome] = {}
    unique = list({job.key: job for job in reversed(jobs)}.values())[::-1]  # equal content once
    todo = []
    for job in unique:
        failure = _stored_failure(job)
        if progress_of(job)[0] == "finished":
            outcomes[job.key] = Outcome(job, "done")
        elif failure is not None and not retry_failed:
            outcomes[job.key] = Outcome(job, "diverged", failure)
        else:
            (job.run_dir / FAILURE).unlink(missing_ok=True)
            todo.append(job)
    if todo:
        workers = resources.workers or cores()
        with SweepView(unique, outcomes, console, quiet) as view:
            if resources.address is None and min(workers, len(todo)) == 1:
                engine: Callable[..., None] = _run_here
            else:
                engine = _run_on_ray
            engine(todo, replace(resources, workers=min(workers, len(todo))), outcomes, view)
    if any(o.result == "interrupted" for o in outcomes.values()) or len(outcomes) < len(unique):
        done = sum(o.result == "done" for o in outcomes.values())
        raise Interrupted(
            f"Stopped with {done} of {len(unique)} runs done; the same command goes on from here."
        )
    return [replace(outcomes[job.key], job=job) for job in jobs]


def run_job(values: dict[str, Any], run_dir: str) -> dict[str, str]:
    """Train one job to its end in this process; what a worker does.

    Args:
        values: the settings as JSON.
        run_dir: where the run lives, the same path on every machine.

    Returns:
        ``{"result": …, "message": …}``. Faults that another attempt may repair are raised.
    """
    place = Path(run_dir)
    place.mkdir(parents=True, exist_ok=True)
    config = replace(from_json(values), run_dir=place)
    write_json(place / WORKER, {"pid": os.getpid(), "host": socket.gethostname()})
    try:
        # A worker thought lost may still be alive, or a second sweep be on it.
        run_training(config, resume=True, quiet=True, wait=LOCK_SECONDS)
    except Busy:
        raise
    except Interrupted as error:
        return {"result": "interrupted", "message": str(error)}
    except DivergenceError as error:
        write_json(place / FAILURE, {"message": str(error)})
        return {"result": "diverged", "message": str(error)}
    except PbrlError as error:
        return {"result": "failed", "message": str(error)}
    return {"result": "done", "message": ""}


# ---------------------------------------------------------------------------- engines


def _run_here(
    todo: list[Job], resources: Resources, outcomes: dict[str, Outcome], view: SweepView
) -> None:
    for job in todo:
        view.started(job)
        attempts = 0
        while True:
            attempts += 1
            try:
                with view.watching():
                    answer = run_job(to_json(job.config), str(job.run_dir))
            except KeyboardInterrupt:
                return
            except Exception:
                if attempts <= resources.retries:
                    continue
                answer = {"result": "failed", "message": traceback.format_exc(limit=3)}
            break
        outcomes[job.key] = _outcome(job, answer, attempts)
        view.ended(job)
        if answer["result"] == "interrupted":
            return


def _run_on_ray(
    todo: list[Job], resources: Resources, outcomes: dict[str, Outcome], view: SweepView
) -> None:
    with _ray(resources) as ray, stops_as_interrupts():  # Ray sets a handler of its own
        memory = int(resources.memory_gb * 1e9)
        task = ray.remote(run_job).options(
            num_cpus=todo[0].config.threads,
            num_gpus=resources.gpus,
            memory=memory,
            max_retries=0,  # we start lost runs again ourselves, and count
        )
        _require_room(ray, todo[0].config.threads, memory, resources.gpus)
        attempts = {job.key: 0 for job in todo}
        running: dict[Any, Job] = {}

        def start(job: Job) -> None:
            attempts[job.key] += 1
            running[task.remote(to_json(job.config), str(job.run_dir))] = job

        try:
            for job in todo:
                start(job)
            while running:
                ready, _ = ray.wait(list(running), timeout=0.5)
                for handle in ready:
                    job = running.pop(handle)
                    try:
                        answer = ray.get(handle)
                    except ray.exceptions.RayError as error:
                        if attempts[job.key] <= resources.retries:
                            view.lost(job, _first_line(error))
                            start(job)
                            continue
                        answer = {"result": "failed", "message": _first_line(error)}
                    outcomes[job.key] = _outcome(job, answer, attempts[job.key])
                    view.ended(job)
                view.refresh()
        except KeyboardInterrupt:
            view.say("Stopping: every run saves first (Ctrl-C again does not wait).")
            for handle in running:
                ray.cancel(handle, force=False)
            ray.wait(list(running), num_returns=len(running), timeout=CANCEL_SECONDS)


@contextlib.contextmanager
def _ray(resources: Resources) -> Iterator[Any]:
    """Ray, connected to the cluster or started here; shut down afterwards in any case."""
    # Ray reads these when it starts: no telemetry, and no FutureWarning about CUDA devices.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update({name: os.environ.get(name, value) for name, value in quiet.items()})
    ray = optional_import("ray", "sweep")
    if ray.is_initialized():
        raise PbrlError("This process is connected to Ray already; a sweep starts its own.")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if resources.address is None:
        options |= {
            "num_cpus": resources.workers,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        options["address"] = resources.address
    try:
        with warnings.catch_warnings():
            # Ray leaves its log files and sockets to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            _start_ray(ray, options, resources.address)
            try:
                yield ray
            finally:
                ray.shutdown()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _start_ray(ray: Any, options: dict[str, Any], address: str | None) -> None:
    """``ray.init``, tried again: it gives its daemons 30 s, too few on a busy machine."""
    attempts = 3 if address is None else 1
    for attempt in range(1, attempts + 1):
        try:
            ray.init(**options)
            return
        except Exception as error:  # Ray raises plain Exceptions, too
            ray.shutdown()
            if attempt == attempts:
                where = "on this machine" if address is None else f"at {address}"
                raise PbrlError(
                    f"Cannot start or reach Ray {where}: {_first_line(error)} (--workers 1 does "
                    "without Ray.)"
                ) from error


def _require_room(ray: Any, cpus: int, memory: int, gpus: float) -> None:
    """Refuse at once what Ray would wait for forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    need = {"CPU": float(cpus), "memory": float(memory), "GPU": float(gpus)}
    if any(all(node.get(k, 0.0) >= v for k, v in need.items()) for node in nodes):
        return
    have = "; ".join(
        f"{n.get('CPU', 0):g} CPU, {n.get('memory', 0) / 1e9:.1f} GB, {n.get('GPU', 0):g} GPU"
        for n in nodes
    )
    raise PbrlError(
        f"No machine of the cluster has room for a run of {cpus} CPU, {memory / 1e9:.1f} GB and "
        f"{gpus:g} GPU (machines: {have}); lower --threads, --memory-gb or --gpus."
    )


# ---------------------------------------------------------------------------- small things


def _stored_failure(job: Job) -> str | None:
    try:
        return str(json.loads((job.run_dir / FAILURE).read_text())["message"])
    except (OSError, ValueError, KeyError):
        return None


def _outcome(job: Job, answer: dict[str, str], attempts: int) -> Outcome:
    result: Any = answer["result"]
    return Outcome(job, result, answer["message"], attempts)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A fault inside a task ends with the fault itself; Ray's own begin with the reason.
    if not lines:
        return type(error).__name__
    return lines[-1] if "Traceback" in str(error) else lines[0]
