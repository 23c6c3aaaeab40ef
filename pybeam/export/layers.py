"""The layers that are nothing but weights, and how sources enter a graph: as ids, or as features."""

from __future__ import annotations

from torch import Tensor

from pybeam.export.builder import FLOAT, INT, Builder, Value, value
from pybeam.models.base import Model
from pybeam.models.linear import Linear, PlainLinear
from pybeam.models.transformer.fronts import GATE
from pybeam.models.transformer.norms import Norm
from pybeam.models.transformer.speech import SpeechSources, Subsampler


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

    def norm(self, op: Builder, norm: Norm, x: Value, name: str) -> Value:
        """Record a layer norm of rows."""
        assert norm.bias is not None, "others are not exported"
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


def source_inputs(model: Model) -> tuple[Value, Value]:
    """The graph's inputs for sources: ids or features, and their lengths."""
    if isinstance(model, SpeechSources):
        features = value("features", FLOAT, "B", "E", model.config.sound.num_features)
        return features, value("feature_length", INT, "B")
    return value("source", INT, "B", "E"), value("source_length", INT, "B")


def subsample(
    op: Builder, front: Subsampler, weights: Weights, x: Value, length: Value
) -> tuple[Value, Value]:
    """Return hidden states [B, P, d] for features x [B, E, F], and how many each source has [B].

    Before each convolution, positions behind a source's length become zeros, as those beyond the ends
    are. So a source gets what it gets alone.
    """
    x = op.Transpose(x, perm=[0, 2, 1])  # [B, F, E]
    config = front.config
    for i, (layer, convolution) in enumerate(zip(front.layers, config.convolutions, strict=True)):
        size, stride = convolution.kernel_size, convolution.stride
        name = f"encoder.front.{i}"
        # windows are flattened position by position
        weight = layer.weight.unflatten(1, (size, -1)).transpose(1, 2)  # [C', C, k]
        x = op.Where(op.Unsqueeze(op.mask(op.size(x, 2), length), [1]), x, 0.0)
        assert layer.bias is not None
        kept = ((weight, f"{name}.weight"), (layer.bias, f"{name}.bias"))
        stored = [weights.store(*one) for one in kept]
        x = op.Conv(x, *stored, strides=[stride], pads=[size // 2, size // 2])
        if config.activation == GATE:
            x, gate = op.Split(x, axis=1, num_outputs=2, outputs=2)
            x = op.Mul(x, op.Sigmoid(gate))
        else:
            x = op.Gelu(x)
        length = op.Div(op.Add(length, stride - 1), stride)  # x is [B, C', ceil(E / stride)]
    return op.Transpose(x, perm=[0, 2, 1]), length
