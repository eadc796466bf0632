"""Aggregates and profiles against rliable's own functions and against hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pbrl.errors import PbrlError
from pbrl.evaluation import statistics as st

SCORES = np.random.default_rng(3).normal(60, 30, (5, 15))


def test_aggregates_by_hand() -> None:
    scores = np.array([[0.0, 40.0, 100.0], [20.0, 60.0, 120.0]])  # 2 runs of 3 tasks
    assert st.mean(scores) == pytest.approx((10 + 50 + 110) / 3)
    assert st.median(scores) == 50
    # six runs, int(0.25 * 6) = 1 cut at each end: 20, 40, 60, 100
    assert st.interquartile_mean(scores) == pytest.approx(55)
    # shortfalls of 50: 50, 10, 0, 30, 0, 0
    assert st.optimality_gap(scores) == pytest.approx(15)


@pytest.mark.parametrize("name", list(st.AGGREGATES))
def test_equal_to_rliable(name: str) -> None:
    from rliable import library, metrics

    theirs = {
        "median": metrics.aggregate_median,
        "IQM": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean,
        "optimality gap": lambda x: metrics.aggregate_optimality_gap(x, gamma=50.0),
    }[name]
    np.random.seed(11)  # noqa: NPY002 - rliable draws from the global generator
    points, intervals = library.get_interval_estimates(
        {"x": SCORES}, lambda x: np.array([theirs(x)]), reps=300
    )
    ours = st.estimate(SCORES, st.AGGREGATES[name], repetitions=300, seed=11)
    assert ours.value == pytest.approx(points["x"][0], abs=1e-12)
    assert [ours.low, ours.high] == pytest.approx(list(intervals["x"][:, 0]), abs=1e-12)


@pytest.mark.parametrize("average", [False, True])
def test_profiles_equal_to_rliable(average: bool) -> None:
    from rliable import library

    taus = np.linspace(-10, 130, 15)
    scores = SCORES.round(-1)  # many equal a threshold: "above" is strict
    np.random.seed(5)  # noqa: NPY002
    shares, bands = library.create_performance_profile(
        {"x": scores}, taus, use_score_distribution=not average, reps=200
    )
    ours = st.performance_profile(scores, taus, average_runs=average, repetitions=200, seed=5)
    np.testing.assert_allclose(ours.share, shares["x"], atol=1e-12)
    np.testing.assert_allclose([ours.low, ours.high], bands["x"], atol=1e-12)


def test_interval_of_the_mean_is_the_textbook_one() -> None:
    """For many runs the interval is mean +- 1.96 standard errors, strata apart."""
    scores = np.random.default_rng(0).normal([[10.0, 500.0]], [[4.0, 1.0]], (400, 2))
    found = st.estimate(scores, st.mean, repetitions=4000)
    error = np.sqrt((scores.var(0) / 400).sum()) / 2  # of the mean of two task means
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.06)
    # Resampling across tasks, the mistake stratification avoids, would be ~60 times as wide.


def test_area_under_the_profile_is_the_mean() -> None:
    positive = np.abs(SCORES)
    taus = np.arange(0, 200, 0.05)
    profile = st.performance_profile(positive, taus, repetitions=2)
    area = float(np.trapezoid(profile.share, taus))
    assert area == pytest.approx(float(positive.mean()), abs=0.05)


def test_same_seed_same_interval() -> None:
    first, again = (st.estimate(SCORES, st.median, 100, seed=1) for _ in range(2))
    assert first == again
    assert first != st.estimate(SCORES, st.median, 100, seed=2)


def test_uneven_runs_are_named() -> None:
    matrix, note = st.score_matrix({"a": [1, 2, 3], "b": [4, 5]})
    assert matrix.tolist() == [[1, 4], [2, 5]]
    assert note is not None
    assert "first 2 of each" in note
    assert st.score_matrix({"a": [1], "b": [2]})[1] is None


@pytest.mark.parametrize(
    "scores", [np.zeros(3), np.zeros((0, 2)), np.array([[1.0, np.nan]])], ids=str
)
def test_bad_scores_are_refused(scores: NDArray[np.float64]) -> None:
    with pytest.raises(PbrlError):
        st.aggregates(scores)
