"""Record the attentional LSTM as ONNX operators: its encoder, and one step of its decoder."""

from __future__ import annotations

import torch

from pybeam.export.builder import BOOL, FLOAT, INT, INT32, Builder, Recorded, Value, value
from pybeam.export.layers import Weights, source_inputs
from pybeam.models.rnn import LstmLayer, LstmStack, Rnn


def record_rnn_encoder(op: Builder, model: Rnn) -> Recorded:
    """Record the encoder: from source ids to the last layer's states, and to all layers' last states."""
    (source, length), weights = source_inputs(model), Weights(op)
    x = op.Gather(
        _table(weights, model.encoder, "encoder"), op.Transpose(source, perm=[1, 0]), axis=0
    )  # [E, B, d]
    direction = "reverse" if model.config.reverses_source else "forward"
    size, last = op.Cast(length, to=INT32), []
    for i, layer in enumerate(model.encoder.layers):
        x, hidden, cell = _lstm(op, weights, f"encoder.{i}", layer, x, size, direction=direction)
        last += [hidden, cell]
    states = value("states", FLOAT, "B", "E", model.config.hidden_size)
    return [source, length], [
        (op.Transpose(x, perm=[1, 0, 2]), states),
        (_joined(op, last, model), _state("last", "B", model)),
    ]


def record_rnn_decoder(op: Builder, model: Rnn) -> Recorded:
    """Record one step of R rows of A sources; inputs say which of C encoder states each source has."""
    token, state = value("token", INT, "R"), _state("state", "R", model)
    row, place = value("row", INT, "A", "K"), value("place", INT, "R")  # as `Places`
    cell, mask = value("cell", INT, "A", "E"), value("mask", BOOL, "A", "E")
    size, weights = model.config.hidden_size, Weights(op)
    pool = value("states", FLOAT, "C", size)
    lines = op.Transpose(op.Reshape(state, [0, -1, size]), perm=[1, 0, 2])  # [layers * 2, R, H]
    num = 2 * len(model.decoder.layers)
    old = op.Split(lines, axis=0, num_outputs=num, outputs=num)  # each [1, R, H]
    table = _table(weights, model.decoder, "decoder")
    x, new = op.Unsqueeze(op.Gather(table, token, axis=0), [0]), []  # [1, R, d]
    for i, layer in enumerate(model.decoder.layers):
        before = old[2 * i : 2 * i + 2]
        name = f"decoder.{i}"
        x, *after = _lstm(op, weights, name, layer, x, None, *before, direction="forward")
        new += after
    x = op.Squeeze(x, [0])  # [R, H]
    known = op.Gather(pool, cell, axis=0)  # [A, E, H]
    score = op.MatMul(op.Gather(x, row, axis=0), op.Transpose(known, perm=[0, 2, 1]))  # [A, K, E]
    share = op.Softmax(op.Add(score, op.bias(op.Unsqueeze(mask, [1]))), axis=-1)
    mixed = op.Gather(op.Reshape(op.MatMul(share, known), [-1, size]), place, axis=0)  # [R, H]
    y = weights.linear(op, model.attention, op.Concat(x, mixed, axis=1), "attention")
    logits = weights.linear(op, model.output, y, "output")
    return [token, state, row, place, cell, mask, pool], [
        (logits, value("logits", FLOAT, "R", model.vocab_size)),
        (_joined(op, new, model), _state("new_state", "R", model)),
    ]


def _state(name: str, num: str, model: Rnn) -> Value:
    """Join hidden and cell states of all layers into one tensor [n, layers, 2, H]."""
    return value(name, FLOAT, num, model.config.num_layers, 2, model.config.hidden_size)


def _joined(op: Builder, states: list[Value], model: Rnn) -> Value:
    """Join hidden and cell states of all layers, each [1, n, H], in turn: [n, layers, 2, H] as `_state`."""
    lines = op.Transpose(op.Concat(*states, axis=0), perm=[1, 0, 2])  # [n, layers * 2, H]
    return op.Reshape(lines, [0, -1, 2, model.config.hidden_size])


def _lstm(
    op: Builder,
    weights: Weights,
    name: str,
    layer: LstmLayer,
    x: Value,
    *rest: Value | None,
    direction: str,
) -> tuple[Value, Value, Value]:
    """Run one layer over x [E, n, d]: states [E, n, H], last hidden and cell state, each [1, n, H].

    `rest` may hold lengths [n] int32, the first hidden state and the first cell state.
    """
    assert layer.input.bias is not None
    bias = torch.cat((_gates(layer.input.bias), torch.zeros_like(layer.input.bias)))
    parts = {
        "input": _gates(layer.input.weight)[None],
        "recurrent": _gates(layer.recurrent.weight)[None],
        "bias": bias[None],
    }
    stored = [weights.store(tensor, f"{name}.{part}") for part, tensor in parts.items()]
    size = layer.recurrent.weight.shape[1]
    states, hidden, cell = op.LSTM(
        x, *stored, *rest, hidden_size=size, direction=direction, outputs=3
    )
    return op.Squeeze(states, [1]), hidden, cell


def _gates(weight: torch.Tensor) -> torch.Tensor:
    """Put gates i, f, g, o into the order of ONNX: i, o, f, g."""
    i, f, g, o = weight.chunk(4)
    return torch.cat((i, o, f, g))


def _table(weights: Weights, stack: LstmStack, name: str) -> Value:
    # int8 is not exported
    assert isinstance(stack.token_table, torch.Tensor)
    return weights.store(stack.token_table, f"{name}.tokens")
