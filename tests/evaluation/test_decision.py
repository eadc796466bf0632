"""Deploy or not, where the answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paid_log import always, paid_by_action

from pbrl.errors import PbrlError
from pbrl.evaluation.decision import decide
from pbrl.evaluation.estimate import Opinion
from pbrl.evaluation.fqe import FQEConfig
from pbrl.evaluation.opinions import Evidence

SMALL = FQEConfig(
    gamma=0.9, hidden=(32,), ensemble_size=4, steps=600, batch_size=64, tau=0.1, learning_rate=3e-3
)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return Evidence(paid_by_action(200), SMALL)


def test_a_better_policy_is_deployed_and_a_worse_one_is_not(evidence: Evidence) -> None:
    log = evidence.dataset
    better = decide(always(0.3), log, evidence=evidence)
    assert better.deploy, better.reasons
    assert better.verdict == "deploy"
    assert 0 < better.lower_bound < 3.0  # the truth
    drift = abs(better.opinions["fqe"].details["drift"])
    bounds = [better.opinions[method].bound(0.95) for method in ("fqe", "dr")]
    assert better.lower_bound == pytest.approx(min(bounds) - drift)
    worse = decide(always(-0.3), log, evidence=evidence)
    assert not worse.deploy
    assert any("cannot exclude" in reason for reason in worse.reasons)
    same = decide(lambda s: 0.2 * s, log, evidence=evidence)
    assert not same.deploy
    assert len(better.to_json()["cannot_see"]) >= 4


def test_another_policy_can_be_the_baseline(evidence: Evidence) -> None:
    log = evidence.dataset
    found = decide(
        always(0.3), log, evidence=evidence, baseline=always(0.45), baseline_name="runs/old"
    )
    assert not found.deploy
    assert found.opinions["dr"].difference == pytest.approx(-1.5, abs=0.6)
    assert "runs/old" in found.reasons[0]


def test_where_the_log_has_nothing_there_is_no_conclusion() -> None:
    log = paid_by_action(40, noise=0.1)
    found = decide(always(0.9), log, SMALL, warnings=("one",))
    assert not found.deploy
    assert found.unlike > 0.9
    assert any("no conclusion" in reason for reason in found.reasons)
    assert found.warnings[0] == "one"
    few = decide(always(0.3), paid_by_action(8), SMALL)
    assert not few.deploy
    assert "Only 8 episodes judge" in few.reasons[0]


class Foretold(Evidence):
    """Says what the test wants to hear."""

    def __init__(self, opinions: dict[str, Opinion]) -> None:
        self.foretold, self.episodes, self.config = opinions, 100, SMALL

    def opinions(self, policy: object, fit: object = None) -> dict[str, Opinion]:
        return self.foretold

    def unlike(self, policy: object) -> float:
        return 0.0


def opinion(method: str, difference: float, effective: float = 100.0) -> Opinion:
    noise = np.random.default_rng(0).normal(0, 0.1, 1000)
    details = {"drift": 0.0, "weighted_steps": 5, "reach": 0.5}
    return Opinion(
        method, difference, 0.0, difference + noise, 0 * noise, False, effective, details=details
    )


def test_every_condition_is_needed() -> None:
    log = paid_by_action(2)
    sure = {m: opinion(m, 1.0) for m in ("fqe", "wis", "pdis", "dr", "model")}
    assert decide(always(0), log, evidence=Foretold(sure)).deploy
    for method in ("fqe", "dr"):
        unsure = sure | {method: opinion(method, 0.1)}
        assert not decide(always(0), log, evidence=Foretold(unsure)).deploy
    for method in ("wis", "pdis", "model"):
        found = decide(always(0), log, evidence=Foretold(sure | {method: opinion(method, -1.0)}))
        assert not found.deploy
        assert f"{method} says the policy is worse" in found.reasons[0]
        assert any(method in sentence for sentence in found.disagreements)
        # Few effective episodes contradict nothing.
        quiet = sure | {method: opinion(method, -1.0, effective=3.0)}
        assert decide(always(0), log, evidence=Foretold(quiet)).deploy
    moving = replace(sure["fqe"], details={"drift": -0.9})
    found = decide(always(0), log, evidence=Foretold(sure | {"fqe": moving}))
    assert not found.deploy
    assert found.lower_bound < 0
    lost = replace(sure["dr"], details={"weighted_steps": 0, "reach": 0.0})
    found = decide(always(0), log, evidence=Foretold(sure | {"dr": lost}))
    assert "first step" in found.reasons[0]


def test_bad_levels_are_refused(evidence: Evidence) -> None:
    with pytest.raises(PbrlError, match="level"):
        decide(always(0), evidence.dataset, evidence=evidence, level=0.3)
