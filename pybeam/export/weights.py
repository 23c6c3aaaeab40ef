"""`Weights`: the tensors of a model in one graph, and the layers that are nothing but weights."""

from __future__ import annotations

from torch import Tensor

from pybeam.export.builder import Builder, Value
from pybeam.models.linear import Linear, PlainLinear
from pybeam.models.transformer.layers import AnyNorm, Norm


class Weights:
    """Weights that are stored once each, and used in a graph or in its subgraphs."""

    def __init__(self, graph: Builder) -> None:
        self._graph = graph
        self._stored: dict[int, tuple[Value, Tensor | Linear]] = {}

    def store(self, weight: Tensor | Linear, name: str) -> Value:
        """Store a table. Tied tables are stored once, as the same tensor or as the same packed layer."""
        if isinstance(weight, PlainLinear):
            weight = weight.weight
        key = weight.data_ptr() if isinstance(weight, Tensor) else id(weight)
        if key not in self._stored:
            content = weight if isinstance(weight, Tensor) else weight.weight
            # keep the tensor, so that no other tensor can get its address
            self._stored[key] = self._graph.weight(content.float().cpu(), name), weight
        return self._stored[key][0]

    def linear(self, op: Builder, linear: Linear, x: Value, name: str) -> Value:
        """Record a linear layer of rows: [n, in] becomes [n, out]."""
        bias = () if linear.bias is None else (self.store(linear.bias, f"{name}.bias"),)
        y = op.Gemm(x, self.store(linear, f"{name}.weight"), *bias, transB=1)
        return y if linear.activation is None else _activated(op, linear.activation, y)

    def norm(self, op: Builder, norm: AnyNorm, x: Value, name: str) -> Value:
        """Record a layer norm of rows."""
        assert isinstance(norm, Norm)
        weight = self.store(norm.weight, f"{name}.weight")
        bias = self.store(norm.bias, f"{name}.bias")
        return op.LayerNormalization(x, weight, bias, axis=-1, epsilon=norm.epsilon)


def _activated(op: Builder, activation: str, x: Value) -> Value:
    if activation == "relu":
        return op.Relu(x)
    if activation == "tanh":
        return op.Tanh(x)
    if activation in ("silu", "swish"):
        return op.Mul(x, op.Sigmoid(x))
    return op.Gelu(x, approximate="none" if activation in ("gelu", "gelu_python") else "tanh")
