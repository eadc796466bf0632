"""Necessary work of a gradient step, counted by hand.

Only what an ideal implementation cannot avoid counts: the policy's trunk once a state, no gradients
of targets or frozen critics, no input gradient of a first layer, and the actor's backward pass
through the lowest member alone. A multiply-add is two operations; element-wise work is left out.
"""

from __future__ import annotations

from itertools import pairwise

from pbrl.algorithms.pbrl import PBRLConfig


def forward_flop(widths: list[int]) -> int:
    """Operations of one row through layers of these widths, input first."""
    return sum(2 * a * b for a, b in pairwise(widths))


def backward_flop(widths: list[int], *, weights: bool = True, inputs: bool = False) -> int:
    """Operations of one row's backward pass: weight gradients and gradients of activations."""
    layers = [2 * a * b for a, b in pairwise(widths)]
    activations = sum(layers) if inputs else sum(layers[1:])
    return activations + (sum(layers) if weights else 0)


def pbrl_gflop(config: PBRLConfig, observation_dim: int, action_dim: int) -> float:
    """Necessary GFLOP of one PBRL step with these settings."""
    k, rows = config.ensemble_size, config.batch_size
    critic = [observation_dim + action_dim, *config.hidden, 1]
    policy = [observation_dim, *config.policy_hidden, 2 * action_dim]
    groups = 2 if config.authors_code else 1
    ood_rows = rows * config.n_ood * groups if config.n_ood else 0
    trained = rows + ood_rows
    total = rows * (2 * forward_flop(policy) + backward_flop(policy))  # s and s'; back on s
    total += k * rows * forward_flop(critic)  # targets at s'
    total += k * trained * (forward_flop(critic) + backward_flop(critic))  # Eq. 6
    total += k * rows * forward_flop(critic)  # actor: all members forward
    total += rows * backward_flop(critic, weights=False, inputs=True)  # and the lowest back
    if config.prior_scale is not None:  # priors: forward on every row, back for the actor
        total += k * (2 * rows + trained) * forward_flop(critic)
        total += rows * backward_flop(critic, weights=False, inputs=True)
    return total / 1e9
