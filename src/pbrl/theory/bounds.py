"""Explicit constants for Theorem 1, and the exact binomial statistics that check them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pbrl.errors import PbrlError
from pbrl.theory.regression import Floats, Precision


def self_normalised_beta(precision: Precision, prior: Precision, xi: float, sigma: float) -> float:
    """The β of Theorem 1 with its constants: ``σ sqrt(2 log(1/ξ) + log(det Λ~ / det Λ_ood))``.

    From the self-normalised martingale bound (Abbasi-Yadkori, Pál and Szepesvári, 2011), so rows
    may be chosen with knowledge of the rows before them. With probability ``1 - ξ`` it holds for
    all φ, and for all numbers of rows, at once.

    Args:
        precision: ``Λ~``, data and prior.
        prior: ``Λ_ood`` (or ``λ I``), fixed before the data.
        xi: allowed probability of failure.
        sigma: sub-Gaussian scale of the noise; half its range does.
    """
    return sigma * math.sqrt(2.0 * math.log(1.0 / xi) + precision.logdet - prior.logdet)


def fixed_design_beta(precision: Precision, prior: Precision, xi: float, sigma: float) -> float:
    """A smaller β for rows that are independent given their features: no log of their number.

    The squared error in the norm of ``Λ~`` is a quadratic form of the noise with the matrix
    ``Φ Λ~⁻¹ Φᵀ``, whose eigenvalues are below 1; the sub-Gaussian tail of such forms (Hsu, Kakade
    and Zhang, 2012) gives ``σ sqrt(Σ e + 2 sqrt(Σ e² log(1/ξ)) + 2 max e log(1/ξ))`` for the
    eigenvalues e. Arguments as for :func:`self_normalised_beta`.
    """
    # Eigenvalues of L⁻¹ (Λ~ - Λ_ood) L⁻ᵀ, which are those of Φ Λ~⁻¹ Φᵀ but for zeros.
    half = np.linalg.solve(precision.factor, precision.matrix - prior.matrix)
    shares = np.linalg.eigvalsh(np.linalg.solve(precision.factor, half.T)).clip(0.0)
    log = math.log(1.0 / xi)
    square = (
        shares.sum() + 2.0 * math.sqrt(float((shares**2).sum()) * log) + 2.0 * shares.max() * log
    )
    return sigma * math.sqrt(square)


def binomial_upper_tail(successes: int, trials: int, probability: float) -> float:
    """``P(X >= successes)`` for ``X ~ Binomial(trials, probability)``, summed exactly."""
    if successes <= 0:
        return 1.0
    if probability <= 0.0 or successes > trials:
        return 0.0
    if probability >= 1.0:
        return 1.0
    k = np.arange(successes, trials + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    log_mass = (
        log_factorial[trials]
        - log_factorial[k]
        - log_factorial[trials - k]
        + k * math.log(probability)
        + (trials - k) * math.log1p(-probability)
    )
    return min(1.0, float(np.exp(log_mass).sum()))


def clopper_pearson(successes: int, trials: int, confidence: float = 0.99) -> tuple[float, float]:
    """The exact two-sided confidence interval for a probability; SciPy is not needed."""
    if not 0 <= successes <= trials or trials < 1 or not 0 < confidence < 1:
        raise PbrlError(
            "Need 0 <= successes <= trials, trials >= 1 and 0 < confidence < 1, "
            f"got {successes}, {trials} and {confidence}."
        )
    tail = (1.0 - confidence) / 2.0
    low = 0.0
    if successes > 0:
        low = _crossing(lambda p: binomial_upper_tail(successes, trials, p) - tail)
    high = 1.0
    if successes < trials:
        high = _crossing(lambda p: binomial_upper_tail(successes + 1, trials, p) - (1.0 - tail))
    return low, high


def _crossing(increasing: Callable[[float], float]) -> float:
    """Where an increasing function on [0, 1] passes zero, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if increasing(middle) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def chi_square_interval(degrees: int, error: float) -> tuple[float, float]:
    """An interval ``χ²`` leaves with probability at most ``error`` (Laurent and Massart, 2000)."""
    x = math.log(2.0 / error)
    return max(0.0, degrees - 2.0 * math.sqrt(degrees * x)), degrees + 2.0 * (
        math.sqrt(degrees * x) + x
    )


def ensemble_error(members: int) -> tuple[float, float]:
    """Relative bias and root mean square error of the population std of K Gaussian draws, exactly.

    ``E[U] / σ = sqrt(2 / K) Γ(K / 2) / Γ((K - 1) / 2)`` and ``E[U²] / σ² = (K - 1) / K``.
    """
    if members < 2:
        raise PbrlError("A spread needs at least 2 members.")
    mean = math.sqrt(2.0 / members) * math.exp(
        math.lgamma(members / 2.0) - math.lgamma((members - 1) / 2.0)
    )
    # (E[U]-1)² + Var U, summed in this order: the plain form cancels for large K.
    square = (members - 1) / members
    return mean - 1.0, math.sqrt((mean - 1.0) ** 2 + max(square - mean**2, 0.0))


def quantile_interval(
    samples: Floats, probability: float, confidence: float = 0.99
) -> tuple[float, float, float]:
    """Empirical quantile of ``samples [n]`` and a distribution-free interval around it."""
    ordered = np.sort(samples)
    n = len(ordered)
    at = min(n - 1, math.ceil(probability * n) - 1)
    # Bernstein's bound on how many samples fall below the true quantile.
    log = math.log(2.0 / (1.0 - confidence))
    spread = math.sqrt(2.0 * n * probability * (1.0 - probability) * log) + 2.0 * log / 3.0
    low, high = math.floor(at - spread), math.ceil(at + spread) + 1
    return (
        float(ordered[at]),
        float(ordered[low]) if low >= 0 else -math.inf,
        float(ordered[high]) if high < n else math.inf,
    )
