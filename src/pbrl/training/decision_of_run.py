"""A run judged by episodes it has not learned from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.data.dataset import TransitionDataset
from pbrl.data.episodes import choose_episodes, pick_episodes
from pbrl.errors import PbrlError
from pbrl.evaluation.decision import Decision, check_level, decide
from pbrl.evaluation.fqe import FQEConfig
from pbrl.evaluation.opinions import Evidence
from pbrl.training.config import HOLD_OUT_SEED, TrainConfig, from_json
from pbrl.training.run import Run

HELD_OUT = 0.3


@dataclass(frozen=True)
class Judges:
    """The episodes that judge a run.

    Attributes:
        episodes: raw.
        unseen: whether the run has not learned from them.
        sentence: where they come from.
    """

    episodes: TransitionDataset
    unseen: bool
    sentence: str


def judges_of_run(run: Run, dataset: str | None = None, share: float = HELD_OUT) -> Judges:
    """The episodes to judge ``run`` by, before anything is fitted.

    Args:
        run: trained, best with ``hold_out``.
        dataset: other data; the run's own when omitted.
        share: of the episodes to take where the run has learned from all of them.
    """
    config = _read(run)
    try:
        whole = config.load_whole(dataset)
    except PbrlError as error:
        hint = "" if dataset else " Name the data with --dataset."
        raise PbrlError(f"{error}{hint}") from error
    data = run.info["data"]
    sizes = (whole.observation_dim, whole.action_dim)
    if sizes != (data["observation_dim"], data["action_dim"]):
        raise PbrlError(
            f"The data have {sizes[0]} observation and {sizes[1]} action dimensions, the run has "
            f"{data['observation_dim']} and {data['action_dim']}."
        )
    numbers = list(data.get("held_out_episodes", []))
    total = sum(1 for _ in whole.episodes())
    own = bool(numbers) and numbers[-1] < total
    if own and config.training_part(whole).fingerprint == data["fingerprint"]:
        said = f"{len(numbers)} of {total} episodes, which the run left out of its training"
        return Judges(pick_episodes(whole, numbers), True, said)
    if whole.fingerprint == data["fingerprint"]:
        chosen = choose_episodes(total, share, HOLD_OUT_SEED)
        said = f"{len(chosen)} of {total} episodes, from which the run learned too"
        return Judges(pick_episodes(whole, chosen), False, said)
    said = f"all {total} episodes of data other than those the run learned from"
    return Judges(whole, True, said)


def decide_run(
    path: str | Path,
    *,
    step: int | None = None,
    dataset: str | None = None,
    baseline: str = "log",
    level: float = 0.95,
    held_out: float = HELD_OUT,
    config: FQEConfig | None = None,
    known: dict[str, Evidence] | None = None,
    ask_guard: bool = True,
) -> Decision:
    """Whether a run is better than the log, or than another run.

    Args:
        path: the run directory.
        step: a kept checkpoint; the newest when omitted.
        dataset: other data to judge by than the run's own.
        baseline: ``log``, or the directory of another run.
        level: of every one-sided bound.
        held_out: share of the episodes that judge where the run was trained on all of them.
        config: of the fits; the run's discount and the defaults when omitted.
        known: what was fitted to judging episodes before, by their fingerprint; filled here.
        ask_guard: whether the run's guard shall judge its actions; it may have to be fitted first.
    """
    check_level(level)
    run = Run.open(path)
    other_run = None if baseline == "log" else Run.open(baseline)
    judges = judges_of_run(run, dataset, held_out)
    agent = run.agent(step)
    config = config or FQEConfig(gamma=discount_of(run))
    known = {} if known is None else known
    key = f"{judges.episodes.fingerprint} {config}"
    evidence = known.get(key)
    if evidence is None:
        evidence = known[key] = Evidence(judges.episodes, config)
    warnings = [f"Judged by {judges.sentence}."]
    if not judges.unseen:
        warnings.append(
            "The run has learned from the episodes that judge it, so what was luck in them looks "
            "like skill: train with --hold-out 0.3 for an answer to rely on."
        )
    other = None
    if other_run is not None:
        other = other_run.agent()
        if (other.observation_dim, other.action_dim) != (agent.observation_dim, agent.action_dim):
            raise PbrlError(f"The baseline {baseline} has other dimensions than the run.")
        if judges.unseen and not _left_out(other_run, judges, run):
            warnings.append(f"The baseline {baseline} may have learned from these episodes.")

    def beyond_guard() -> float:
        s = np.asarray(judges.episodes.observations)
        return float(agent.guard(s, agent.act(s)).alarm.mean())

    guard = None
    if ask_guard:
        try:
            agent.require_guard()
            guard = beyond_guard
        except PbrlError as error:
            warnings.append(f"The guard was not asked: {error}")
    return decide(
        agent.act,
        judges.episodes,
        level=level,
        baseline=None if other is None else other.act,
        baseline_name="the log" if other is None else baseline,
        evidence=evidence,
        beyond_guard=guard,
        warnings=tuple(warnings),
    )


def discount_of(run: Run) -> float:
    """The run's own discount; algorithms without one have 0.99."""
    return float(getattr(run.config.settings, "gamma", 0.99))


def _read(run: Run) -> TrainConfig:
    values: dict[str, Any] = run.info["config"]
    return from_json(values, str(run.path), complete=True)


def _left_out(other: Run, judges: Judges, run: Run) -> bool:
    """Whether another run held the same episodes out of the same data."""
    mine, theirs = run.info["data"], other.info["data"]
    same = bool(mine["fingerprint"] == theirs["fingerprint"])
    return same and bool(mine.get("held_out_episodes") == theirs.get("held_out_episodes"))
