"""The hand-written passes of a small network are those of autograd, to the bit."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from pbrl.nn.relu_network import relu_network


def layers(*widths: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(a, b) for a, b in pairwise(widths)]


def plain(x: Tensor, network: list[nn.Linear]) -> Tensor:
    for layer in network[:-1]:
        x = torch.relu(layer(x))
    out: Tensor = network[-1](x)
    return out


def ours(x: Tensor, network: list[nn.Linear]) -> Tensor:
    return relu_network(x, [p for layer in network for p in (layer.weight, layer.bias)])


@pytest.mark.parametrize("widths", [(5, 8, 3), (17, 64, 64, 6), (4, 1)])
@pytest.mark.parametrize("shape", [(32,), (1,), (3, 7), ()])
def test_values_and_all_gradients(widths: tuple[int, ...], shape: tuple[int, ...]) -> None:
    network = layers(*widths)
    x = torch.randn(*shape, widths[0], requires_grad=True)
    wanted = [x, *(p for layer in network for p in layer.parameters())]
    found = []
    for run in (ours, plain):
        out = run(x, network)
        found.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)
        if len(shape) == 1:
            assert torch.equal(mine, other)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, network), plain(x, network))


def test_frozen_weights_get_no_gradient_and_a_frozen_input_none_either() -> None:
    network = layers(5, 8, 3)
    for parameter in network[0].parameters():
        parameter.requires_grad_(False)
    x = torch.randn(6, 5)
    ours(x, network).sum().backward()
    assert x.grad is None
    assert network[0].weight.grad is None
    assert network[1].weight.grad is not None
