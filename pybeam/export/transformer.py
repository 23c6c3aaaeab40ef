"""Record the built-in transformer as ONNX operators: its encoder, and one step of its decoder.

`record_encoder` and `record_decoder` make the two graphs that pybeam's search runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pybeam.backends.packing import Quantised
from pybeam.export.builder import BOOL, FLOAT, INT, Builder, Recorded, Value, value
from pybeam.export.conformer import ConformerGraph
from pybeam.export.layers import Weights, source_inputs, subsample
from pybeam.models.conformer.model import ConformerTransformer
from pybeam.models.linear import Linear
from pybeam.models.transformer.layers import Layer, Stack
from pybeam.models.transformer.model import Transformer
from pybeam.models.transformer.norms import Norm
from pybeam.models.transformer.positions import skips_padding
from pybeam.models.transformer.speech import SpeechTransformer


class KeyValue(NamedTuple):
    """Keys and values of one layer, each [H, A, U, D]. Heads come first, so that attention is one product."""

    key: Value
    value: Value


class Encoded(NamedTuple):
    """Sources as the decoder reads them: B of them, with P positions at most."""

    # [layers, 2, H, B, P, D] for every decoder layer; behind a length there may be anything
    key_value: Value
    length: Value  # [B] int64, positions
    mask: Value  # [B, P] bool


class CrossAttention(NamedTuple):
    """The sources as rows see them."""

    key_value: Sequence[KeyValue]  # of each layer, [H, A, E, D]
    bias: Value  # [A, 1, E]


class Places(NamedTuple):
    """The places of R rows in a table [A, K], in which the rows of each of A sources are neighbours."""

    row: Value  # [A, K], the row at each place; any row where there is none
    place: Value  # [R], a * K + k of each row


class Network:
    """A model whose weights are stored in one graph, once each, and used there or in its subgraphs.

    Rows are [n, d] everywhere but in attention, so that every linear layer is one product.
    """

    def __init__(self, model: Transformer, graph: Builder) -> None:
        self.model = model
        self.num_heads = model.decoder.num_heads
        self.head_size = model.config.hidden_size // self.num_heads
        self._weights = Weights(graph)

    def encode(self, op: Builder, source: Value, length: Value) -> Encoded:
        """Encode sources [B, E], or features [B, E, F], of these lengths [B]."""
        stack = self.model.encoder
        x, length = self._embed_sources(op, source, length)  # [B, P, d]
        num, size = op.size(x, 0), op.size(x, 1)
        mask = op.mask(size, length)  # [B, P]
        bias = op.bias(op.Unsqueeze(mask, [1, 2]))  # [B, 1, 1, P]
        x = op.Reshape(x, [-1, self._width])  # [B * P, d]
        heads = op.sizes(num, size, 3, stack.num_heads, -1)
        scale = (self.model.config.hidden_size // stack.num_heads) ** -0.5
        for i, layer in enumerate(stack.layers):
            name = f"encoder.{i}"
            y = self._norm(op, layer.self_norms.before, x, name)
            qkv = op.Reshape(self._weights.linear(op, layer.qkv, y, f"{name}.qkv"), heads)
            query, key, value = _parts(op, op.Transpose(qkv, perm=[2, 0, 3, 1, 4]), 3)
            score = op.Add(_score(op, op.Mul(query, scale), key), bias)  # [B, H, P, P]
            y = op.MatMul(op.Softmax(score, axis=-1), value)  # [B, H, P, D]
            y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [-1, self._width])
            x = self._after_attention(op, layer, x, y, name)
            x = self._inner(op, layer, x, name)
        if stack.final_norm is not None:
            x = self._weights.norm(op, stack.final_norm, x, "encoder.final_norm")
        y = self._weights.linear(op, self.model.cross_key_value, x, "cross_key_value")
        shape = op.sizes(
            num, size, len(self.model.decoder.layers), 2, self.num_heads, self.head_size
        )
        key_value = op.Transpose(op.Reshape(y, shape), perm=[2, 3, 4, 0, 1, 5])
        return Encoded(key_value, length, mask)

    def step(
        self,
        op: Builder,
        token: Value,
        position: Value,
        places: Places,
        own: Sequence[KeyValue],
        own_bias: Value,
        cross: CrossAttention,
    ) -> tuple[Value, list[KeyValue]]:
        """Return logits [R, V] behind tokens [R] at these positions [R], and the tokens' own keys and values.

        `own` are keys and values of earlier tokens. own_bias [A, K, U + K] says which of them a row sees, and
        which rows beside it: itself, and those that it continues. Keys and values [H, A, K, D] are returned
        at the rows' places.
        """
        stack = self.model.decoder
        place = self._decoder_rows(op, token, position)
        x = self._place(op, stack, self._tokens(op, stack, token), place)
        written = []
        for i, layer in enumerate(stack.layers):
            name, known = f"decoder.{i}", cross.key_value[i]
            y = self._norm(op, layer.self_norms.before, x, name)
            qkv = self._weights.linear(op, layer.qkv, y, f"{name}.qkv")
            query, key, value = _parts(op, self._placed(op, places, qkv, 3), 3)  # [H, A, K, D]
            written.append(KeyValue(key, value))
            y = _own_attention(op, self._scaled(op, query), own[i], written[i], own_bias)
            x = self._after_attention(op, layer, x, self._rows(op, places, y), name)
            assert layer.cross is not None
            cross_norms = layer.cross.norms
            y = self._norm(op, cross_norms.before, x, f"{name}.cross")
            query = self._weights.linear(op, layer.cross.query, y, f"{name}.cross_query")
            query = op.Squeeze(self._placed(op, places, query, 1), [0])  # [H, A, K, D]
            score = op.Add(_score(op, self._scaled(op, query), known.key), cross.bias)
            y = op.MatMul(op.Softmax(score, axis=-1), known.value)  # [H, A, K, D]
            y = self._weights.linear(
                op, layer.cross.out, self._rows(op, places, y), f"{name}.cross_out"
            )
            x = self._norm(op, cross_norms.behind, op.Add(x, y), f"{name}.cross")
            x = self._inner(op, layer, x, name)
        if stack.final_norm is not None:
            x = self._weights.norm(op, stack.final_norm, x, "decoder.final_norm")
        return self._weights.linear(op, self.model.output, x, "output"), written

    @property
    def _width(self) -> int:
        return self.model.config.hidden_size

    def _name(self, stack: Stack) -> str:
        return "encoder" if stack is self.model.encoder else "decoder"

    def _scaled(self, op: Builder, query: Value) -> Value:
        return op.Mul(query, self.head_size**-0.5)

    def _placed(self, op: Builder, places: Places, x: Value, num: int) -> Value:
        """Put rows [R, num * d] at their places: [num, H, A, K, D]."""
        x = op.Gather(x, places.row, axis=0)  # [A, K, num * d]
        shape = op.sizes(op.size(x, 0), op.size(x, 1), num, self.num_heads, self.head_size)
        return op.Transpose(op.Reshape(x, shape), perm=[2, 3, 0, 1, 4])

    def _rows(self, op: Builder, places: Places, y: Value) -> Value:
        """Turn [H, A, K, D] back into rows [R, d]."""
        y = op.Reshape(op.Transpose(y, perm=[1, 2, 0, 3]), [-1, self._width])
        return op.Gather(y, places.place, axis=0)

    def _embed_sources(self, op: Builder, source: Value, length: Value) -> tuple[Value, Value]:
        """Return the inputs [B, P, d] of the encoder's layers, and how many each source has [B]."""
        model = self.model
        if isinstance(model, ConformerTransformer):
            return ConformerGraph(self._weights, model).record(op, source, length)
        if isinstance(model, SpeechTransformer):
            x, length = subsample(op, model.front, self._weights, source, length)
        else:
            x = self._tokens(op, model.encoder, source)
        return self._place(op, model.encoder, x, op.range(op.size(x, 1))), length

    def _tokens(self, op: Builder, stack: Stack, token: Value) -> Value:
        # int8 is not exported
        assert not isinstance(stack.token_table, Quantised | None)
        table = self._weights.store(stack.token_table, f"{self._name(stack)}.tokens")
        return op.Gather(table, token, axis=0)  # [..., d]

    def _decoder_rows(self, op: Builder, token: Value, position: Value) -> Value:
        """Record where `Stack.embed` finds the positions of tokens."""
        config = self.model.config
        if not skips_padding(config):
            return position
        is_pad = op.Cast(op.Equal(token, config.pad_id), to=INT)
        return op.Add(position, op.Mul(is_pad, config.max_positions))

    def _place(self, op: Builder, stack: Stack, x: Value, position: Value) -> Value:
        """Embeddings x [..., n, d] with those of these positions [n]."""
        name = self._name(stack)
        x = op.Mul(x, float(stack.embedding_scale))
        positions = self._weights.store(stack.position_table, f"{name}.positions")
        x = op.Add(x, op.Gather(positions, position, axis=0))
        norm = stack.embedding_norm
        return x if norm is None else self._weights.norm(op, norm, x, f"{name}.embedding_norm")

    def _after_attention(self, op: Builder, layer: Layer, x: Value, y: Value, name: str) -> Value:
        y = op.Add(x, self._weights.linear(op, layer.self_out, y, f"{name}.self_out"))
        return self._norm(op, layer.self_norms.behind, y, name)

    def _inner(self, op: Builder, layer: Layer, x: Value, name: str) -> Value:
        y = self._norm(op, layer.inner_norms.before, x, f"{name}.inner")
        assert isinstance(layer.inner, Linear) and isinstance(layer.inner_out, Linear)
        y = self._weights.linear(op, layer.inner, y, f"{name}.inner")
        y = op.Add(x, self._weights.linear(op, layer.inner_out, y, f"{name}.inner_out"))
        return self._norm(op, layer.inner_norms.behind, y, f"{name}.inner")

    def _norm(self, op: Builder, norm: Norm | None, x: Value, name: str) -> Value:
        return x if norm is None else self._weights.norm(op, norm, x, f"{name}.norm")


def _parts(op: Builder, x: Value, num: int) -> Sequence[Value]:
    """Split the first axis, of size `num`, into its lines."""
    parts = op.Split(x, axis=0, num_outputs=num, outputs=num)
    return [op.Squeeze(part, [0]) for part in parts]


def _score(op: Builder, query: Value, key: Value) -> Value:
    return op.MatMul(query, op.Transpose(key, perm=[0, 1, 3, 2]))


def _own_attention(op: Builder, query: Value, old: KeyValue, new: KeyValue, bias: Value) -> Value:
    """Attend to U earlier tokens and to K rows, whose keys are in no cell yet. Returns [H, A, K, D]."""
    scores = op.Concat(_score(op, query, old.key), _score(op, query, new.key), axis=-1)
    share = op.Softmax(op.Add(scores, bias), axis=-1)  # [H, A, K, U + K]
    sizes = op.sizes(op.size(old.key, 2), op.size(new.key, 2))
    earlier, beside = op.Split(share, sizes, axis=-1, outputs=2)
    return op.Add(op.MatMul(earlier, old.value), op.MatMul(beside, new.value))


def record_encoder(op: Builder, model: Transformer) -> Recorded:
    """Record the encoder: from sources to keys and values of encoder states, by decoder layer."""
    source, length = source_inputs(model)
    network = Network(model, op)
    layers, heads, size = len(model.decoder.layers), network.num_heads, network.head_size
    encoded = network.encode(op, source, length)
    return [source, length], [
        (encoded.key_value, value("key_value", FLOAT, layers, 2, heads, "B", "P", size)),
        (op.Identity(encoded.length), value("position_length", INT, "B")),
    ]


def record_decoder(op: Builder, model: Transformer) -> Recorded:
    """Record one step of R rows of A sources, which gathers keys and values from their cells."""
    network = Network(model, op)
    layers, heads, size = len(model.decoder.layers), network.num_heads, network.head_size
    token, position = value("token", INT, "R"), value("position", INT, "R")
    places = Places(value("row", INT, "A", "K"), value("place", INT, "R"))
    own_cell, own_mask = value("own_cell", INT, "A", "U"), value("own_mask", BOOL, "A", "K", "U+K")
    cross_cell, cross_mask = value("cross_cell", INT, "A", "E"), value("cross_mask", BOOL, "A", "E")

    def pools(name: str, num_cells: str) -> list[KeyValue]:
        return [
            KeyValue(
                *(
                    value(f"{name}_{part}.{i}", FLOAT, heads, num_cells, size)
                    for part in KeyValue._fields
                )
            )
            for i in range(layers)
        ]

    def gathered(pool: KeyValue, cell: Value) -> KeyValue:
        return KeyValue(*(op.Gather(one, cell, axis=1) for one in pool))

    own, cross = pools("own", "own_cells"), pools("cross", "cross_cells")
    logits, written = network.step(
        op,
        token,
        position,
        places,
        [gathered(pool, own_cell) for pool in own],
        op.bias(own_mask),
        CrossAttention(
            [gathered(pool, cross_cell) for pool in cross], op.bias(op.Unsqueeze(cross_mask, [1]))
        ),
    )
    flat = [op.Unsqueeze(one, [0]) for pair in written for one in pair]
    shape = op.Concat([layers, 2], op.Shape(written[0].key), axis=0)
    key_value = op.Reshape(op.Concat(*flat, axis=0), shape)  # [layers, 2, H, A, K, D]
    inputs = [token, position, *places, own_cell, own_mask, cross_cell, cross_mask]
    inputs += [one for pool in (*own, *cross) for one in pool]
    return inputs, [
        (logits, value("logits", FLOAT, "R", model.vocab_size)),
        (key_value, value("key_value", FLOAT, layers, 2, heads, "A", "K", size)),
    ]
