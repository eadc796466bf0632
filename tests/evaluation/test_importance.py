"""Importance sampling against hand-computed sums and exactly known values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tabular import TabularMDP

from pbrl.data.dataset import TransitionDataset
from pbrl.evaluation.estimate import Opinion, bootstrap_counts, one_sided
from pbrl.evaluation.importance import (
    Weighted,
    WeightedEpisodes,
    doubly_robust,
    effective_size,
    per_decision,
    weighted_importance_sampling,
)

NONE = np.zeros((0, 2))
NO_DRAWS = np.zeros((0, 150))
GAMMA = 0.9


def two_episodes(second_is_cut: bool = False) -> WeightedEpisodes:
    """Ratios 2, 0.5 and rewards 1, 2; then ratio 3 and reward 4. Where it is cut, 10 follow."""
    s, ends = np.zeros((3, 1), np.float32), np.array([False, True, True])
    terminals = ends & ~np.array([False, False, second_is_cut])
    log = TransitionDataset(s, s, np.array([1, 2, 4], np.float32), s, terminals, ends)
    return WeightedEpisodes.of(
        log,
        0.5,
        np.log([2, 0.5, 3]),
        np.array([np.nan, 10.0]),
        q=np.array([1.5, 1, 5]),
        v=np.array([2.0, 3, 6]),
    )


@pytest.mark.parametrize(
    ("estimator", "whole", "cut", "alone"),
    [
        # Products 1 and 3, returns 1 + 0.5 * 2 and 4: (1 * 2 + 3 * 4) / 4. Cut: 4 + 0.5 * 10.
        (weighted_importance_sampling, 3.5, (2 + 3 * 9) / 4, 2),
        # Step 0: (2 * 1 + 3 * 4) / 5. Step 1: the second episode keeps its weight and earns 0,
        # 0.5 * (1 * 2 + 3 * 0) / 4; where it was cut, 0.5 * (1 * 2 + 3 * 10) / 4.
        (per_decision, 2.8 + 0.25, 2.8 + 4.0, 2),
        # Step 0: (2 + 6) / 2 + (2 * (1 - 1.5) + 3 * (4 - 5)) / 5 = 3.2. Step 1: v weighted as
        # before, (2 * 3 + 3 * 0) / 5, and (1 * (2 - 1)) / 4; cut: v of the second is 10. The
        # first episode alone: 2 + (1 - 1.5) + 0.5 * (3 + (2 - 1)).
        (doubly_robust, 3.2 + 0.5 * (1.2 + 0.25), 3.2 + 0.5 * (7.2 + 0.25), 3.5),
    ],
)
def test_by_hand(
    estimator: Callable[[WeightedEpisodes, Any], Weighted], whole: float, cut: float, alone: float
) -> None:
    assert estimator(two_episodes(), NONE).value == pytest.approx(whole)
    assert estimator(two_episodes(second_is_cut=True), NONE).value == pytest.approx(cut)
    # A bootstrap sample of the first episode twice is that episode alone.
    drawn = estimator(two_episodes(), np.array([[2.0, 0.0]])).draws[0]
    assert drawn == pytest.approx(alone)


def test_influence_is_the_derivative_by_an_episode() -> None:
    for estimator in (weighted_importance_sampling, per_decision, doubly_robust):
        log, small = two_episodes(), 1e-6
        for episode in range(2):
            more = np.ones((1, 2))
            more[0, episode] += small
            moved = estimator(log, more)
            slope = (moved.draws[0] - moved.value) / small
            assert moved.influence[episode] / 2 == pytest.approx(slope, rel=1e-4)


def test_effective_size() -> None:
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.array([1.0, 0, 0])) == pytest.approx(1)
    assert effective_size(np.array([1.0, 3.0])) == pytest.approx(16 / 10)


# ------------------------------------------------------------------- an MDP with known values

MDP = TabularMDP.random()
CHANCES = np.full((5, 3), 0.2) + 0.4 * np.eye(3)[[0, 1, 2, 0, 1]]  # of the policy; the log: 1/3
TRUTH = MDP.value(CHANCES, GAMMA)
Q = MDP.action_values(CHANCES, GAMMA)
V = (CHANCES * Q).sum(1)


def seen(
    seed: int, *, ratios: bool = True, values: bool = True, episodes: int = 150
) -> WeightedEpisodes:
    log = MDP.log(episodes, horizon=15, seed=seed)
    s, a, s2 = (x.argmax(1) for x in (log.observations, log.actions, log.next_observations))
    last = np.array([rows.stop - 1 for rows in log.episodes()])
    log_ratio = np.log(3 * CHANCES[s, a]) if ratios else np.zeros(len(log))
    table = Q if values else np.random.default_rng(0).uniform(0, 4, Q.shape)
    q, v = table[s, a], (CHANCES * table).sum(1)[s]
    return WeightedEpisodes.of(log, GAMMA, log_ratio, V[s2[last]], q, v)


def over_seeds(estimate: Callable[[int], Weighted], seeds: int = 40) -> NDArray[np.float64]:
    return np.array([estimate(seed).value for seed in range(seeds)])


@pytest.mark.parametrize(
    "estimate",
    [
        lambda seed: weighted_importance_sampling(seen(seed), NO_DRAWS),
        lambda seed: per_decision(seen(seed), NO_DRAWS),
        lambda seed: doubly_robust(seen(seed), NO_DRAWS),
        # Right weights repair wrong values, right values need no weights.
        lambda seed: doubly_robust(seen(seed, values=False), NO_DRAWS),
        lambda seed: doubly_robust(seen(seed, ratios=False), NO_DRAWS),
    ],
    ids=["wis", "pdis", "dr", "dr, wrong values", "dr, wrong weights"],
)
def test_close_to_the_exact_value(estimate: Callable[[int], Weighted]) -> None:
    values = over_seeds(estimate)
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - TRUTH) < 3.5 * error + 0.01 * abs(TRUTH)
    assert values.std(ddof=1) < 0.4 * abs(TRUTH)


def test_without_weights_the_log_values_itself() -> None:
    """Equal weights give the log's own mean: what policy and log share is counted alike."""
    log = seen(0, ratios=False)
    returns = np.zeros(150)
    np.add.at(returns, log.owner, GAMMA**log.step * log.rewards)
    for estimator in (weighted_importance_sampling, per_decision):
        assert estimator(log, NO_DRAWS).value == pytest.approx(returns.mean())


def test_doubly_robust_stops_where_too_few_episodes_are_left() -> None:
    log = seen(0)
    every, none = (doubly_robust(log, NO_DRAWS, least) for least in (0, 1e9))
    assert none.steps == 0
    assert none.value == pytest.approx(log.v[log.step == 0].mean())
    some = doubly_robust(log, NO_DRAWS, least=60.0)
    assert 0 < some.steps < every.steps
    assert every.effective[some.steps - 1] >= 60 > every.effective[some.steps]


def test_hopeless_weights_stay_finite() -> None:
    log = two_episodes()
    extreme = WeightedEpisodes(**{**vars(log), "log_ratio": np.array([-9e3, -9e3, 9e3])})
    for estimator in (weighted_importance_sampling, per_decision, doubly_robust):
        found = estimator(extreme, np.array([[2.0, 0.0], [0.0, 2.0]]))
        assert np.isfinite(found.draws).all()
        assert found.effective[-1] == pytest.approx(1)


# ------------------------------------------------------------------- bounds


def test_bounds_hold_at_their_level() -> None:
    """A mean of 25 skewed numbers: the lower bound is above the truth in about 5 % of samples."""
    rng, broken = np.random.default_rng(0), 0
    for seed in range(400):
        sample = rng.exponential(size=25)
        draws = bootstrap_counts(25, 300, seed) @ sample / 25
        bound = one_sided(float(sample.mean()), draws, 0.95, refitted=False, effective=25)
        broken += bound > 1
    assert broken <= 30  # 20 expected of an exact bound, deviation 4.4


def test_a_bound_over_one_episode_says_nothing() -> None:
    draws = np.array([1.0, 1.1, 0.9])
    assert one_sided(1.0, draws, 0.95, refitted=False, effective=1.0) == -np.inf
    assert one_sided(1.0, draws, 0.95, refitted=False, effective=1.9, upper=True) == np.inf
    assert one_sided(1.0, np.array([np.nan, 1]), 0.95, refitted=False, effective=9) == -np.inf


def test_what_policy_and_baseline_share_cancels() -> None:
    luck = np.random.default_rng(0).normal(0, 10, 500)
    opinion = Opinion("wis", 2.0, 1.0, 2 + luck, 1 + luck, False, 50.0)
    assert opinion.bound(0.95) == pytest.approx(1.0)
    low, high = opinion.interval(0.95)
    assert low < -15
    assert high > 19
    assert opinion.to_json(0.95)["difference"] == 1.0
