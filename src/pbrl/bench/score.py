"""Minutes of one core until a policy earns a stated score: steps a second alone say little.

TD3+BC sets the score: a share of what its own policy earns when its time is over. Every system
trains with its preset ``fast`` for the same CPU time, its schedules over its own number of steps,
and is evaluated at equal distances. Evaluations, and what else the machine does, do not count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pbrl.errors import PbrlError
from pbrl.training.budget import LEAST_STEPS, WARM_UP
from pbrl.training.config import TrainConfig, make_config
from pbrl.training.loop import evaluate_session
from pbrl.training.machine import keep_freed_memory, use_threads, use_wide_products
from pbrl.training.session import Session, open_session
from pbrl.training.timing import seconds_per_step

YARDSTICK = "td3bc"
SYSTEMS = (YARDSTICK, "pbrl-anchored")
SHARE = 0.9
LEAST_SECONDS = 1.0


@dataclass(frozen=True)
class TimedCurve:
    """What one system's policy earned, and when.

    Attributes:
        system: name of the algorithm.
        steps: gradient steps in all.
        minutes: ``[marks]`` CPU minutes of training at each evaluation.
        scores: ``[marks]`` normalised score there, or mean return where none is defined.
    """

    system: str
    steps: int
    minutes: list[float]
    scores: list[float]

    def reached(self, score: float) -> float | None:
        """Minutes at the first evaluation of at least ``score``; None where there is none."""
        return next((t for t, s in zip(self.minutes, self.scores, strict=True) if s >= score), None)


def compare_scores(
    dataset: str,
    minutes: float,
    *,
    systems: Sequence[str] = SYSTEMS,
    marks: int = 20,
    episodes: int = 10,
    seed: int = 0,
    share: float = SHARE,
    advance: Callable[[str], None] = lambda system: None,
) -> dict[str, Any]:
    """Train every system for ``minutes`` of CPU time; when does it reach the yardstick's score?

    Args:
        dataset: a name or path of data whose environment is known.
        minutes: CPU time of each system's training.
        systems: names of algorithms; the first one sets the score.
        marks: evaluations of each.
        episodes: of an evaluation.
        seed: of trainings and evaluations.
        share: of the yardstick's last score.
        advance: told after each evaluation whose it was.
    """
    if not minutes > 0 or marks < 2:
        raise PbrlError("A score takes some --minutes, more than 0, and at least 2 evaluations.")
    curves = [
        train_by_the_clock(system, dataset, minutes, marks, episodes, seed, advance)
        for system in systems
    ]
    last = curves[0].scores[-1]
    if last <= 0:
        raise PbrlError(
            f"{systems[0]} ends at {last:.4g} on '{dataset}', and a share of that says nothing; "
            "give it more --minutes, or other data."
        )
    score = share * last
    return {
        "dataset": Path(dataset).name,
        "minutes": minutes,
        "episodes": episodes,
        "seed": seed,
        "share": share,
        "score": score,
        "systems": [asdict(c) | {"minutes_to_score": c.reached(score)} for c in curves],
    }


def train_by_the_clock(
    system: str,
    dataset: str,
    minutes: float,
    marks: int,
    episodes: int,
    seed: int,
    advance: Callable[[str], None],
) -> TimedCurve:
    """One system's curve."""
    use_threads(1)
    keep_freed_memory()
    use_wide_products()
    with tempfile.TemporaryDirectory() as scratch:
        config = replace(
            make_config(system, "fast", dataset, seed=seed, threads=1, tensorboard=False),
            run_dir=Path(scratch) / "speed",
        )
        seconds = _seconds_a_step(config)
        steps = max(1, round(60 * minutes / seconds / marks)) * marks
        with closing(_open(replace(config, steps=steps, run_dir=Path(scratch) / "run"))) as session:
            evaluator = session.evaluator
            if evaluator is None:
                raise PbrlError(
                    f"'{dataset}' has no environment that could tell a score; give data of a known "
                    "one."
                )
            times, scores, spent = [], [], 0.0
            for _ in range(marks):
                start = time.process_time()
                _train(session, steps // marks)
                spent += time.process_time() - start
                times.append(spent / 60)
                earned = evaluate_session(session, evaluator, episodes)
                scores.append(earned.get("score_mean", earned["return_mean"]))
                advance(system)
    return TimedCurve(system, steps, times, scores)


def _open(config: TrainConfig) -> Session:
    return open_session(config, None, "cpu", 1, None)


def _train(session: Session, steps: int) -> None:
    size = session.config.settings.batch_size
    for _ in range(steps):
        session.algorithm.update(session.data.sample(size, session.sampler))


def _seconds_a_step(config: TrainConfig) -> float:
    """CPU seconds, on a session of its own."""
    with closing(_open(config)) as session:
        return seconds_per_step(
            lambda: _train(session, 1),
            time.process_time,
            LEAST_SECONDS,
            warm_up=WARM_UP,
            least=LEAST_STEPS,
        )
