"""The runs of a sweep from best to worst, without a simulator: by what ``pbrl decide`` can show.

Every run of a dataset is judged by the same episodes, which none of them should have learned from
(``hold_out`` in the sweep's settings). The level of the bounds is divided among the runs, so that
all of them hold at once, and the first one's as well: the best of many bounds at 95 % would be too
good to be true more often than in 5 % of sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pbrl.evaluation.decision import Decision, check_level
from pbrl.evaluation.fqe import FQEConfig
from pbrl.evaluation.opinions import Evidence
from pbrl.training.decision_of_run import decide_run, discount_of
from pbrl.training.run import Run


@dataclass(frozen=True)
class Ranked:
    """A run and what was decided of it."""

    path: Path
    dataset: str
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"run": str(self.path), "dataset": self.dataset, **self.decision.to_json()}


def rank_runs(
    paths: Iterable[Path],
    config: FQEConfig | None = None,
    *,
    level: float = 0.95,
    on_run: Callable[[Path], None] = lambda path: None,
) -> list[Ranked]:
    """Runs by the lower bound of their difference to the log, best first, dataset by dataset.

    Args:
        paths: run directories; each once.
        config: of the fits; the discount of a dataset's runs is its first run's.
        level: at which all bounds of a dataset hold together.
        on_run: called before each run.
    """
    check_level(level)
    groups: dict[str, list[Run]] = {}
    for path in dict.fromkeys(paths):
        run = Run.open(path)
        groups.setdefault(str(run.info["data"]["fingerprint"]), []).append(run)
    found: list[Ranked] = []
    for runs in groups.values():
        settings = replace(config or FQEConfig(), gamma=discount_of(runs[0]))
        each = 1 - (1 - level) / len(runs)
        known: dict[str, Evidence] = {}
        ranked = []
        for run in runs:
            on_run(run.path)
            decision = decide_run(
                run.path, level=each, config=settings, known=known, ask_guard=False
            )
            ranked.append(Ranked(run.path, str(run.info["data"]["name"]), decision))
        found += sorted(
            ranked,
            key=lambda r: (r.decision.lower_bound, r.decision.opinions["fqe"].difference),
            reverse=True,
        )
    return found
