"""What the user sees while a run is going: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


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
        self._last_line = time.monotonic()
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
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=step, rate=f"{self.rate(step):.1f}/s", text=self._text()
            )
        elif values and not self.quiet:
            now = time.monotonic()
            if now - self._last_line >= 10 or step == self.total or "return_mean" in values:
                self._last_line = now
                self.console.print(
                    f"step {step:,}/{self.total:,}  {self.rate(step):.1f} steps/s  "
                    f"{self._left(step)} left  {self._text()}",
                    soft_wrap=True,
                )

    def say(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        if not self.quiet:
            self.console.print(sentence, soft_wrap=True, markup=False)

    def rate(self, step: int) -> float:
        """Steps per second since the start, evaluations included."""
        return (step - self._done_at_start) / max(1e-9, time.monotonic() - self._start)

    def _left(self, step: int) -> str:
        seconds = int((self.total - step) / max(1e-9, self.rate(step)))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

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
