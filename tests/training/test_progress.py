"""What is shown while a run is going: from the first seconds on, and no finer than it is known."""

from __future__ import annotations

import io
import time as progress_time
from types import SimpleNamespace

import pytest
from rich.console import Console

from pbrl.training import progress
from pbrl.training.progress import TrainingProgress, duration


class Watch:
    """Time that the test makes pass; the wall clock stands at noon."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        noon = 1_700_000_000.0 // 86400 * 86400 + 43200
        shown = SimpleNamespace(
            monotonic=lambda: self.now,
            time=lambda: noon,
            localtime=lambda seconds: progress_time.gmtime(seconds),
            strftime=lambda how, at=None: progress_time.strftime(
                how, progress_time.gmtime(noon) if at is None else at
            ),
        )
        monkeypatch.setattr(progress, "time", shown)


def test_lines_come_by_the_clock_before_anything_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, out = Watch(monkeypatch), io.StringIO()
    shown = TrainingProgress(1000, 0, Console(file=out, width=200))
    for step in range(1, 31):
        watch.now += 1
        shown.update(step)
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["3/1,000", "13/1,000", "23/1,000"]
    assert "1 steps/s  17 min left, until about 12:16" in lines[0]


def test_a_run_of_days_is_told_with_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, out = Watch(monkeypatch), io.StringIO()
    shown = TrainingProgress(1_000_000, 0, Console(file=out, width=200))
    watch.now = 5.0
    shown.update(10)
    assert "2 steps/s  5.8 days left, until about 2023-11-20 06:53" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"), [(4, "4 s"), (119, "119 s"), (754, "13 min"), (9000, "2.5 hours")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
