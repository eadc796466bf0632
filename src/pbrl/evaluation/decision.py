"""Deploy or not: one answer from several opinions, which says no wherever it does not know.

The rule. A policy is called better than the baseline where

1. the log can speak of it (*overlap*): there are enough episodes, the policy mostly acts as the log
   has acted, and importance sampling reaches at least the first step;
2. fitted Q evaluation and doubly robust importance sampling both put the lower bound of the
   *difference* above 0; the lower of the two is the bound that counts, less what the fit, which
   both rest on, still moved over the last fifth of its steps;
3. no other opinion that rests on enough episodes puts its upper bound below 0.

Anything else is "not shown to be better", with the reasons. How often this is wrong was measured;
see docs/decide.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pbrl.data.dataset import TransitionDataset
from pbrl.errors import PbrlError
from pbrl.evaluation.estimate import Opinion, finite_or_none
from pbrl.evaluation.fqe import FQEConfig, Policy
from pbrl.evaluation.opinions import LEAST_EFFECTIVE, Evidence, against

DECISIVE = ("fqe", "dr")
MOST_UNLIKE = 0.2  # share of logged states where the policy may act as 99 % of the log does not
LEAST_EPISODES = 20

CANNOT_SEE = (
    "Causes that were not logged: if whoever acted knew something that is not among the "
    "observations, good outcomes may be credited to the wrong actions.",
    "A changed world: everything here is about the system as it was when the log was written.",
    "Places the log never went: a policy that drifts away from the logged states meets values "
    "that were extrapolated. The guard (pbrl export) watches for this while the policy runs.",
    "What the reward leaves out: a policy is better here if it earns more of the logged reward.",
    "Rare disasters: what happened in none of the logged episodes weighs nothing.",
)


@dataclass(frozen=True)
class Decision:
    """The answer and what it rests on.

    Attributes:
        deploy: whether the policy was shown to be better than the baseline.
        reasons: why, or why not, in sentences.
        baseline: what the policy was compared with.
        level: of every one-sided bound.
        gamma: discount of the values.
        lower_bound: of the difference; the lower of the decisive methods', less the fit's drift.
        opinions: every method's, by its name.
        episodes: how many judged.
        unlike: share of logged states where the policy acts as 99 % of the log does not.
        beyond_guard: share of them where the run's guard warns of the policy's action; None where
            it was not asked.
        disagreements: sentences on methods whose bounds exclude one another.
        warnings: more sentences a reader should see before believing the answer.
    """

    deploy: bool
    reasons: tuple[str, ...]
    baseline: str
    level: float
    gamma: float
    lower_bound: float
    opinions: dict[str, Opinion]
    episodes: int
    unlike: float
    beyond_guard: float | None
    disagreements: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """In a word."""
        return "deploy" if self.deploy else "not shown to be better"

    @property
    def overlap(self) -> str:
        """How much of what the policy does the log has seen, in a sentence."""
        said = (
            f"Overlap: in {self.unlike:.1%} of the states of {self.episodes} episodes the policy "
            "acts as 99 % of the log does not"
        )
        if self.beyond_guard is not None:
            said += f"; the run's guard warns of {self.beyond_guard:.1%} of its actions"
        robust = self.opinions["dr"].details
        return said + (
            f". Weighted episodes last for {robust['weighted_steps']} steps, "
            f"{robust['reach']:.0%} of the discounted weight."
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return {
            "verdict": self.verdict,
            "deploy": self.deploy,
            "reasons": list(self.reasons),
            "baseline": self.baseline,
            "level": self.level,
            "gamma": self.gamma,
            "difference_lower_bound": finite_or_none(self.lower_bound),
            "episodes": self.episodes,
            "share_of_actions_unlike_the_log": self.unlike,
            "share_beyond_the_guard": self.beyond_guard,
            "opinions": {name: o.to_json(self.level) for name, o in self.opinions.items()},
            "disagreements": list(self.disagreements),
            "warnings": list(self.warnings),
            "cannot_see": list(CANNOT_SEE),
        }


def decide(
    policy: Policy,
    dataset: TransitionDataset,
    config: FQEConfig | None = None,
    *,
    level: float = 0.95,
    baseline: Policy | None = None,
    baseline_name: str = "the log",
    evidence: Evidence | None = None,
    beyond_guard: Callable[[], float] | None = None,
    warnings: tuple[str, ...] = (),
) -> Decision:
    """Whether ``policy`` is better than the log or than another policy.

    Args:
        policy: raw observations ``[B, S]`` to raw actions ``[B, A]``.
        dataset: episodes the policy was not learned from; they alone judge.
        config: of the fits; its level is not read.
        level: of every one-sided bound.
        baseline: another policy; the policy that wrote the log when omitted.
        baseline_name: how sentences call it.
        evidence: what was fitted to the same data already.
        beyond_guard: measures the share of the policy's actions that the run's guard warns of.
        warnings: sentences to pass on.
    """
    check_level(level)
    evidence = evidence or Evidence(dataset, config)
    opinions = evidence.opinions(policy)
    if baseline is not None:
        others = evidence.opinions(baseline)
        opinions = {name: against(o, others[name]) for name, o in opinions.items()}
    unlike = evidence.unlike(policy)
    guarded = None if beyond_guard is None else beyond_guard()
    drift = abs(opinions["fqe"].details["drift"])
    bounds = {name: opinions[name].bound(level) - drift for name in DECISIVE}
    lower = min(bounds.values())
    against_it = [
        *overlap_troubles(evidence.episodes, unlike, opinions["dr"]),
        *_too_low(bounds, baseline_name),
        *_contradictions(opinions, level, baseline_name),
    ]
    if against_it:
        reasons = tuple(against_it)
    else:
        reasons = (
            f"With {level:.0%} confidence the policy is worth at least {lower:.4g} more than "
            f"{baseline_name}, by fitted Q evaluation and by doubly robust importance sampling.",
        )
    said = dict.fromkeys(note for o in opinions.values() for note in o.notes)
    return Decision(
        not against_it,
        reasons,
        baseline_name,
        level,
        evidence.config.gamma,
        lower,
        opinions,
        evidence.episodes,
        unlike,
        guarded,
        tuple(_disagreements(opinions, level)),
        (*warnings, *said),
    )


def check_level(level: float) -> None:
    """Refuse what is no level of a bound."""
    if not 0.5 < level < 1:
        raise PbrlError(f"The level of a bound lies between 0.5 and 1, got {level:g}.")


def overlap_troubles(episodes: int, unlike: float, robust: Opinion) -> list[str]:
    """Why the log cannot speak of the policy; empty where it can."""
    troubles = []
    if episodes < LEAST_EPISODES:
        troubles.append(
            f"Only {episodes} episodes judge, and bounds over fewer than {LEAST_EPISODES} mean "
            "little: no conclusion. Hold out more, or log more."
        )
    if unlike > MOST_UNLIKE:
        troubles.append(
            f"In {unlike:.0%} of logged states the policy acts as 99 % of the log does not: the "
            "log cannot say what would happen, and there is no conclusion."
        )
    if not robust.details["weighted_steps"]:
        troubles.append(
            f"Already at the first step the log's episodes count as fewer than "
            f"{LEAST_EFFECTIVE:g} for this policy: there is no conclusion."
        )
    return troubles


def _too_low(bounds: dict[str, float], baseline: str) -> list[str]:
    names = {"fqe": "Fitted Q evaluation", "dr": "Doubly robust importance sampling"}
    return [
        f"{names[name]} cannot exclude that the policy is worse than {baseline}: "
        + (
            f"the lower bound of the difference is {bounds[name]:.4g}."
            if math.isfinite(bounds[name])
            else "the difference has no lower bound."
        )
        for name in DECISIVE
        if not bounds[name] > 0
    ]


def _usable(opinion: Opinion) -> bool:
    return opinion.effective >= LEAST_EFFECTIVE


def _contradictions(opinions: dict[str, Opinion], level: float, baseline: str) -> list[str]:
    return [
        f"{name} says the policy is worse than {baseline} (by at least "
        f"{-opinion.bound(level, upper=True):.4g})."
        for name, opinion in opinions.items()
        if name not in DECISIVE and _usable(opinion) and opinion.bound(level, upper=True) < 0
    ]


def _disagreements(opinions: dict[str, Opinion], level: float) -> list[str]:
    """Pairs of methods that cannot both be right about the difference."""
    usable = [o for o in opinions.values() if _usable(o)]
    found = []
    for i, one in enumerate(usable):
        for other in usable[i + 1 :]:
            high, low = sorted((one, other), key=lambda o: -o.difference)
            if high.bound(level) > low.bound(level, upper=True):
                found.append(
                    f"{high.method} puts the difference above {high.bound(level):.4g}, "
                    f"{low.method} below {low.bound(level, upper=True):.4g}."
                )
    return found
