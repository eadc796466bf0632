"""Lemma 1: the Bayesian posterior of the weights, and three ensembles that claim to sample it."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pbrl.errors import PbrlError
from pbrl.theory.regression import Floats, Precision, data_precision

EnsembleMethod = Literal["anchored", "resampled", "initial-weights"]


def weight_posterior(phi: Floats, targets: Floats, ridge: float) -> tuple[Floats, Precision]:
    """Posterior ``N(μ, Λ⁻¹)`` of the weights for unit noise and the prior ``N(0, I / ridge)``.

    Args:
        phi: ``[m, d]``.
        targets: ``[m]``.
        ridge: λ, positive.

    Returns:
        The mean ``μ [d]`` and ``Λ``.
    """
    precision = data_precision(phi, ridge)
    return precision.solve(phi.T @ targets), precision


def bootstrap_posterior(
    phi: Floats,
    targets: Floats,
    *,
    ridge: float,
    members: int,
    rng: np.random.Generator,
    method: EnsembleMethod = "anchored",
    training_time: float = np.inf,
) -> Floats:
    """An ensemble of weight vectors ``[K, d]`` whose spread is meant to be the posterior's.

    ``anchored``: each member is fitted to targets with fresh unit noise and its ridge pulls it to
    its own draw from the prior ``N(0, I / ridge)`` instead of to zero. Its law is exactly
    ``N(μ, Λ⁻¹)``: the noise contributes ``Λ⁻¹ ΦᵀΦ Λ⁻¹``, the anchors ``Λ⁻¹ ridge Λ⁻¹``.

    ``resampled``: each member is a ridge fit to rows drawn with replacement (the textbook
    bootstrap).

    ``initial-weights``: PBRL's own recipe. Members share data and loss and differ by their first
    weights, drawn from the prior; gradient flow for ``training_time`` takes each to
    ``μ + exp(-Λ time) (w₀ - μ)``. The default is training to the end: nothing of ``w₀`` is left.

    Args:
        phi: ``[m, d]``.
        targets: ``[m]``.
        ridge: λ, positive.
        members: K.
        rng: source of randomness.
        method: see above.
        training_time: for ``initial-weights``; the loss is half the squared error.
    """
    if ridge <= 0 or members < 1:
        raise PbrlError(f"Need ridge > 0 and members >= 1, got {ridge} and {members}.")
    rows, dimension = phi.shape
    mean, precision = weight_posterior(phi, targets, ridge)
    if method == "resampled":
        weights = np.empty((members, dimension))
        for k in range(members):
            # Multiplicities of the rows: the same fit as copying them.
            counts = rng.multinomial(rows, np.full(rows, 1.0 / rows))
            weighted = phi * counts[:, None]
            resampled = Precision.of(weighted.T @ phi + ridge * np.eye(dimension))
            weights[k] = resampled.solve(weighted.T @ targets)
        return weights
    prior_draws = rng.standard_normal((members, dimension)) / np.sqrt(ridge)
    if method == "anchored":
        noisy = targets + rng.standard_normal((members, rows))
        return precision.solve((noisy @ phi + ridge * prior_draws).T).T
    if np.isinf(training_time):
        return np.tile(mean, (members, 1))
    rates, directions = np.linalg.eigh(precision.matrix)
    remaining = (directions * np.exp(-rates * training_time)) @ directions.T
    return np.asarray(mean + (prior_draws - mean) @ remaining)


def ensemble_uncertainty(weights: Floats, phi: Floats) -> Floats:
    """The paper's U (Eq. 3, with 1/K): std of ``φᵀw`` over ``weights [K, d]``, ``phi [..., d]``."""
    return np.asarray((phi @ weights.T).std(axis=-1))
