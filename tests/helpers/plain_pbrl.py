"""PBRL as ``examples/pbrl_single_file.py`` writes it, in float64 and with a fast algorithm's state.

The two share no code but the random draws, which the plain one repeats from the same generator in
the same order. ``follow`` runs both side by side and compares every weight. Variants of the method
are subclasses of ``PlainPBRL`` that override the step they change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pbrl.algorithms.pbrl import PBRL
from pbrl.bench import pbrl_single_file as single_file
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics

S, A, B, STEPS, TOTAL_STEPS = 3, 2, 16, 4, 40

SMALL: dict[str, Any] = {
    "ensemble_size": 4,
    "hidden": (16, 16, 16),
    "policy_hidden": (16, 16),
    "n_ood": 2,
    "critic_lr": 1e-2,
    "actor_lr": 1e-2,
    "alpha_lr": 1e-2,
    "tau": 0.1,
}
SAME_NAMES = (*SMALL, "gamma", "beta_in", "target_entropy")


def batches(count: int) -> list[Batch]:
    """Minibatches in float64, a third of the rows terminal."""
    g = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return [
        Batch(
            normal(B, S),
            normal(B, A).tanh(),
            normal(B) + 1,
            normal(B, S),
            (normal(B) > 0.5).double(),
        )
        for _ in range(count)
    ]


def small_in_double(algorithm: type[PBRL], **settings: Any) -> PBRL:
    """A small algorithm whose policy differs between states, and whose members differ."""
    fast = algorithm(algorithm.Config(**(SMALL | settings)), S, A, seed=1, total_steps=TOTAL_STEPS)
    with torch.no_grad():
        fast.actor.network.head.weight.mul_(300)
        fast.critics.main.head_weight.mul_(100)
        fast.targets.main.head_weight.mul_(100)
    for network in fast.networks().values():
        network.double()
    fast._build_optimizers()
    return fast


class PlainPBRL(single_file.PBRL):
    """The single file's PBRL with the settings, weights and random state of a fast one."""

    def __init__(self, fast: PBRL) -> None:
        c: Any = fast.config
        self.options = c
        beta = c.beta_ood_start, c.beta_ood_middle, c.beta_ood_end
        if c.beta_ood_schedule == "constant":
            beta = (c.beta_ood,) * 3
        settings = single_file.Settings(
            **{name: getattr(c, name) for name in SAME_NAMES},
            beta_ood=beta,
            prior_scale=c.prior_scale or 0.0,
        )
        floor = -torch.inf if fast.floor is None else fast.floor
        super().__init__(settings, S, A, fast.total_steps, floor)
        self.generator = torch.Generator()
        self.generator.set_state(fast.generator.get_state())
        self.log_alpha.data = fast.alpha.log_alpha.detach().clone()
        mine: Sequence[nn.Module] = (self.critics, self.targets, self.policy)
        for network, weights in zip(mine, fast_weights(fast), strict=True):
            put(network, weights)
        if self.priors is not None:
            assert fast.critics.prior is not None
            put(self.priors, stacked(fast.critics.prior))

    def critic_losses(self, s: Tensor, a: Tensor, s2: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 6, or the first of its two errors alone where no OOD actions are drawn."""
        if self.c.n_ood:
            return super().critic_losses(s, a, s2, y)
        errors = self.q(self.critics, s, a) - y
        return (errors**2).mean(1).sum(), torch.zeros(())


def put(network: nn.Module, weights: Sequence[Tensor]) -> None:
    """Copies of ``weights`` instead of the network's own."""
    for parameter, weight in zip(network.parameters(), weights, strict=True):
        assert parameter.shape == weight.shape
        parameter.data = weight.detach().clone().double()


def stacked(net: Any) -> list[Tensor]:
    """Weights and biases of a fast ensemble in the single file's shapes and order."""
    weights, biases = [*net.weights, net.head_weight.mT], [*net.biases, net.head_bias]
    return [*weights, *biases]


def layers(policy: Any) -> list[Tensor]:
    """Weights and biases of a fast policy in the single file's order."""
    linear = [*policy.network.layers, policy.network.head]
    return [tensor for layer in linear for tensor in (layer.weight, layer.bias)]


def fast_weights(fast: PBRL) -> list[list[Tensor]]:
    """Of critics, targets and trained policy."""
    ensembles: list[Critics] = [fast.critics, fast.targets]
    return [*(stacked(critics.main) for critics in ensembles), layers(fast.actor)]


def follow(fast: PBRL, plain: PlainPBRL) -> None:
    """A few updates of both end in the same weights."""
    before = layers(fast.actor)[0].detach().clone()
    for batch in batches(STEPS):
        fast.update(batch)
        plain.update(batch)
    assert not torch.equal(before, layers(fast.actor)[0])
    torch.testing.assert_close(fast.alpha.log_alpha.detach(), plain.log_alpha.detach())
    networks = (plain.critics, plain.targets, plain.policy)
    for network, weights in zip(networks, fast_weights(fast), strict=True):
        assert_equal(weights, list(network.parameters()))


def assert_equal(fast: Sequence[Tensor], plain: Sequence[Tensor]) -> None:
    """But for rounding in float64."""
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-7, atol=1e-9)
