"""Networks of the package as ONNX graphs, built node by node from their weights.

No tracing and no exporter: every network here is a handful of matrix products, so the graph is
written down directly. That keeps files small, readable in a viewer, and independent of torch's
exporter versions. ``pbrl.deploy.export`` puts these pieces together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pbrl.errors import PbrlError, optional_import
from pbrl.nn.critics import Critics
from pbrl.nn.ensemble import EnsembleMLP
from pbrl.nn.policy import LOG_STD_RANGE, MLP

OPSET = 18
IR_VERSION = 9
LAYER_NORM_EPSILON = 1e-5  # torch's default


class Graph:
    """A growing ONNX graph; every method returns the name of a value."""

    def __init__(self) -> None:
        self.onnx = optional_import("onnx", "export")
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, value: ArrayLike | Tensor, name: str = "", dtype: Any = np.float32) -> str:
        """A stored tensor, which must be finite."""
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(np.asarray(value, dtype))
        if not np.isfinite(array).all():
            raise PbrlError(
                "The agent's weights or maps hold values that are not finite; not exported. "
                "Take an earlier checkpoint, or train again."
            )
        # ascontiguousarray turns scalars into [1]; their shape matters for broadcasting of axes.
        return self._store(array.reshape(np.shape(value)), name)

    def default(self, name: str, value: NDArray[Any]) -> str:
        """What an optional input is where it is not given."""
        return self._store(value.astype(np.float32), name)

    def infinity(self) -> str:
        """The number no measurement reaches."""
        return self._store(np.array(np.inf, np.float32))

    def _store(self, array: NDArray[Any], name: str = "") -> str:
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node with one output."""
        name = name or f"{operator.lower()}{len(self.nodes)}"
        node = self.onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes)
        self.nodes.append(node)
        return name

    def axes(self, *axes: int) -> str:
        """Axes as an input (from opset 13 and 18 on they are no attributes)."""
        return self.constant(list(axes), dtype=np.int64)

    def affine(self, x: str, factor: ArrayLike, offset: ArrayLike, name: str = "") -> str:
        """``x * factor + offset``."""
        scaled = self.node("Mul", x, self.constant(factor))
        return self.node("Add", scaled, self.constant(offset), name=name)

    def doubt(self, x: str) -> str:
        """``[N, C] -> [N]``: 0 where a row is finite, NaN where it is not."""
        return self.node("ReduceSum", self.node("Sub", x, x), self.axes(1), keepdims=0)

    # ---------------------------------------------------------------- networks

    def mlp(self, network: MLP, x: str) -> str:
        """``[N, in] -> [N, out]``."""
        for layer in network.layers:
            x = self.node("Relu", self._linear(layer, x))
        return self._linear(network.head, x)

    def _linear(self, layer: Any, x: str) -> str:
        weight, bias = self.constant(layer.weight), self.constant(layer.bias)
        return self.node("Gemm", x, weight, bias, transB=1)

    def gaussian(
        self,
        network: MLP,
        x: str,
        action_dim: int,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
    ) -> tuple[str, str]:
        """Mean and clamped log-std, ``[N, A]`` each."""
        both = self.mlp(network, x)
        mean = self._columns(both, 0, action_dim)
        log_std = self._columns(both, action_dim, 2 * action_dim)
        low, high = (self.constant(np.float32(bound)) for bound in log_std_range)
        return mean, self.node("Clip", log_std, low, high)

    def _columns(self, x: str, start: int, stop: int) -> str:
        return self.node("Slice", x, self.axes(start), self.axes(stop), self.axes(1))

    def ensemble(self, network: EnsembleMLP, x: str, member: int | None = None) -> str:
        """Values of all members, ``[N, in] -> [K, N]``, or of one, ``[1, N]``; without dropout."""
        pick = slice(None) if member is None else slice(member, member + 1)
        *weights, head = [weight[pick] for weight in network._effective_weights()]
        h = x
        for weight, bias in zip(weights, network.biases, strict=True):
            product = self.node("MatMul", h, self.constant(weight))  # [K, N, H] by broadcasting
            z = self.node("Add", product, self.constant(bias[pick]))
            if network.layer_norm:
                scale = self.constant(np.ones(weight.shape[2]))
                z = self.node("LayerNormalization", z, scale, axis=-1, epsilon=LAYER_NORM_EPSILON)
            h = self._activation(network, z)
        product = self.node("MatMul", h, self.constant(head.mT))
        value = self.node("Add", product, self.constant(network.head_bias[pick]))  # [K, N, 1]
        return self.node("Squeeze", value, self.axes(2))

    def _activation(self, network: EnsembleMLP, z: str) -> str:
        if network.activation == "relu":
            return self.node("Relu", z)
        return self.node("Mul", z, self.node("Sigmoid", z))

    def critics(self, critics: Critics, x: str, member: int | None = None) -> str:
        """Q of all members with their priors, ``[N, S + A] -> [K, N]``."""
        values = self.ensemble(critics.main, x, member)
        if critics.prior is None:
            return values
        prior = self.ensemble(critics.prior, x, member)
        scale = self.constant(np.float32(critics.prior_scale or 0.0))
        return self.node("Add", values, self.node("Mul", prior, scale))

    def deviation(self, values: str, mean: str, members: int, correction: int, name: str) -> str:
        """Std over members, ``[K, N], [N] -> [N]``."""
        centred = self.node("Sub", values, mean)
        total = self.node("ReduceSumSquare", centred, self.axes(0), keepdims=0)
        divisor = self.constant(np.float32(1 / (members - correction)))
        return self.node("Sqrt", self.node("Mul", total, divisor), name=name)

    # ---------------------------------------------------------------- the file

    def model(
        self,
        inputs: dict[str, list[int | str]],
        outputs: dict[str, list[int | str]],
        metadata: dict[str, str],
    ) -> Any:
        """The finished, checked model with float32 inputs and outputs of these shapes."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes,
            "pbrl-policy",
            [helper.make_tensor_value_info(n, kind, shape) for n, shape in inputs.items()],
            [helper.make_tensor_value_info(n, kind, shape) for n, shape in outputs.items()],
            self.initializers,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name="pbrl",
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, metadata)
        self.onnx.checker.check_model(model, full_check=True)
        return model
