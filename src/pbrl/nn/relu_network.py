"""One small ReLU network, forward and back, with as few passes over memory as there can be.

A network of 2 x 256 units and 256 rows takes a millisecond, of which autograd's bookkeeping, new
memory for every ReLU and gradients that nobody asked for are a third. The arithmetic here is that
of ``torch.nn.functional.linear`` and ``torch.relu``, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor


def relu_network(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """ReLU layers and a linear head, differentiable in everything, ``[..., in] -> [..., out]``.

    Args:
        x: the input.
        parameters: weight ``[out, in]`` and bias ``[out]`` of each layer in turn, the head's last.
    """
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        out = cast(Tensor, _ReLUNetwork.apply(rows, *parameters))
    else:
        out = _forward(rows, parameters)[-1]
    return out.view(*x.shape[:-1], -1)


def _forward(x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """What every layer passes on, the input first, ``[N, width]`` each."""
    passed = [x]
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        passed.append(torch.addmm(bias, passed[-1], weight.t()).relu_())
    passed.append(torch.addmm(parameters[-1], passed[-1], parameters[-2].t()))
    return passed


class _ReLUNetwork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        *passed, out = _forward(x, parameters)
        ctx.save_for_backward(*passed, *parameters[::2])
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        (gradient,) = slopes  # [N, out]
        depth = len(ctx.saved_tensors) // 2
        passed, weights = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        needs_x, *needs = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * (2 * depth)
        for layer in range(depth - 1, -1, -1):
            if needs[2 * layer]:
                found[2 * layer] = gradient.t() @ passed[layer]
            if needs[2 * layer + 1]:
                found[2 * layer + 1] = gradient.sum(0)
            if layer:
                gradient = gradient @ weights[layer]
                mask_(gradient, passed[layer])
            elif needs_x:
                gradient = gradient @ weights[0]
        return gradient if needs_x else None, *found


def mask_(gradient: Tensor, activation: Tensor) -> Tensor:
    """Zero ``gradient`` in place where the ReLU's output ``activation`` is zero."""
    torch.ops.aten.threshold_backward.grad_input(gradient, activation, 0, grad_input=gradient)
    return gradient
