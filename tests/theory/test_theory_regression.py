"""Least squares, the penalty and OOD rows against plain linear algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pbrl.errors import PbrlError
from pbrl.theory import (
    Precision,
    data_precision,
    lcb_penalty,
    ood_regression,
    practical_ood_iteration,
    ridge_regression,
)
from pbrl.theory.experiments.theorem1 import practical_fixed_point

EXACT = 1e-10


@pytest.fixture(params=[0, 1, 2])
def problem(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(request.param)
    phi = rng.standard_normal((30, 5))
    phi[:, 4] = 0.0  # a direction without data
    return phi, rng.standard_normal(30), rng.standard_normal((12, 5))


def test_ridge_is_least_squares_with_extra_rows(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    phi, targets, _ = problem
    stacked = np.vstack([phi, math.sqrt(0.3) * np.eye(5)])
    expected = np.linalg.lstsq(stacked, np.append(targets, np.zeros(5)), rcond=None)[0]
    np.testing.assert_allclose(ridge_regression(phi, targets, 0.3), expected, atol=EXACT)


def test_ood_rows_take_the_place_of_ridge(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    phi, targets, ood = problem
    fitted = ood_regression(phi, targets, ood, np.arange(12.0))
    expected = np.linalg.lstsq(
        np.vstack([phi, ood]), np.append(targets, np.arange(12.0)), rcond=None
    )[0]
    np.testing.assert_allclose(fitted, expected, atol=EXACT)

    ridge, zero = 0.3, np.zeros(5)
    root = ood_regression(phi, targets, math.sqrt(ridge) * np.eye(5), zero)
    np.testing.assert_allclose(root, ridge_regression(phi, targets, ridge), atol=EXACT)
    # The paper's rows λ e_j are ridge λ², and that is another solution.
    printed = ood_regression(phi, targets, ridge * np.eye(5), zero)
    np.testing.assert_allclose(printed, ridge_regression(phi, targets, ridge**2), atol=EXACT)
    assert np.abs(printed - root).max() > 1e-3


def test_penalty_is_the_quadratic_form(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    phi, _, query = problem
    inverse = np.linalg.inv(phi.T @ phi + 0.3 * np.eye(5))
    expected = 1.7 * np.sqrt(np.einsum("ni,ij,nj->n", query, inverse, query))
    precision = data_precision(phi, 0.3)
    np.testing.assert_allclose(lcb_penalty(query, precision, 1.7), expected, atol=EXACT)
    folded = lcb_penalty(query.reshape(3, 4, 5), precision, 1.7)
    np.testing.assert_array_equal(folded, lcb_penalty(query, precision, 1.7).reshape(3, 4))
    sign, logdet = np.linalg.slogdet(precision.matrix)
    assert sign == 1
    assert precision.logdet == pytest.approx(float(logdet), abs=EXACT)


def test_dual_norm_is_the_largest_ratio(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    phi, _, query = problem
    precision, weights = data_precision(phi, 0.3), query[0]
    largest = precision.dual_norm(weights)
    assert np.all(np.abs(query @ weights) / precision.norm(query) <= largest + EXACT)
    at = precision.matrix @ weights
    assert abs(at @ weights) / precision.norm(at) == pytest.approx(largest, abs=1e-9)


def test_tabular_penalties_are_reciprocal_roots_of_counts() -> None:
    data, ood = np.array([0, 0, 0, 1, 3]), np.array([0, 1, 2, 2, 3])
    eye = np.eye(4)
    ridge = lcb_penalty(eye, data_precision(eye[data], 0.25))
    np.testing.assert_allclose(ridge, 1 / np.sqrt([3.25, 1.25, 0.25, 1.25]), atol=EXACT)
    both = lcb_penalty(eye, data_precision(eye[data], ood_phi=eye[ood]))
    np.testing.assert_allclose(both, 1 / np.sqrt([4.0, 2.0, 2.0, 2.0]), atol=EXACT)


def test_a_direction_without_data_or_prior_is_refused() -> None:
    phi = np.random.default_rng(0).standard_normal((9, 3)) @ np.array(
        [[1.0, 2.0, 3.0], [0.5, -1.0, 1.0], [1.5, 1.0, 4.0]]  # rank 2
    )
    with pytest.raises(PbrlError, match="neither data nor prior"):
        data_precision(phi)
    with pytest.raises(PbrlError, match="neither data nor prior"):
        Precision.of(np.zeros((2, 2)))
    with pytest.raises(PbrlError, match="ridge must not be negative"):
        data_precision(phi, -1.0)


def test_practical_target_by_hand() -> None:
    """One visit with target 1, one OOD row, β = sqrt 2: Γ = 1, so Q <- (1 + y) / 2."""
    one = np.ones((1, 1))
    arguments = {"beta": math.sqrt(2.0), "steps": 3, "initial": np.array([2.0])}
    free = practical_ood_iteration(one, np.ones(1), one, floor=None, **arguments)  # type: ignore[arg-type]
    np.testing.assert_allclose(free[:, 0], [2.0, 1.0, 0.5, 0.25], atol=EXACT)
    floored = practical_ood_iteration(one, np.ones(1), one, floor=0.0, **arguments)  # type: ignore[arg-type]
    np.testing.assert_allclose(floored[:, 0], [2.0, 1.0, 0.5, 0.5], atol=EXACT)


def test_practical_target_without_data_needs_the_floor() -> None:
    empty, row = np.zeros((0, 1)), np.ones((1, 1))
    free = practical_ood_iteration(empty, np.zeros(0), row, beta=0.5, steps=40, floor=None)
    np.testing.assert_allclose(free[:, 0], -0.5 * np.arange(41), atol=EXACT)
    floored = practical_ood_iteration(
        empty, np.zeros(0), row, beta=0.5, steps=40, floor=0.0, initial=np.array([3.0])
    )
    assert floored[-1, 0] == 0.0


@pytest.mark.parametrize("count", [1, 2, 5, 40])
@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("floor", [None, 0.0, -0.5])
def test_practical_target_settles_where_predicted(
    count: int, beta: float, floor: float | None
) -> None:
    settled = practical_ood_iteration(
        np.ones((count, 1)), np.full(count, 0.8), np.ones((3, 1)), beta=beta, steps=400, floor=floor
    )[-1, 0]
    assert settled == pytest.approx(practical_fixed_point(0.8, count, 3, beta, floor), abs=1e-9)
