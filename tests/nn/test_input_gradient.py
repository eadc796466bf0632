"""The closed form of second derivatives against automatic differentiation run twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pbrl.nn.ensemble import EnsembleMLP
from pbrl.nn.input_gradient import regress_with_input_gradient


def odd_loss(values: Tensor, gradients: Tensor) -> Tensor:
    """Something that couples members, values and gradients in every row."""
    size = gradients.square().sum(2)
    return (values.square() * size.mean(0)).sum() + gradients.prod(2).sin().sum()


@pytest.mark.parametrize("hidden", [(7,), (9, 5), (8, 8, 8)])
@pytest.mark.parametrize("chunk_rows", [100, 4])
def test_gradients_match_double_backward(hidden: tuple[int, ...], chunk_rows: int) -> None:
    g = torch.Generator().manual_seed(0)
    network = EnsembleMLP(3, 5, hidden, head_bound=None, generator=g).double()
    network.chunk_rows = chunk_rows
    x = torch.empty(11, 5, dtype=torch.float64).normal_(generator=g)

    loss = regress_with_input_gradient(
        network, x, slice(3, 5), lambda values, gradients, rows: odd_loss(values, gradients)
    )

    inputs = x.repeat(3, 1, 1).requires_grad_()  # a copy for each member
    h = inputs
    for weight, bias in zip(network.weights, network.biases, strict=True):
        h = torch.relu(h @ weight + bias)
    values = (h @ network.head_weight.mT + network.head_bias.mT).squeeze(2)
    (slopes,) = torch.autograd.grad(values.sum(), inputs, create_graph=True)
    plain = odd_loss(values, slopes[:, :, 3:5])
    parameters = list(network.parameters())
    expected = torch.autograd.grad(plain, parameters)
    torch.testing.assert_close(loss, plain.detach(), rtol=1e-12, atol=1e-12)
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-12)

    # A second call adds to what is there.
    regress_with_input_gradient(
        network, x, slice(3, 5), lambda values, gradients, rows: odd_loss(values, gradients)
    )
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient, rtol=1e-10, atol=1e-12)
