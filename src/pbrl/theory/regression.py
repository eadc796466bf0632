"""Least squares as appendix A uses it: one matrix Λ, solved through its Cholesky factor.

Ridge and out-of-distribution (OOD) rows enter in the same place. Ridge adds ``λ I`` to the sum of
``φ φᵀ`` over the data, OOD rows add ``Λ_ood = Σ φ_ood φ_oodᵀ``; what they add is called the prior
here, because in the Bayesian reading it is the precision of the Gaussian prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbrl.errors import PbrlError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Precision:
    """A symmetric positive definite matrix ``Λ``, kept with its lower Cholesky factor.

    Attributes:
        matrix: ``Λ``, ``[d, d]``.
        factor: ``L`` with ``L Lᵀ = Λ``, ``[d, d]``.
    """

    matrix: Floats
    factor: Floats

    @staticmethod
    def of(matrix: Floats) -> Precision:
        """Factor ``matrix [d, d]``; refuses one that is singular to working precision."""
        try:
            factor = np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
        except np.linalg.LinAlgError:
            factor = np.zeros_like(matrix)
        # A rank-deficient sum of outer products can slip through with pivots of rounding size.
        rounding = np.finfo(np.float64).eps * len(matrix) * np.diagonal(matrix).max()
        if np.diagonal(factor).min() ** 2 <= rounding:
            raise PbrlError(
                "Some feature direction has neither data nor prior, so the regression has no "
                "unique solution; use ridge > 0 or OOD rows that span all directions."
            )
        return Precision(matrix, factor)

    def solve(self, right: Floats) -> Floats:
        """``Λ⁻¹ right`` for ``right`` of shape ``[d]`` or ``[d, n]``."""
        return np.linalg.solve(self.factor.T, np.linalg.solve(self.factor, right))

    def norm(self, phi: Floats) -> Floats:
        """``sqrt(φᵀ Λ⁻¹ φ)`` for ``phi [..., d]``; returns ``[...]``."""
        flat = phi.reshape(-1, phi.shape[-1])
        whitened = np.linalg.solve(self.factor, flat.T)  # L⁻¹ φ
        return np.asarray(np.sqrt(np.sum(whitened**2, axis=0)).reshape(phi.shape[:-1]))

    def dual_norm(self, weights: Floats) -> float:
        """``sqrt(wᵀ Λ w)``, the largest ``|φᵀw| / sqrt(φᵀ Λ⁻¹ φ)`` over all φ, for ``weights [d]``.

        This is how a statement about every φ at once is checked without a search.
        """
        return float(np.linalg.norm(self.factor.T @ weights))

    @property
    def logdet(self) -> float:
        """``log det Λ``."""
        return float(2.0 * np.log(np.diagonal(self.factor)).sum())


def prior_matrix(dimension: int, ridge: float = 0.0, ood_phi: Floats | None = None) -> Floats:
    """``ridge I + Σ φ_ood φ_oodᵀ``, ``[d, d]``: what stands in for data where there is none."""
    if ridge < 0:
        raise PbrlError(f"ridge must not be negative, got {ridge}.")
    prior = ridge * np.eye(dimension)
    return prior if ood_phi is None else prior + ood_phi.T @ ood_phi


def data_precision(phi: Floats, ridge: float = 0.0, ood_phi: Floats | None = None) -> Precision:
    """The paper's ``Λ`` (ridge) or ``Λ~`` (OOD rows) for data rows ``phi [m, d]``."""
    return Precision.of(phi.T @ phi + prior_matrix(phi.shape[1], ridge, ood_phi))


def ridge_regression(phi: Floats, targets: Floats, ridge: float) -> Floats:
    """Weights ``[d]`` of ``min Σ (φᵀw - y)² + ridge |w|²``; ``phi [m, d]``, ``targets [m]``."""
    return data_precision(phi, ridge).solve(phi.T @ targets)


def ood_regression(phi: Floats, targets: Floats, ood_phi: Floats, ood_targets: Floats) -> Floats:
    """Weights ``[d]`` of least squares over data rows and OOD rows together, without ridge.

    Args:
        phi: data features ``[m, d]``.
        targets: ``[m]``.
        ood_phi: OOD features ``[n, d]``; data and OOD rows together must span all directions.
        ood_targets: ``[n]``.
    """
    precision = data_precision(phi, ood_phi=ood_phi)
    return precision.solve(phi.T @ targets + ood_phi.T @ ood_targets)


def lcb_penalty(phi: Floats, precision: Precision, beta: float = 1.0) -> Floats:
    """The LCB penalty ``Γ = β sqrt(φᵀ Λ⁻¹ φ)`` for ``phi [..., d]``; returns ``[...]``."""
    return beta * precision.norm(phi)


def practical_ood_iteration(
    phi: Floats,
    targets: Floats,
    ood_phi: Floats,
    *,
    beta: float,
    steps: int,
    floor: float | None,
    initial: Floats | None = None,
) -> Floats:
    """PBRL's own OOD target ``y = Q - Γ`` as what it is in practice: an iteration.

    Every step refits data and OOD rows together, the OOD targets taken from the weights before it:
    ``y = φ_oodᵀ w_j - β sqrt(φ_oodᵀ Λ~⁻¹ φ_ood)``, cut off below at ``floor`` (``None``: never).

    Args:
        phi: data features ``[m, d]``.
        targets: ``[m]``, held fixed.
        ood_phi: ``[n, d]``.
        beta: weight of the penalty.
        steps: number of refits.
        floor: the paper's truncation is ``0.0``.
        initial: first weights ``[d]``, zero by default.

    Returns:
        All iterates ``[steps + 1, d]``.
    """
    precision = data_precision(phi, ood_phi=ood_phi)
    penalty = lcb_penalty(ood_phi, precision, beta)
    weights = np.zeros((steps + 1, phi.shape[1]))
    if initial is not None:
        weights[0] = initial
    for j in range(steps):
        ood_targets = ood_phi @ weights[j] - penalty
        if floor is not None:
            ood_targets = np.maximum(ood_targets, floor)
        weights[j + 1] = precision.solve(phi.T @ targets + ood_phi.T @ ood_targets)
    return weights
