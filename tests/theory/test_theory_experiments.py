"""The experiments end as the theory predicts, and could have ended otherwise."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from pbrl.theory import LinearMDP, clopper_pearson, greedy_policy, uniform_policy
from pbrl.theory.experiments import EXPERIMENTS, Claim
from pbrl.theory.experiments.claims import plain
from pbrl.theory.experiments.corollary1 import _compare, _counterexample
from pbrl.theory.experiments.ood import isotropy, ood_moments
from pbrl.theory.experiments.theorem1 import measure_coverage


@pytest.mark.parametrize("name", ["lemma1", "lemma2", "ood", "theorem1"])
def test_every_verdict_is_as_predicted(name: str) -> None:
    """Exact claims to 1e-10; statistical ones go wrong by chance below once in 10^6 runs.

    Chi-square and Clopper-Pearson limits are set at 10^-6 inside the experiments; the slope, the
    bias of ten members and the settling of β have margins of six standard errors or more.
    """
    experiment = EXPERIMENTS[name][0](12345)
    assert [c.statement for c in experiment.claims if not c.as_predicted] == []
    json.dumps(experiment.as_json())


def test_coverage_holds_and_a_quarter_of_beta_does_not() -> None:
    """1000 datasets, all φ at once; the two limits are each wrong by chance below 10^-7."""
    rng = np.random.default_rng(0)
    mdp = LinearMDP.random(10, 3, 5, 4, rng)
    values = 3.0 * np.repeat([0.0, 1.0], 5)
    behaviour = np.full((10, 3), 1 / 30)
    ood_phi = mdp.features.reshape(-1, 5)[::3]
    result = measure_coverage(mdp, values, behaviour, ood_phi, 60, 1000, (0.1,), rng)
    misses = int(np.sum(result.error > result.explicit[0]))
    assert clopper_pearson(misses, 1000, 1 - 2e-7)[1] < 0.1
    few = int(np.sum(result.error > result.explicit[0] / 4))
    assert clopper_pearson(few, 1000, 1 - 2e-7)[0] > 0.1
    # Without noise there is no error: the true OOD targets alone recover the weights.
    still = measure_coverage(mdp, np.ones(10), behaviour, ood_phi, 60, 5, (0.1,), rng)
    assert still.error.max() < 1e-10


def test_without_the_two_the_corollary_fails_more_often_than_allowed() -> None:
    """All probabilities are exact sums over the number of wins: nothing is sampled."""
    series, (claim,) = _counterexample()
    assert claim.as_predicted
    assert not claim.holds
    assert series["without_two"].max() > 5 * series["xi"]
    assert series["without_two"][0] == 0.0  # a gap of less than one Γ cannot break it
    assert series["with_two"].max() == 0.0
    assert series["quantifier_misses"].max() < 1e-4


def test_pessimism_wins_on_good_data_and_costs_on_random_data() -> None:
    """Paired over 60 MDPs; t is above 10 in size, far beyond the 5 of a one-in-10^6 event."""
    _, claims = _compare(np.random.default_rng(99), mdps=60)
    assert [c.statement for c in claims if not c.as_predicted] == []


def test_corollary_bound_over_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full experiment, with fewer datasets; binomial limit at 10^-6."""
    from pbrl.theory.experiments import corollary1

    monkeypatch.setattr(corollary1, "DATASETS", 120)
    monkeypatch.setattr(corollary1, "SMALL_BETA_DATASETS", 120)
    series, claims = corollary1._measure_bound(np.random.default_rng(7))
    assert [c.statement for c in claims if not c.as_predicted] == []
    for rows in corollary1.SIZES:
        assert np.all(series["gap"][rows] >= -1e-9)
        assert np.all(series["gap"][rows] <= series["bound"][rows])


def test_isotropy_counts_empty_directions() -> None:
    """Two states, two actions, always state 0 and action 0: one pair of four is ever seen."""
    stay = np.zeros((2, 2, 2))
    stay[:, :, 0] = 1.0
    mdp = LinearMDP.tabular(stay, np.array([[1.0, 0.0], [0.0, 0.0]]), 3, np.array([1.0, 0.0]))
    policy = greedy_policy(mdp.optimal_values()[0])
    moments = ood_moments(mdp, policy, policy)
    np.testing.assert_allclose(np.diag(moments["policy actions"]), [1, 0, 0, 0])
    np.testing.assert_allclose(np.diag(moments["uniform actions"]), [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(np.diag(moments["random states and actions"]), [0.25] * 4)
    assert isotropy(moments["random states and actions"]) == pytest.approx(1.0)
    assert isotropy(moments["uniform actions"]) == 0.0
    everywhere = ood_moments(mdp, uniform_policy(3, 2, 2), policy)
    assert isotropy(everywhere["policy actions"]) == 0.0


def test_verdicts_in_words() -> None:
    def verdict(holds: bool, expected: bool) -> tuple[str, bool]:
        claim = Claim("c", "p", "m", holds, expected)
        return claim.verdict, claim.as_predicted

    assert verdict(True, True) == ("holds", True)
    assert verdict(False, False) == ("refuted, as predicted", True)
    assert verdict(False, True) == ("refuted, NOT as predicted", False)
    assert verdict(True, False) == ("holds, NOT as predicted", False)


def test_same_seed_same_numbers() -> None:
    run, _ = EXPERIMENTS["lemma2"]
    assert run(3).as_json() == run(3).as_json()
    assert run(3).as_json() != run(4).as_json()


def test_plain_values_for_json() -> None:
    value = {1: np.array([1.0, np.inf]), "b": (np.int64(2), np.bool_(True))}
    assert plain(value) == {"1": [1.0, None], "b": [2, True]}


def test_the_theory_stands_alone() -> None:
    """No torch, and no matplotlib until something is drawn."""
    code = (
        "import sys, pbrl.theory, pbrl.theory.experiments; "
        "print([m for m in ('torch', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
