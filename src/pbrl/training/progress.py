"""What the user sees while a run is going: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

# Seconds until the first line of a run, and between lines.
FIRST_LINE, BETWEEN_LINES = 3.0, 10.0
BETWEEN_BARS = 0.1


def duration(seconds: float) -> str:
    """A time to wait, no finer than anybody can know it: ``40 s``, ``12 min``, ``3.5 hours``."""
    for unit, size, digits in (("days", 86400, 1), ("hours", 3600, 1), ("min", 60, 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def clock_time(seconds: float) -> str:
    """The time of day in so many seconds; with the date if that is not today."""
    then = time.localtime(time.time() + seconds)
    today = time.strftime("%Y-%m-%d") == time.strftime("%Y-%m-%d", then)
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


class TrainingProgress:
    """Shows step, speed, time left, last score, Q and U.

    Args:
        total: steps of the run.
        done: steps already done.
        console: where to show it.
        quiet: show nothing.
    """

    def __init__(self, total: int, done: int, console: Console, quiet: bool = False) -> None:
        self.total, self.console, self.quiet = total, console, quiet
        self._start, self._done_at_start = time.monotonic(), done
        self._next_line, self._next_bar = time.monotonic() + FIRST_LINE, 0.0
        self._values: dict[str, float] = {}
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("[bold]{task.completed:,}/{task.total:,}"),
                BarColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
                console=console,
            )
            self._task = self._bar.add_task("", total=total, completed=done, rate="", text="")
            self._bar.start()

    def update(self, step: int, values: dict[str, Any] | None = None) -> None:
        """Show ``step`` and the newest metrics."""
        if values:
            self._values |= values
        now = time.monotonic()
        if self._bar is not None and self._task is not None:
            if not values and now < self._next_bar:
                return
            self._next_bar = now + BETWEEN_BARS
            self._bar.update(
                self._task, completed=step, rate=f"{self.rate(step):.3g}/s", text=self._text()
            )
        elif not self.quiet:
            spoken = values and (step == self.total or "return_mean" in values)
            if spoken or now >= self._next_line:
                self._next_line = now + BETWEEN_LINES
                self.console.print(
                    f"step {step:,}/{self.total:,}  {self.rate(step):.3g} steps/s  "
                    f"{self._left(step)}  {self._text()}",
                    soft_wrap=True,
                )

    def extend(self, total: int) -> None:
        """The run has another length from now on."""
        self.total = total
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total)

    def say(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        if not self.quiet:
            self.console.print(sentence, soft_wrap=True, markup=False)

    def rate(self, step: int) -> float:
        """Steps per second since the start, evaluations included."""
        return (step - self._done_at_start) / max(1e-9, time.monotonic() - self._start)

    def _left(self, step: int) -> str:
        seconds = (self.total - step) / max(1e-9, self.rate(step))
        if step == self.total:
            return "done"
        return f"{duration(seconds)} left, until about {clock_time(seconds)}"

    def _text(self) -> str:
        parts = []
        names = {"score_mean": "score", "return_mean": "return", "q_data": "Q", "u_data": "U"}
        for name, label in names.items():
            if name in self._values and not (
                name == "return_mean" and "score_mean" in self._values
            ):
                parts.append(f"{label} {self._values[name]:.4g}")
        return "  ".join(parts)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
