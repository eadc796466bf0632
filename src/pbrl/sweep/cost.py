"""What a sweep will take: a few updates of every kind of run, timed here, times what is left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pbrl.algorithms import algorithm_class
from pbrl.errors import PbrlError
from pbrl.sweep.jobs import Job
from pbrl.training.checkpoint import list_checkpoints
from pbrl.training.run import SUMMARY
from pbrl.training.timing import update_times


@dataclass(frozen=True)
class Left:
    """What is left of a run.

    Attributes:
        job: the run.
        state: ``finished``, ``half done`` or ``new``.
        steps: left.
        seconds_per_step: on this machine with one thread; None where it could not be timed.
    """

    job: Job
    state: str
    steps: int
    seconds_per_step: float | None

    @property
    def hours(self) -> float | None:
        """Of training; evaluations come on top."""
        if self.seconds_per_step is None:
            return None
        return self.steps * self.seconds_per_step / 3600


def estimate(jobs: Iterable[Job], budget_seconds: float = 1.0) -> list[Left]:
    """What is left of every job, with times measured by ``time_updates``."""
    timed: dict[tuple[object, ...], float | None] = {}
    out = []
    for job in jobs:
        state, done = progress_of(job)
        kind = (job.config.algorithm, job.config.settings, job.observation_dim, job.action_dim)
        if state != "finished" and kind not in timed:
            timed[kind] = time_updates(job, budget_seconds)
        out.append(Left(job, state, max(0, job.config.steps - done), timed.get(kind)))
    return out


def progress_of(job: Job) -> tuple[str, int]:
    """(state, steps safely done) of a job's run directory."""
    if (job.run_dir / SUMMARY).exists():
        return "finished", job.config.steps
    checkpoints = list_checkpoints(job.run_dir / "checkpoints")
    if checkpoints:
        return "half done", int(checkpoints[-1].name.removeprefix("step_"))
    return "new", 0


def time_updates(job: Job, budget_seconds: float = 1.0) -> float | None:
    """CPU seconds of one update with one thread, from random rows of the right shape.

    CPU time, so that the estimate holds for free cores even where this machine is busy.

    Returns None for an algorithm that cannot learn from random rows alone (MOPO's model comes
    first).
    """
    config = job.config
    algorithm = algorithm_class(config.algorithm)(
        config.settings, job.observation_dim, job.action_dim, total_steps=config.steps
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times: list[float] = []
        for seconds in update_times(algorithm, job.observation_dim, job.action_dim):
            times.append(seconds)
            if len(times) >= 2 and (sum(times) >= budget_seconds or len(times) >= 50):
                break
    except (PbrlError, AttributeError, RuntimeError, TypeError):
        return None
    finally:
        torch.set_num_threads(threads)
    return sorted(times)[len(times) // 2]
