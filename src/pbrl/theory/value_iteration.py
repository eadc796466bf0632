"""LSVI and its pessimistic form PEVI, on features and data alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pbrl.theory.linear_mdp import LinearMDP, OfflineData, greedy_policy
from pbrl.theory.regression import Floats, Precision, lcb_penalty, prior_matrix

Beta = float | Callable[[int, Precision], float]


@dataclass(frozen=True)
class OODSamples:
    """OOD rows for value iteration.

    Attributes:
        phi: ``[n, d]``.
        targets: maps the estimated values of the next step ``[S]`` to targets ``[n]``.
    """

    phi: Floats
    targets: Callable[[Floats], Floats]

    @staticmethod
    def zero(phi: Floats) -> OODSamples:
        """Targets of zero: ridge in disguise."""
        return OODSamples(phi, lambda next_values: np.zeros(len(phi)))

    @staticmethod
    def oracle(mdp: LinearMDP, phi: Floats) -> OODSamples:
        """Theorem 1's targets ``y = T V``, which only someone who knows the MDP can supply."""
        return OODSamples(phi, lambda next_values: phi @ mdp.bellman_weights(next_values))


@dataclass(frozen=True)
class Solution:
    """What value iteration found.

    Attributes:
        weights: ``[T, d]``.
        q: estimates after penalty and truncation to ``[0, T - t]``, ``[T, S, A]``.
        values: ``[T + 1, S]``, the last row zero.
        penalty: Γ, ``[T, S, A]``.
        policy: greedy, one-hot ``[T, S, A]``.
    """

    weights: Floats
    q: Floats
    values: Floats
    penalty: Floats
    policy: Floats


def lsvi(
    features: Floats, data: OfflineData, *, ridge: float = 1.0, ood: OODSamples | None = None
) -> Solution:
    """Least-squares value iteration without pessimism; arguments as for :func:`pevi`."""
    return pevi(features, data, 0.0, ridge=ridge, ood=ood)


def pevi(
    features: Floats,
    data: OfflineData,
    beta: Beta,
    *,
    ridge: float = 1.0,
    ood: OODSamples | None = None,
) -> Solution:
    """Pessimistic value iteration: ``Q_t = clip(φᵀ w_t - β_t sqrt(φᵀ Λ_t⁻¹ φ), 0, T - t)``.

    Args:
        features: ``[S, A, d]``.
        data: logged transitions; column t trains step t.
        beta: one number, or a function of ``t`` and ``Λ_t``.
        ridge: λ; may be zero when OOD rows span all directions.
        ood: rows that take part in every step's regression.
    """
    states, actions, dimension = features.shape
    steps = data.horizon
    prior = prior_matrix(dimension, ridge, None if ood is None else ood.phi)
    weights = np.zeros((steps, dimension))
    q, penalty, penalised = (np.zeros((steps, states, actions)) for _ in range(3))
    values = np.zeros((steps + 1, states))
    for t in reversed(range(steps)):
        phi = features[data.states[:, t], data.actions[:, t]]
        targets = data.rewards[:, t] + values[t + 1, data.next_states[:, t]]
        moment = phi.T @ targets
        if ood is not None:
            moment = moment + ood.phi.T @ ood.targets(values[t + 1])
        precision = Precision.of(phi.T @ phi + prior)
        weights[t] = precision.solve(moment)
        penalty[t] = lcb_penalty(
            features, precision, beta(t, precision) if callable(beta) else beta
        )
        penalised[t] = features @ weights[t] - penalty[t]
        q[t] = np.clip(penalised[t], 0.0, steps - t)
        values[t] = q[t].max(axis=1)
    # An action that is best before truncation is best after it too, and says more: where everything
    # is truncated to zero it still prefers what the data knows.
    return Solution(weights, q, values, penalty, greedy_policy(penalised))
