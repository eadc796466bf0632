"""Hand-written passes of stacked networks, for autograd: they compute what is wanted and no more.

Shapes: K members, N rows, H units of a hidden layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pbrl.nn.relu_network import mask_


class Normalised(NamedTuple):
    """What the backward pass of a layer norm needs: its input, and mean and 1/deviation of rows."""

    z: Tensor  # [..., n, H]
    mean: Tensor  # [..., n, 1]
    rstd: Tensor  # [..., n, 1]

    def back(self, gradient: Tensor) -> Tensor:
        """dLoss/dz from dLoss/dnormalised."""
        width = gradient.shape[-1:]
        wanted = [True, False, False]  # of input, scale and shift; there are no scale and shift
        backward = torch.ops.aten.native_layer_norm_backward
        return cast(
            Tensor, backward(gradient, self.z, width, self.mean, self.rstd, None, None, wanted)[0]
        )

    def rows(self, members: Tensor, order: Tensor) -> Normalised:
        """Of one member a row, ``[N, H]``."""
        return Normalised(*(part[members, order] for part in self))


def add_relu_(z: Tensor, bias: Tensor) -> Tensor:
    """relu(z + bias) in place; on the CPU in one pass over memory."""
    if z.device.type == "cpu":
        return torch.ops.aten._add_relu_(z, bias)  # type: ignore[no-any-return]
    return z.add_(bias).relu_()


class FollowMember(torch.autograd.Function):
    """Values already computed, with the gradient of one member a row.

    Rows come sorted by member, as ``members [N]`` says; ``kept`` are the hidden activations of
    those rows, ``[N, H]`` a layer, ``norms`` their layer norms, and ``weights`` the stacked layers,
    ``[K, in, out]``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor,
        members: Tensor,
        kept: list[Tensor],
        norms: list[Normalised | None],
        weights: list[Tensor],
    ) -> Tensor:
        """The values as they are, ``[N]``."""
        ctx.members, ctx.weights = members, weights
        ctx.kept, ctx.norms = kept, norms
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        """The gradient in ``x [N, in]`` alone."""
        *weights, head = ctx.weights
        counts = torch.bincount(ctx.members, minlength=len(head)).tolist()
        gradient = slopes[0].unsqueeze(1) * head[ctx.members, 0]  # [N, H]
        layers = zip(weights, ctx.kept, ctx.norms, strict=True)
        for weight, activation, norm in reversed(list(layers)):
            mask_(gradient, activation)
            if norm:
                gradient = norm.back(gradient)
            below = gradient.new_empty(len(gradient), weight.shape[1])
            blocks = zip(gradient.split(counts), weight.mT, below.split(counts), strict=True)
            for block, member_weight, room in blocks:
                if len(block):
                    torch.mm(block, member_weight, out=room)
            gradient = below
        return gradient, None, None, None, None, None


class StackedReLU(torch.autograd.Function):
    """Stacked ReLU MLP with a hand-written backward pass.

    Saves time over plain autograd: activations in place, masks in place, no weight gradients for
    frozen weights, no input gradient unless asked for. Arguments after ``x [K, N, in]`` and the
    number of hidden layers: hidden weights, head weight, hidden biases, head bias.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int, *parameters: Tensor) -> Tensor:
        """Outputs ``[K, out, N]``."""
        weights, head = parameters[:depth], parameters[depth]
        biases, head_bias = parameters[depth + 1 : -1], parameters[-1]
        activations = [x]
        for weight, bias in zip(weights, biases, strict=True):
            activations.append(add_relu_(torch.bmm(activations[-1], weight), bias))
        ctx.depth = depth
        ctx.save_for_backward(*activations, *weights, head)
        return torch.baddbmm(head_bias, head, activations[-1].mT)  # [K, out, N]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        """The gradients that somebody needs."""
        (slope,) = slopes  # [K, out, N]
        depth = ctx.depth
        activations = ctx.saved_tensors[: depth + 1]
        weights, head = ctx.saved_tensors[depth + 1 : -1], ctx.saved_tensors[-1]
        needs_x, _, *needs = ctx.needs_input_grad
        d_weights: list[Tensor | None] = [None] * (depth + 1)
        d_biases: list[Tensor | None] = [None] * (depth + 1)
        if needs[depth]:
            d_weights[depth] = slope @ activations[-1]
        if needs[-1]:
            d_biases[depth] = slope.sum(2, keepdim=True)
        # Below this layer nothing wants a gradient.
        lowest = 0 if needs_x else next((i for i in range(depth) if needs[i]), depth)
        gradient = torch.bmm(slope.mT, head)
        for layer in range(depth - 1, lowest - 1, -1):
            mask_(gradient, activations[layer + 1])
            if needs[layer]:
                d_weights[layer] = activations[layer].mT @ gradient
            if needs[depth + 1 + layer]:
                d_biases[layer] = gradient.sum(1, keepdim=True)
            if layer > lowest or needs_x:
                gradient = gradient @ weights[layer].mT
        return (gradient if needs_x else None, None, *d_weights, *d_biases)
