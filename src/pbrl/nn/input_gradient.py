"""Regression of a stacked ReLU ensemble on its values and on their gradients in the input.

EDAC's diversity loss is a function of dQ/da, so its gradient in the weights needs second
derivatives. A ReLU network is piecewise linear: with its masks m_l fixed,

    dQ/dz_L = w * m_L,    dQ/dz_{l-1} = (dQ/dz_l W_l^T) * m_{l-1},    dQ/dx = dQ/dz_1 W_1^T,

and the derivative of any loss(Q, dQ/dx) can be written down. Let v = dLoss/dQ (per row) and
t_0 = dLoss/d(dQ/dx). Carry t upwards like an input without biases, t_l = (t_{l-1} W_l) * m_l: the
part of W_l's gradient that comes from dQ/dx is t_{l-1}^T dQ/dz_l. The ordinary part is
(v h_{l-1})^T dQ/dz_l, since the error of a scalar output is v dQ/dz_l. Both are one product,

    dLoss/dW_l = (v h_{l-1} + t_{l-1})^T dQ/dz_l,

so the second derivatives cost two hidden-layer products more than plain regression (8 instead of
6 for three hidden layers), where automatic differentiation runs the whole network twice over.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pbrl.nn.ensemble import EnsembleMLP
from pbrl.nn.relu_network import mask_

# (values [K, n], gradients [K, n, columns], rows) -> scalar, a sum over rows.
GradientLoss = Callable[[Tensor, Tensor, slice], Tensor]


def regress_with_input_gradient(
    network: EnsembleMLP, x: Tensor, columns: slice, loss: GradientLoss
) -> Tensor:
    """Add the gradient of ``sum of loss(Q, dQ/dx[:, columns], rows)`` to the weights' ``.grad``.

    Args:
        network: K plain ReLU members with one output each.
        x: ``[N, in]``, no gradient is passed to it.
        columns: of ``x``, with respect to which values are differentiated.
        loss: maps the values ``[K, n]`` and gradients ``[K, n, columns]`` of a chunk of rows, and
            the chunk's row range, to a scalar that is a sum over rows.

    Returns:
        The total loss, a 0-dim tensor.
    """
    assert network.plain_relu, "only plain ReLU networks are piecewise linear"
    assert not network.spectral_layers
    total = torch.zeros((), device=x.device, dtype=x.dtype)
    for part in network.chunks(x):
        total += _chunk(network, x[part], part, columns, loss)
    return total


@torch.no_grad()
def _chunk(
    network: EnsembleMLP, x: Tensor, part: slice, columns: slice, loss: GradientLoss
) -> Tensor:
    weights, depth = list(network.weights), len(network.hidden)
    head, rows = network.head_weight, len(x)
    hidden, _ = network.hidden_layers(x, [*weights, head])  # h_1 .. h_L, [K, n, H]
    values = torch.baddbmm(network.head_bias, head, hidden[-1].mT).squeeze(1)

    # dQ/dz of every layer, from the head down to the input.
    slopes: list[Tensor] = [head.expand(-1, rows, -1)] * depth
    slopes[-1] = torch.ops.aten.threshold_backward(slopes[-1], hidden[-1], 0)
    for layer in range(depth - 1, 0, -1):
        slopes[layer - 1] = mask_(slopes[layer] @ weights[layer].mT, hidden[layer - 1])
    gradients = slopes[0] @ weights[0][:, columns].mT  # [K, n, columns]

    with torch.enable_grad():
        leaves = values.requires_grad_(), gradients.requires_grad_()
        value = loss(*leaves, part)
        v, t = torch.autograd.grad(value, leaves)
    v_row, v_column = v.unsqueeze(1), v.unsqueeze(2)  # [K, 1, n] [K, n, 1]

    # t upwards through the layers, and both parts of every weight's gradient in one product.
    left = v_column * x
    left[:, :, columns] += t
    tangent = t @ weights[0][:, columns]
    for layer in range(depth):
        _add(weights[layer], left.mT, slopes[layer])
        _add(network.biases[layer], v_row, slopes[layer])
        mask_(tangent, hidden[layer])
        # h_l has served as a mask; its memory takes the sum of both parts.
        left = torch.addcmul(tangent, v_column, hidden[layer], out=hidden[layer])
        if layer + 1 < depth:
            tangent = tangent @ weights[layer + 1]
    ones = torch.ones_like(v_row)
    _add(head, ones, left)
    _add(network.head_bias, v_row, ones.mT)
    return value.detach()


def _add(parameter: Tensor, left: Tensor, right: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = torch.bmm(left, right)
    else:
        parameter.grad.baddbmm_(left, right)
