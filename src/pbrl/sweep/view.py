"""What the user sees of a sweep: a live table on a terminal, a line for every event elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pbrl.sweep.jobs import Job
from pbrl.training.metrics import latest_metrics

COLOURS = {"done": "green", "running": "cyan", "diverged": "red", "failed": "red"}
ROWS = 40


@dataclass(frozen=True)
class Progress:
    """How far a run is, from its metrics.

    Attributes:
        step: of the last record.
        steps_per_second: in the last record of training.
        score: last normalised score, or return where there is none.
    """

    step: int = 0
    steps_per_second: float | None = None
    score: float | None = None


def read_progress(run_dir: Path) -> Progress:
    """Progress by the newest metrics."""
    last = latest_metrics(run_dir)
    score = last.get("score_mean", last.get("return_mean"))
    return Progress(last.get("step", 0), last.get("steps_per_second"), score)


class SweepView:
    """Shows the state of all jobs; use as a context.

    Args:
        jobs: all of them.
        outcomes: of the jobs that ended, by key; filled by the sweep as it goes.
        console: where to show it.
        quiet: show nothing.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        outcomes: Mapping[str, Any],
        console: Console,
        quiet: bool = False,
    ) -> None:
        self.jobs, self.outcomes, self.console, self.quiet = jobs, outcomes, console, quiet
        self._start = time.time()
        self._started: set[str] = set()
        self._live: Live | None = None

    def __enter__(self) -> SweepView:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(console=self.console, refresh_per_second=2, transient=False)
            self._live.start()
            self.refresh()
        elif not self.quiet and self.outcomes:
            self.say(f"{len(self.outcomes)} of {len(self.jobs)} runs are already there.")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refresh()
        if self._live is not None:
            self._live.stop()

    def started(self, job: Job) -> None:
        """A job begins in this process."""
        self._started.add(job.key)

    def ended(self, job: Job) -> None:
        """A job has an outcome."""
        outcome = self.outcomes[job.key]
        if self._live is None:
            score = read_progress(job.run_dir).score
            tail = "" if score is None else f"  score {score:.1f}"
            message = f"  {outcome.message}" if outcome.message else ""
            count = f"[{len(self.outcomes)}/{len(self.jobs)}]"
            self.say(f"{count} {outcome.result}: {job.run_dir.name}{tail}{message}")

    def lost(self, job: Job, reason: str) -> None:
        """A job's worker was lost; it will be started again."""
        self.say(f"lost: {job.run_dir.name} ({reason}); starting it again from its checkpoint")

    def say(self, sentence: str) -> None:
        """Print a sentence above the table."""
        if not self.quiet:
            self.console.print(sentence, soft_wrap=True, markup=False)

    def refresh(self) -> None:
        """Draw the table again."""
        if self._live is not None:
            self._live.update(self.table())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the table moving while a run occupies this thread."""
        if self._live is None:
            yield
            return
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(1.0):
                self.refresh()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def state(self, job: Job) -> str:
        """queued, running or how it ended."""
        if job.key in self.outcomes:
            return str(self.outcomes[job.key].result)
        if job.key in self._started:
            return "running"
        try:  # a worker writes this file when it begins
            begun = (job.run_dir / "worker.json").stat().st_mtime >= self._start - 1
        except OSError:
            begun = False
        return "running" if begun else "queued"

    def table(self) -> Table:
        """All jobs, those that move first, and the whole sweep in the caption."""
        table = Table(title="sweep", title_justify="left")
        for column in ("run", "settings", "state", "step", "steps/s", "score", "left"):
            table.add_column(column, justify="left" if column in ("run", "settings") else "right")
        states = {job.key: self.state(job) for job in self.jobs}
        progress = {job.key: read_progress(job.run_dir) for job in self.jobs}
        order = ("running", "failed", "diverged", "interrupted", "queued", "done")
        ranked = sorted(self.jobs, key=lambda job: order.index(states[job.key]))
        for job in ranked[:ROWS]:
            state, now, name = states[job.key], progress[job.key], Path(job.config.dataset).name
            colour = COLOURS.get(state, "dim")
            rate = now.steps_per_second
            moving = state == "running" and rate
            table.add_row(
                Text(f"{name} {job.config.algorithm} seed {job.config.seed}"),
                Text(job.label),
                Text(state, style=colour),
                f"{now.step:,}/{job.config.steps:,}",
                f"{rate:.1f}" if rate and moving else "",
                "" if now.score is None else f"{now.score:.1f}",
                clock((job.config.steps - now.step) / rate) if rate and moving else "",
            )
        table.caption = self._caption(states, progress)
        return table

    def _caption(self, states: dict[str, str], progress: dict[str, Progress]) -> str:
        counts = {name: list(states.values()).count(name) for name in set(states.values())}
        parts = [f"{count} {name}" for name, count in sorted(counts.items())]
        if len(self.jobs) > ROWS:
            parts.append(f"{ROWS} of {len(self.jobs)} shown")
        rate = sum(
            progress[job.key].steps_per_second or 0
            for job in self.jobs
            if states[job.key] == "running"
        )
        left = sum(
            job.config.steps - progress[job.key].step
            for job in self.jobs
            if states[job.key] in ("running", "queued")
        )
        if rate:
            parts.append(f"{rate:.1f} steps/s in all, about {clock(left / rate)} left")
        return ", ".join(parts)


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
