"""Networks written plainly, for transcriptions of the papers in float64 that share no fast code.

A test puts an algorithm into float64 with ``in_double``, copies its weights into these classes and
repeats its steps with ordinary automatic differentiation and ``torch.optim.Adam``.
"""

from __future__ import annotations

import math

import torch
from algorithm_tester import ACTION_DIM, OBSERVATION_DIM
from torch import Tensor

from pbrl.algorithms.base import Algorithm
from pbrl.data.training_data import Batch
from pbrl.nn.critics import Critics
from pbrl.nn.policy import MLP


def in_double(algorithm: Algorithm) -> None:
    """Put networks and (fresh) optimisers into float64."""
    for network in algorithm.networks().values():
        network.double()
    algorithm._build_optimizers()


def random_batches(count: int, rows: int = 16, seed: int = 0) -> list[Batch]:
    """Minibatches in float64, some rows terminal."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.float64).normal_(generator=g)

    s, a = OBSERVATION_DIM, ACTION_DIM
    return [
        Batch(
            normal(rows, s),
            normal(rows, a).tanh(),
            normal(rows),
            normal(rows, s),
            (normal(rows) > 1).double(),
        )
        for _ in range(count)
    ]


def same_generator(algorithm: Algorithm) -> torch.Generator:
    """A generator that will draw what the algorithm's is about to draw."""
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    return generator


def normals(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(like).normal_(generator=generator)


class PlainMLP:
    """Weights ``[in, out]`` and biases ``[out]``, ReLU in between."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        self.layers = [
            (w.detach().clone().requires_grad_(), b.detach().clone().requires_grad_())
            for w, b in layers
        ]

    @staticmethod
    def of(network: MLP) -> PlainMLP:
        linear = [*network.layers, network.head]
        return PlainMLP([(x.weight.detach().T, x.bias) for x in linear])

    @property
    def parameters(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in layer]

    def __call__(self, x: Tensor) -> Tensor:
        for weight, bias in self.layers[:-1]:
            x = torch.relu(x @ weight + bias)
        weight, bias = self.layers[-1]
        return x @ weight + bias


class PlainCritics:
    """A list of separate Q functions."""

    def __init__(self, critics: Critics) -> None:
        net = critics.main
        self.members = []
        for k in range(critics.members):
            layers = [(w[k], b[k, 0]) for w, b in zip(net.weights, net.biases, strict=True)]
            self.members.append(PlainMLP([*layers, (net.head_weight[k].T, net.head_bias[k, 0])]))

    @property
    def parameters(self) -> list[Tensor]:
        return [tensor for member in self.members for tensor in member.parameters]

    def __call__(self, s: Tensor, a: Tensor) -> Tensor:
        """``[K, B]``."""
        return torch.stack([q(torch.cat([s, a], 1)).squeeze(1) for q in self.members])

    def move_towards(self, other: PlainCritics, tau: float) -> None:
        move(self.parameters, other.parameters, tau)


class PlainGaussian:
    """The tanh-Gaussian policy, densities by ``torch.distributions``."""

    def __init__(self, network: MLP) -> None:
        self.net = PlainMLP.of(network)

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(s).chunk(2, dim=1)
        return mean, log_std.clamp(-5, 2).exp()

    @staticmethod
    def log_prob(mean: Tensor, std: Tensor, before_tanh: Tensor) -> Tensor:
        gaussian: Tensor = torch.distributions.Normal(mean, std).log_prob(before_tanh)
        log_slope = -2 * torch.cosh(before_tanh).log()  # d tanh(u) / du = 1 / cosh(u)^2
        return (gaussian - log_slope).sum(-1)


def move(mine: list[Tensor], theirs: list[Tensor], tau: float) -> None:
    for own, other in zip(mine, theirs, strict=True):
        own.data = (1 - tau) * own.data + tau * other.data


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def assert_equal_networks(plain: list[Tensor], fast: list[Tensor], tolerance: float = 1e-9) -> None:
    assert len(plain) == len(fast)
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)


def log_uniform_density(action_dim: int) -> float:
    """log of the uniform density on [-1, 1]^A."""
    return -action_dim * math.log(2)
