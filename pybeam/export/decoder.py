"""Record the two graphs that pybeam's search runs: the encoder, and one step of the decoder."""

from __future__ import annotations

from pybeam.export.builder import BOOL, FLOAT, INT, Builder, Recorded, Value, value
from pybeam.export.front import source_inputs
from pybeam.export.transformer import KeyValue, Network, Places
from pybeam.models.transformer.model import Transformer


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
        [gathered(pool, cross_cell) for pool in cross],
        op.bias(op.Unsqueeze(cross_mask, [1])),
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
