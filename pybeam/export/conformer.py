"""Record a Conformer encoder as ONNX operators: FireRedASR-AED's.

Recordings of a batch are padded here. Anything behind a recording becomes zeros before each convolution, and
is masked in attention, so a recording gets what it gets alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.export.builder import Builder, Value
from pybeam.export.layers import Weights
from pybeam.models.conformer.attention import RelativeAttention
from pybeam.models.conformer.config import KERNEL, STRIDE
from pybeam.models.conformer.model import ConformerTransformer
from pybeam.models.conformer.parts import ConvolutionModule, FeedForward, PlaneSubsampler


class EncoderStates(NamedTuple):
    """B recordings of P positions at most, while the layers pass."""

    length: Value  # [B], positions
    mask: Value  # [B, P] bool
    bias: Value  # [B, 1, 1, P], of attention
    sinusoids: Value  # [2 P - 1, d], of the distances P - 1 down to 1 - P
    shape: Value  # of [B, P, d]


class ConformerGraph:
    """The operators of a Conformer, from features to hidden states."""

    def __init__(self, weights: Weights, model: ConformerTransformer) -> None:
        self._weights, self._conformer = weights, model.conformer
        self._num_heads = model.config.num_encoder_heads
        self._size = model.config.hidden_size

    def record(self, op: Builder, features: Value, length: Value) -> tuple[Value, Value]:
        """Return hidden states [B, P, d] of features [B, E, F], and how many each recording has [B]."""
        x, length = self._subsample(op, self._conformer.subsampler, features, length)
        size = op.size(x, 1)
        mask = op.mask(size, length)
        bias = op.bias(op.Unsqueeze(mask, [1, 2]))
        heard = EncoderStates(length, mask, bias, self._sinusoids(op, size), op.Shape(x))
        x = op.Reshape(x, [-1, self._size])  # [B * P, d]
        for i, layer in enumerate(self._conformer.layers):
            name = f"encoder.{i}"
            x = self._feed_forward(op, layer.before, x, f"{name}.before")
            x = self._attend(op, layer.attention, x, heard, f"{name}.attention")
            x = self._convolve(op, layer.convolution, x, heard, f"{name}.convolution")
            x = self._feed_forward(op, layer.after, x, f"{name}.after")
            x = self._weights.norm(op, layer.norm, x, f"{name}.norm")
        return op.Reshape(x, heard.shape), length

    def _subsample(
        self, op: Builder, front: PlaneSubsampler, features: Value, length: Value
    ) -> tuple[Value, Value]:
        name = "encoder.front"
        x = op.Where(op.Unsqueeze(op.mask(op.size(features, 1), length), [2]), features, 0.0)
        x = op.Pad(x, [0, 0, 0, 0, front.right_padding, 0])
        length = op.Add(length, front.right_padding)
        x = op.Unsqueeze(x, [1])  # [B, 1, E, F]
        for i, layer in enumerate((front.first, front.second)):
            # windows are flattened channel by channel
            weight = layer.weight.unflatten(1, (-1, KERNEL, KERNEL))  # [C', C, 3, 3]
            assert layer.bias is not None
            stored = [
                self._weights.store(one, f"{name}.{i}.{part}")
                for one, part in ((weight, "weight"), (layer.bias, "bias"))
            ]
            x = op.Relu(op.Conv(x, *stored, strides=[STRIDE, STRIDE]))
            # no window reaches beyond the end
            whole = op.Max(op.Sub(length, KERNEL - STRIDE), 0)
            length = op.Div(whole, STRIDE)
        x = op.Transpose(x, perm=[0, 2, 1, 3])  # [B, P, C, bands]
        num, size = op.size(x, 0), op.size(x, 1)
        flat = op.Flatten(x, axis=2)
        flat = op.Reshape(flat, [-1, front.out.weight.shape[1]])
        y = self._weights.linear(op, front.out, flat, f"{name}.out")
        return op.Reshape(y, op.sizes(num, size, self._size)), length

    def _sinusoids(self, op: Builder, size: Value) -> Value:
        """Return [2 P - 1, d]: sines are odd and cosines are even, so one table serves both signs."""
        table = self._weights.store(self._conformer.position_table, "encoder.sinusoids")
        column = op.range(op.Sub(op.Mul(size, 2), 1))
        distance = op.Sub(op.Sub(size, 1), column)
        sign = torch.ones(self._size)
        sign[0::2] = -1.0
        is_behind = op.Unsqueeze(op.Less(distance, 0), [1])
        sinusoid = op.Gather(table, op.Abs(distance), axis=0)
        return op.Mul(sinusoid, op.Where(is_behind, op.constant(sign), 1.0))

    def _feed_forward(self, op: Builder, part: FeedForward, x: Value, name: str) -> Value:
        y = self._weights.norm(op, part.norm, x, f"{name}.norm")
        y = self._weights.linear(op, part.inner, y, f"{name}.inner")
        return op.Add(x, self._weights.linear(op, part.out, y, f"{name}.out"))

    def _attend(
        self, op: Builder, part: RelativeAttention, x: Value, heard: EncoderStates, name: str
    ) -> Value:
        weights, heads = self._weights, self._num_heads
        num, size = op.Slice(heard.shape, [0], [1]), op.Slice(heard.shape, [1], [2])
        split = op.sizes(num, size, heads, -1)

        def projected(kind: str) -> Value:
            y = weights.norm(op, getattr(part, f"{kind}_norm"), x, f"{name}.{kind}_norm")
            y = op.Reshape(weights.linear(op, getattr(part, kind), y, f"{name}.{kind}"), split)
            return op.Transpose(y, perm=[0, 2, 1, 3])  # [B, H, P, D]

        def biased(bias: Tensor, kind: str) -> Value:
            return op.Add(query, weights.store(bias[:, None].contiguous(), f"{name}.{kind}_bias"))

        query, key, value = map(projected, ("query", "key", "value"))
        position = weights.linear(op, part.position, heard.sinusoids, f"{name}.position")
        position = op.Reshape(position, op.sizes(op.size(position, 0), heads, -1))
        content = op.MatMul(
            biased(part.content_bias, "content"), op.Transpose(key, perm=[0, 1, 3, 2])
        )
        by_distance = op.MatMul(
            biased(part.position_bias, "position"), op.Transpose(position, perm=[1, 2, 0])
        )
        score = op.Add(content, _by_key(op, by_distance, size))  # [B, H, P, P]
        score = op.Add(op.Mul(score, (self._size // heads) ** -0.5), heard.bias)
        y = op.MatMul(op.Softmax(score, axis=-1), value)
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [-1, self._size])
        return op.Add(x, weights.linear(op, part.out, y, f"{name}.out"))

    def _convolve(
        self, op: Builder, part: ConvolutionModule, x: Value, heard: EncoderStates, name: str
    ) -> Value:
        weights = self._weights
        y = weights.linear(op, part.gate, weights.norm(op, part.norm, x, f"{name}.norm"), name)
        y, gate = op.Split(y, axis=1, num_outputs=2, outputs=2)
        y = op.Mul(y, op.Sigmoid(gate))  # [B * P, C]
        size, channels = part.depthwise.shape
        spread = op.sizes(op.Slice(heard.shape, [0], [2]), channels)
        y = op.Where(op.Unsqueeze(heard.mask, [2]), op.Reshape(y, spread), 0.0)
        weight = weights.store(part.depthwise.t().unsqueeze(1).contiguous(), f"{name}.depthwise")
        y = op.Conv(
            op.Transpose(y, perm=[0, 2, 1]), weight, group=channels, pads=[size // 2, size // 2]
        )
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1]), [-1, channels])
        y = weights.norm(op, part.inner_norm, y, f"{name}.inner_norm")
        y = op.Mul(y, op.Sigmoid(y))
        return op.Add(x, weights.linear(op, part.out, y, f"{name}.out"))


def _by_key(op: Builder, by_distance: Value, size: Value) -> Value:
    """Turn scores by distance [B, H, P, 2 P - 1] into scores by key [B, H, P, P].

    Row i begins where the distance to key 0 is i, one column earlier than the row above it. One more column,
    and P numbers less in front, put these beginnings below each other.
    """
    padded = op.Pad(by_distance, [0, 0, 0, 1, 0, 0, 0, 0])  # [B, H, P, 2 P]
    front = op.Slice(op.Shape(padded), [0], [2])
    twice = op.Mul(size, 2)
    rows = op.Slice(op.Reshape(padded, op.Concat(front, twice, size, axis=0)), [1], [2**31], [2])
    rows = op.Reshape(rows, op.Concat(front, size, op.Sub(twice, 1), axis=0))
    return op.Slice(rows, [0], size, [3])
