"""Lemma 1: the posterior, the ensemble that samples it, and the two that do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pbrl.errors import PbrlError
from pbrl.theory import (
    bootstrap_posterior,
    chi_square_interval,
    ensemble_uncertainty,
    lcb_penalty,
    weight_posterior,
)
from pbrl.theory.experiments.lemma1 import conditional_variance

RIDGE = 0.5


def regression(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((25, 4))
    phi[:, 3] = 0.0  # no data in this direction
    return phi, rng.standard_normal(25)


def test_posterior_by_conditioning_the_joint_gaussian() -> None:
    phi, targets = regression()
    mean, precision = weight_posterior(phi, targets, RIDGE)
    gram = phi @ phi.T / RIDGE + np.eye(25)
    np.testing.assert_allclose(mean, phi.T @ np.linalg.solve(gram, targets) / RIDGE, atol=1e-10)
    query = np.random.default_rng(1).standard_normal((6, 4))
    expected = conditional_variance(phi, query, np.eye(4) / RIDGE)
    np.testing.assert_allclose(lcb_penalty(query, precision) ** 2, expected, atol=1e-10)


def test_anchored_members_have_the_posterior_law() -> None:
    """Chi-square for spreads, Gaussian for means: together below 10^-6 by chance."""
    phi, targets = regression()
    members, query = (
        40_000,
        np.vstack([np.eye(4), np.random.default_rng(1).standard_normal((6, 4))]),
    )
    weights = bootstrap_posterior(
        phi, targets, ridge=RIDGE, members=members, rng=np.random.default_rng(2)
    )
    mean, precision = weight_posterior(phi, targets, RIDGE)
    exact = lcb_penalty(query, precision)
    statistic = members * (ensemble_uncertainty(weights, query) / exact) ** 2
    low, high = chi_square_interval(members - 1, 5e-7 / len(query))
    assert np.all((low < statistic) & (statistic < high))
    z = (query @ (weights.mean(axis=0) - mean)) / exact * math.sqrt(members)
    assert np.abs(z).max() < 5.8  # P(|z| > 5.8) < 7e-9 each


def test_the_paper_divides_by_k() -> None:
    weights, phi = np.array([[1.0], [2.0], [6.0]]), np.array([[1.0], [-2.0]])
    spread = math.sqrt((4 + 1 + 9) / 3)
    np.testing.assert_allclose(ensemble_uncertainty(weights, phi), [spread, 2 * spread])


def test_initial_weights_leave_no_spread_once_trained() -> None:
    phi, targets = regression()
    weights = bootstrap_posterior(
        phi,
        targets,
        ridge=RIDGE,
        members=20,
        rng=np.random.default_rng(0),
        method="initial-weights",
    )
    mean, _ = weight_posterior(phi, targets, RIDGE)
    np.testing.assert_allclose(weights, np.tile(mean, (20, 1)), atol=1e-12)


def test_initial_weights_half_trained_are_gradient_descent() -> None:
    phi, targets = regression()
    time, steps = 0.05, 20_000
    weights = bootstrap_posterior(
        phi,
        targets,
        ridge=RIDGE,
        members=3,
        rng=np.random.default_rng(7),
        method="initial-weights",
        training_time=time,
    )
    descended = np.random.default_rng(7).standard_normal((3, 4)) / math.sqrt(RIDGE)
    for _ in range(steps):
        gradient = (descended @ phi.T - targets) @ phi + RIDGE * descended
        descended -= time / steps * gradient
    np.testing.assert_allclose(weights, descended, atol=1e-4)
    assert np.all(ensemble_uncertainty(weights, np.eye(4)) > 0)


def test_resampling_has_no_spread_without_data() -> None:
    phi, targets = regression()
    weights = bootstrap_posterior(
        phi, targets, ridge=RIDGE, members=200, rng=np.random.default_rng(0), method="resampled"
    )
    spread = ensemble_uncertainty(weights, np.eye(4))
    assert spread[3] == 0.0  # the posterior's is 1 / sqrt(ridge)
    assert np.all(spread[:3] > 0.01)


def test_resampling_copies_rows() -> None:
    """A member is a ridge fit to some multiset of the rows: with one row, always the same fit."""
    weights = bootstrap_posterior(
        np.array([[2.0]]),
        np.array([3.0]),
        ridge=1.0,
        members=5,
        rng=np.random.default_rng(0),
        method="resampled",
    )
    np.testing.assert_allclose(weights, np.full((5, 1), 6.0 / 5.0), atol=1e-12)


def test_no_ridge_means_no_prior_to_draw_from() -> None:
    phi, targets = regression()
    with pytest.raises(PbrlError, match="ridge > 0"):
        bootstrap_posterior(phi, targets, ridge=0.0, members=3, rng=np.random.default_rng(0))
