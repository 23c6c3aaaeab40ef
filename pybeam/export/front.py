"""Record how sources enter a graph: as ids, or as features, which convolutions shorten."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pybeam.export.builder import FLOAT, INT, Builder, Value, value
from pybeam.models.base import Model
from pybeam.models.transformer.config import GATE
from pybeam.models.transformer.sources import SpeechSources
from pybeam.models.transformer.speech import Subsampler


def source_inputs(model: Model) -> tuple[Value, Value]:
    """The graph's inputs for sources: ids or features, and their lengths."""
    if isinstance(model, SpeechSources):
        features = value("features", FLOAT, "B", "E", model.config.sound.num_features)
        return features, value("feature_length", INT, "B")
    return value("source", INT, "B", "E"), value("source_length", INT, "B")


def subsample(
    op: Builder, front: Subsampler, store: Callable[[Tensor, str], Value], x: Value, length: Value
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
        stored = store(weight, f"{name}.weight"), store(layer.bias, f"{name}.bias")
        x = op.Conv(x, *stored, strides=[stride], pads=[size // 2, size // 2])
        if config.activation == GATE:
            x, gate = op.Split(x, axis=1, num_outputs=2, outputs=2)
            x = op.Mul(x, op.Sigmoid(gate))
        else:
            x = op.Gelu(x)
        length = op.Div(op.Add(length, stride - 1), stride)  # x is [B, C', ceil(E / stride)]
    return op.Transpose(x, perm=[0, 2, 1]), length
