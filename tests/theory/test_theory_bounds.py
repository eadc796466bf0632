"""Constants and binomial statistics against closed forms and exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from pbrl.errors import PbrlError
from pbrl.theory import (
    Precision,
    binomial_upper_tail,
    chi_square_interval,
    clopper_pearson,
    ensemble_error,
    fixed_design_beta,
    quantile_interval,
    self_normalised_beta,
)


def exact_tail(k: int, n: int, p: Fraction) -> Fraction:
    return sum(
        (math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)), start=Fraction(0)
    )


@pytest.mark.parametrize(("k", "n"), [(0, 5), (1, 5), (5, 5), (6, 5), (30, 200), (120, 200)])
def test_binomial_tail_is_exact(k: int, n: int) -> None:
    for p in (Fraction(1, 7), Fraction(1, 2), Fraction(9, 10)):
        assert binomial_upper_tail(k, n, float(p)) == pytest.approx(
            float(exact_tail(k, n, p)), rel=1e-9, abs=1e-300
        )


def test_clopper_pearson_closed_forms() -> None:
    low, high = clopper_pearson(0, 50, 0.95)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 50), abs=1e-12)
    low, high = clopper_pearson(50, 50, 0.95)
    assert low == pytest.approx(0.025 ** (1 / 50), abs=1e-12)
    assert high == 1.0


def test_clopper_pearson_inverts_the_tails() -> None:
    low, high = clopper_pearson(7, 40, 0.9)
    assert exact_tail(7, 40, Fraction(low)) == pytest.approx(0.05, abs=1e-9)
    assert 1 - exact_tail(8, 40, Fraction(high)) == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize("p", [Fraction(1, 20), Fraction(3, 10), Fraction(1, 2)])
def test_clopper_pearson_covers(p: Fraction) -> None:
    """Coverage computed over every outcome, not sampled."""
    n, confidence = 25, 0.95
    covered = Fraction(0)
    for k in range(n + 1):
        low, high = clopper_pearson(k, n, confidence)
        if low <= p <= high:
            covered += exact_tail(k, n, p) - exact_tail(k + 1, n, p)
    assert confidence <= covered <= 1


def test_clopper_pearson_refuses_nonsense() -> None:
    with pytest.raises(PbrlError, match="successes"):
        clopper_pearson(6, 5)


def test_explicit_betas_by_hand() -> None:
    one, four = Precision.of(np.eye(1)), Precision.of(4.0 * np.eye(1))
    xi = math.exp(-2.0)
    assert self_normalised_beta(four, one, xi, 3.0) == pytest.approx(
        3 * math.sqrt(4 + math.log(4)), abs=1e-12
    )
    # Three of four parts are data: e = 3/4, so 3/4 + 2 sqrt(9/16 * 2) + 2 * 3/4 * 2.
    assert fixed_design_beta(four, one, xi, 3.0) == pytest.approx(
        3 * math.sqrt(0.75 + 1.5 * math.sqrt(2) + 3.0), abs=1e-12
    )


def test_fixed_design_beta_uses_the_eigenvalues_of_the_hat_matrix() -> None:
    rng = np.random.default_rng(0)
    phi, ood = rng.standard_normal((20, 3)), rng.standard_normal((5, 3))
    prior = Precision.of(ood.T @ ood)
    precision = Precision.of(phi.T @ phi + ood.T @ ood)
    hat = phi @ np.linalg.inv(precision.matrix) @ phi.T
    log = math.log(20)
    expected = math.sqrt(
        np.trace(hat) + 2 * math.sqrt(np.trace(hat @ hat) * log) + 2 * np.linalg.norm(hat, 2) * log
    )
    assert fixed_design_beta(precision, prior, 0.05, 1.0) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("error", [0.5, 0.01, 1e-6])
def test_chi_square_interval_is_safe(error: float) -> None:
    low, high = chi_square_interval(2, error)  # two degrees of freedom: exponential with mean 2
    assert math.exp(-high / 2) + 1 - math.exp(-low / 2) <= error


def test_ensemble_error_of_two_members() -> None:
    """U of two draws is |x - y| / 2: mean 1/sqrt(π), mean square 1/2."""
    bias, rmse = ensemble_error(2)
    mean = 1 / math.sqrt(math.pi)
    assert bias == pytest.approx(mean - 1, abs=1e-12)
    assert rmse == pytest.approx(math.sqrt(0.5 - 2 * mean + 1), abs=1e-12)


def test_ensemble_error_falls_as_one_over_root_two_k() -> None:
    assert ensemble_error(100_000)[1] * math.sqrt(200_000) == pytest.approx(1.0, abs=1e-3)


def test_quantile_interval_of_known_ranks() -> None:
    samples = np.random.default_rng(0).permutation(np.arange(1000.0))
    middle, low, high = quantile_interval(samples, 0.9, 0.99)
    assert middle == 899.0
    assert 850 < low < 880
    assert 920 < high < 950
    assert quantile_interval(samples, 0.999, 0.99)[2] == math.inf
