"""K multi-layer perceptrons as one stack of matrices: the one fast kernel of the package.

Every layer holds the weights of all members, ``[K, in, out]``, so that one batched matrix product
serves the whole ensemble. The scalar head is stored as a row, ``[K, 1, H]``: ``w @ h.mT`` is
several times faster than ``h @ w`` with a single column.

There are four ways through the same weights:

- ``forward``: an ordinary differentiable call.
- ``regress``: forward, loss and weight gradients in chunks of rows that stay in the cache, with
  hand-written backward passes and reused buffers. Nearly all of PBRL's time is spent here.
- ``pickable``: all members' values, then one chosen member's value a row, differentiable in the
  input alone, whose backward pass visits only that member.
- ``values``: no gradient at all, with reused buffers.

All agree with plain automatic differentiation; tests/nn/test_ensemble.py holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn

from pbrl.nn.init import CRITIC_HEAD_BOUND, Init, hidden_bias_, hidden_bound, uniform_
from pbrl.nn.relu_network import mask_, relu_network
from pbrl.nn.stacked_autograd import FollowMember, Normalised, StackedReLU, add_relu_

Activation = Literal["relu", "silu"]
# Loss of a chunk: (values [K, n] of these rows, which rows) -> scalar.
ChunkLoss = Callable[[Tensor, slice], Tensor]

# Rows a chunk on the CPU: activations of ten 256-unit members then fit the last-level cache.
CPU_CHUNK_ROWS = 720
LAYER_NORM_EPS = 1e-5


class EnsembleMLP(nn.Module):
    """``members`` independent MLPs of the same shape.

    Args:
        members: K.
        in_dim: input features.
        hidden: units of the hidden layers.
        out_dim: outputs of a member; with 1 the output axis is dropped.
        activation: of the hidden layers.
        head_bound: the last layer starts in Unif(-bound, bound); None: like a hidden layer.
        init: of the hidden layers, see ``pbrl.nn.init``.
        layer_norm: normalise hidden activations (before the activation function), without affine.
        dropout: probability of dropping a hidden unit; active whenever it is not zero, also in
            evaluation (Monte Carlo dropout), drawn from ``dropout_generator``.
        spectral_norm: layers whose spectral norm is held at 1, counted from the end: ``(-1,)`` is
            the head, ``(-1, -2)`` the last two.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        members: int,
        in_dim: int,
        hidden: Sequence[int] = (256, 256, 256),
        out_dim: int = 1,
        *,
        activation: Activation = "relu",
        head_bound: float | None = CRITIC_HEAD_BOUND,
        init: Init = "rlkit",
        layer_norm: bool = False,
        dropout: float = 0.0,
        spectral_norm: Sequence[int] = (),
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.members, self.in_dim, self.hidden, self.out_dim = (
            members,
            in_dim,
            tuple(hidden),
            out_dim,
        )
        self.activation, self.layer_norm, self.dropout = activation, layer_norm, dropout
        self.dropout_generator: torch.Generator | None = None
        self.chunk_rows = CPU_CHUNK_ROWS
        widths = [in_dim, *self.hidden]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(members, fan_in, fan_out))
            for fan_in, fan_out in pairwise(widths)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.empty(members, 1, width)) for width in self.hidden
        )
        self.head_weight = nn.Parameter(torch.empty(members, out_dim, widths[-1]))
        self.head_bias = nn.Parameter(torch.zeros(members, out_dim, 1))
        for weight, bias in zip(self.weights, self.biases, strict=True):
            fan_in, fan_out = weight.shape[1:]
            uniform_(weight, hidden_bound(init, fan_in, fan_out), generator)
            hidden_bias_(bias, init, fan_in, generator)
        if head_bound is None:
            head_bound = hidden_bound("fan-in", widths[-1], out_dim)
            hidden_bias_(self.head_bias, init, widths[-1], generator)
        else:
            uniform_(self.head_bias, head_bound, generator)
        uniform_(self.head_weight, head_bound, generator)

        depth = len(self.hidden) + 1
        self.spectral_layers = sorted({layer % depth for layer in spectral_norm})
        for layer in self.spectral_layers:
            rows = self._raw_weights()[layer].shape[1]
            u = torch.randn(members, rows, 1, generator=generator)
            self.register_buffer(f"u{layer}", u / u.norm(dim=1, keepdim=True))
        self._work: dict[tuple[int, torch.device, torch.dtype], list[Tensor]] = {}

    # ---------------------------------------------------------------- weights

    def _raw_weights(self) -> list[Tensor]:
        return [*self.weights, self.head_weight]

    def _effective_weights(self) -> list[Tensor]:
        """Weights as used: the parameters, or parameters over their spectral norm. [K, in, out]"""
        weights = self._raw_weights()
        for layer in self.spectral_layers:
            u = cast(Tensor, getattr(self, f"u{layer}"))
            weight = weights[layer]
            with torch.no_grad():
                v = weight.mT @ u
                v = v / v.norm(dim=1, keepdim=True).clamp_min(1e-12)
            sigma = u.mT @ weight @ v  # [K, 1, 1]
            weights[layer] = weight / sigma
        return weights

    @torch.no_grad()
    def update_spectral_norm(self) -> None:
        """One step of the power iteration; call once a training step."""
        for layer in self.spectral_layers:
            u = cast(Tensor, getattr(self, f"u{layer}"))
            weight = self._raw_weights()[layer]
            u.copy_(weight @ (weight.mT @ u))
            u.div_(u.norm(dim=1, keepdim=True).clamp_min(1e-12))

    @property
    def plain_relu(self) -> bool:
        """Whether the network is piecewise linear."""
        return self.hand_written and not self.layer_norm

    @property
    def hand_written(self) -> bool:
        """Whether the hand-written passes apply; everything else goes through autograd."""
        return self.activation == "relu" and self.dropout == 0

    @property
    def deterministic(self) -> bool:
        """Whether the same rows give the same values twice (no dropout)."""
        return self.dropout == 0

    # ---------------------------------------------------------------- differentiable call

    def forward(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """Values of all members.

        Args:
            x: ``[N, in]``, the same rows for every member, or ``[K, N, in]``.
            frozen: pass gradients to ``x`` only, not to the weights.

        Returns:
            ``[K, N]`` when ``out_dim`` is 1, else ``[K, N, out]``.
        """
        h = x.expand(self.members, *x.shape[-2:])
        parameters = [*self._effective_weights(), *self.biases, self.head_bias]
        if frozen:
            parameters = [parameter.detach() for parameter in parameters]
        if self.plain_relu:
            out = cast(Tensor, StackedReLU.apply(h, len(self.hidden), *parameters))
        else:
            *weights, head = parameters[: len(self.hidden) + 1]
            *biases, head_bias = parameters[len(self.hidden) + 1 :]
            for weight, bias in zip(weights, biases, strict=True):
                h = self._activate(torch.baddbmm(bias, h, weight))
            out = torch.baddbmm(head_bias, head, h.mT)
        return out.squeeze(1) if self.out_dim == 1 else out.mT

    @torch.no_grad()
    def values(self, x: Tensor) -> Tensor:
        """``forward`` without gradients, ``[N, in]`` -> ``[K, N]``, in chunks, buffers reused."""
        if not self.hand_written or self.out_dim != 1:
            return self.forward(x)
        weights = self._effective_weights()
        pieces = []
        for part in self.chunks(x):
            hidden, _ = self.hidden_layers(x[part], weights)
            pieces.append(torch.baddbmm(self.head_bias, weights[-1], hidden[-1].mT).squeeze(1))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def pickable(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """All members' values, and a way to follow one member a row.

        Choosing needs every member's value; the gradient needs the chosen member alone. What the
        first pass computed is kept, so that following costs a backward pass of one member.

        Args:
            x: ``[N, in]``.

        Returns:
            Values ``[K, N]`` without gradient, and a function from members ``[N]`` to their values
            ``[N]`` whose gradient reaches ``x``; call it before the next pass of this network.
        """
        if not self.hand_written or self.out_dim != 1:
            every = self.forward(x, frozen=True)
            return every.detach(), lambda chosen: every.gather(0, chosen[None]).squeeze(0)
        with torch.no_grad():
            weights = self._effective_weights()
            hidden, norms = self.hidden_layers(x.detach(), weights)
            values = torch.baddbmm(self.head_bias, weights[-1], hidden[-1].mT).squeeze(1)

        def follow(chosen: Tensor) -> Tensor:
            # Rows sorted by member: each member then owns one contiguous block.
            members, order = chosen.sort(stable=True)
            kept = [h[members, order] for h in hidden]  # [N, H] each
            kept_norms = [norm and norm.rows(members, order) for norm in norms]
            picked = values[members, order]
            detached = [w.detach() for w in weights]
            out = FollowMember.apply(x[order], picked, members, kept, kept_norms, detached)
            return cast(Tensor, out)[order.argsort()]

        return values, follow

    def member(self, x: Tensor, member: int) -> Tensor:
        """One member's values, ``[N, in]`` -> ``[N]``; gradients reach ``x`` only."""
        h, weights = x, self._effective_weights()
        if self.plain_relu:
            layers = zip(
                [*weights[:-1], weights[-1].mT], [*self.biases, self.head_bias], strict=True
            )
            mine = [(w[member].mT.detach(), b[member, 0].detach()) for w, b in layers]
            return relu_network(x, [part for layer in mine for part in layer]).squeeze(1)
        for weight, bias in zip(weights[:-1], self.biases, strict=True):
            bias, weight = bias.detach()[member], weight.detach()[member]
            h = self._activate(torch.addmm(bias, h, weight))
        head, head_bias = weights[-1].detach()[member], self.head_bias.detach()[member]
        return (h @ head.mT + head_bias).squeeze(1)

    def _activate(self, z: Tensor) -> Tensor:
        if self.layer_norm:
            z = nn.functional.layer_norm(z, z.shape[-1:], eps=LAYER_NORM_EPS)
        h = torch.relu(z) if self.activation == "relu" else nn.functional.silu(z)
        if self.dropout:
            keep = 1 - self.dropout
            mask = torch.empty_like(h).bernoulli_(keep, generator=self.dropout_generator)
            h = h * (mask / keep)
        return h

    # ---------------------------------------------------------------- chunked training

    def regress(
        self, x: Tensor, loss: ChunkLoss, *, offset: Tensor | None = None, group: int = 1
    ) -> Tensor:
        """Add the gradient of ``sum of loss(values, rows)`` over chunks of rows to ``.grad``.

        The loss must be a sum over rows, so that chunks can be taken one after another: what a row
        contributes may depend on all members' values of this row, not on other rows.

        Args:
            x: ``[N, in]``, no gradient is passed to it.
            loss: maps the values ``[K, n]`` of a chunk and its row range to a scalar.
            offset: ``[K, N]`` added to the values (a random prior's).
            group: this many neighbouring rows stay in one chunk, for a loss over groups of rows.

        Returns:
            The total loss, a 0-dim tensor.
        """
        total = torch.zeros((), device=x.device, dtype=x.dtype)
        weights = self._effective_weights()
        gradients = [torch.zeros_like(w) for w in weights] if self.spectral_layers else []
        for part in self.chunks(x, group):
            shift = None if offset is None else offset[:, part]
            if self.hand_written:
                total += self._regress_chunk(x[part], part, loss, weights, gradients, shift)
            else:
                values = self.forward(x[part])
                value = loss(values if shift is None else values + shift, part)
                value.backward()
                total += value.detach()
        for layer in self.spectral_layers:
            weights[layer].backward(gradients[layer])
        return total

    @torch.no_grad()
    def _regress_chunk(
        self,
        x: Tensor,
        part: slice,
        loss: ChunkLoss,
        weights: list[Tensor],
        spectral_gradients: list[Tensor],
        offset: Tensor | None,
    ) -> Tensor:
        members, rows = self.members, len(x)
        stacked = x.expand(members, rows, x.shape[1])
        activations, norms = self.hidden_layers(x, weights)
        values = torch.baddbmm(self.head_bias, weights[-1], activations[-1].mT).squeeze(1)
        if offset is not None:
            values += offset
        with torch.enable_grad():
            leaf = values.requires_grad_()
            value = loss(leaf, part)
            (slope,) = torch.autograd.grad(value, leaf)  # dLoss/dQ [K, n]

        def add(parameter: Tensor, layer: int | None, left: Tensor, right: Tensor) -> None:
            if layer is not None and layer in self.spectral_layers:
                spectral_gradients[layer].baddbmm_(left, right)
            elif parameter.grad is None:
                parameter.grad = torch.bmm(left, right)
            else:
                parameter.grad.baddbmm_(left, right)

        ones = torch.ones((members, 1, rows), device=x.device, dtype=x.dtype)
        slope = slope.unsqueeze(1)  # [K, 1, n]
        depth = len(self.hidden)
        add(self.head_weight, depth, slope, activations[-1])
        add(self.head_bias, None, slope, ones.mT)
        gradient = torch.mul(slope.mT, weights[-1], out=self._workspace(rows, x)[-1])
        for layer in range(depth - 1, -1, -1):
            mask_(gradient, activations[layer])
            if norm := norms[layer]:
                gradient = norm.back(gradient)
            below = activations[layer - 1] if layer else stacked
            add(self.weights[layer], layer, below.mT, gradient)
            add(self.biases[layer], None, ones, gradient)
            if layer:
                # The activation above has served; its memory takes the next gradient.
                above = activations[layer]
                free = above if above.shape == below.shape else torch.empty_like(below)
                gradient = torch.bmm(gradient, weights[layer].mT, out=free)
        return value.detach()

    def chunks(self, x: Tensor, group: int = 1) -> list[slice]:
        """Row ranges of nearly equal size: a short last one would use the cores badly."""
        rows = len(x)
        step = self.chunk_rows if x.device.type == "cpu" else max(rows, 1)
        count = max(1, -(-rows // step))
        groups = rows // group
        edges = [groups * i // count * group for i in range(count)] + [rows]
        return [slice(a, b) for a, b in pairwise(edges) if a < b]

    def hidden_layers(
        self, x: Tensor, weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Normalised | None]]:
        """Hidden activations of the rows ``x``, ``[K, n, H]`` each, and their layer norms.

        Both may live in reused buffers.
        """
        h = x.expand(self.members, *x.shape)
        activations, norms = [], []
        for weight, bias, out in zip(
            weights[:-1], self.biases, self._workspace(len(x), x)[:-1], strict=True
        ):
            torch.bmm(h, weight, out=out)
            norm = None
            if self.layer_norm:
                z = out.add_(bias)
                h, *moments = torch.native_layer_norm(z, z.shape[-1:], None, None, LAYER_NORM_EPS)
                h, norm = h.relu_(), Normalised(z, *moments)
            else:
                h = add_relu_(out, bias)
            activations.append(h)
            norms.append(norm)
        return activations, norms

    def _workspace(self, rows: int, like: Tensor) -> list[Tensor]:
        """Reused buffers: one an activation, and one for the gradient of the last."""
        key = (rows, like.device, like.dtype)
        buffers = self._work.get(key)
        if buffers is None:
            if len(self._work) >= 4:  # a run has few chunk sizes
                self._work.clear()
            widths = [*self.hidden, self.hidden[-1]]
            buffers = [like.new_empty(self.members, rows, width) for width in widths]
            self._work[key] = buffers
        return buffers
