"""Record a batched beam search as ONNX operators: one graph from source ids or features to hypotheses.

The rules are those of an `Algorithm`. Keys and values do not follow the rows here either: masks say which
rows see them, and those that no row sees are dropped.
"""

from __future__ import annotations

import dataclasses

import torch

from pybeam.export.builder import BOOL, FLOAT, INT, Builder, Recorded, value
from pybeam.export.hypotheses import INF, PADDING, Beams, Hypotheses
from pybeam.export.layers import source_inputs
from pybeam.export.rules import Rules, Sizes, facts_of
from pybeam.export.step import Step
from pybeam.export.transformer import CrossAttention, Encoded, KeyValue, Network
from pybeam.models.transformer.model import Transformer
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam
from pybeam.search.settings import applied, plain


def with_settings(algorithm: Algorithm, model: Transformer) -> Algorithm:
    """Return the search of a decoder: with the settings of the model's folder, but a forced first token."""
    whole = applied(algorithm, model)
    return dataclasses.replace(whole, processors=tuple(map(plain, whole.processors)))


class Search:
    """The loop of one graph, with the tensors that its body reads."""

    def __init__(self, op: Builder, network: Network, encoded: Encoded, rules: Rules) -> None:
        self._network, self._rules = network, rules
        layers = range(len(network.model.decoder.layers))
        key_value = [
            KeyValue(
                *(op.Gather(op.Gather(encoded.key_value, i, axis=0), j, axis=0) for j in (0, 1))
            )
            for i in layers
        ]
        self._cross = CrossAttention(key_value, op.bias(op.Unsqueeze(encoded.mask, [1])))

    def run(self, op: Builder) -> Hypotheses:
        """The hypotheses of each source that have finished or were cut."""
        values = self._start(op).values()
        body, most = self._body(), self._rules.num_steps(op)
        states = op.Loop(most, None, *values, body=body, outputs=len(values))
        return Beams.of(list(states)).finished

    def _start(self, op: Builder) -> Beams:
        """Make the first beam. Every source has K rows, for the sake of the shape, but one score."""
        network, rules = self._network, self._rules
        batch, width = rules.batch, rules.width
        live = Hypotheses.none(op, batch, width)
        zero = op.Expand(0, op.sizes(batch, 1))
        is_first = op.Equal(op.Add(live.length, op.range(width)), 0)
        cache = op.Expand(0.0, op.sizes(network.num_heads, batch, 0, network.head_size))
        return Beams(
            op.Expand(network.model.start_id, op.sizes(batch, width)),
            op.Cast(op.Expand(0, op.sizes(batch, width, 0)), to=BOOL),
            zero,
            op.Expand(-INF, op.sizes(batch, 1)),
            op.Cast(zero, to=BOOL),
            live._replace(score=op.Where(is_first, 0.0, -INF)),
            Hypotheses.none(op, batch, op.Mul(width, rules.num_kept)),
            [KeyValue(cache, cache) for _ in self._cross.key_value],
        )

    def _body(self):
        """Record the graph of one step, as the operator Loop takes it."""
        op = Builder("step.")
        step, is_running = value("step", INT), value("is_running", BOOL)
        beams = Beams.inputs(len(self._cross.key_value))
        after = Step(op, self._network, self._rules, self._cross, beams, step).record()
        goes_on = op.ReduceMax(op.Cast(after.live.exists(op), to=INT), keepdims=0)
        outputs = [op.Cast(goes_on, to=BOOL), *map(op.Identity, after.values())]
        inputs = beams.values()
        for output, given in zip(outputs, [is_running, *inputs], strict=True):
            output.dtype = given.dtype
        return op.graph("step", [step, is_running, *inputs], outputs)


def record_search(op: Builder, model: Transformer, algorithm: Algorithm | None = None) -> Recorded:
    """Record the whole search. docs/reference/onnx.md describes its inputs and outputs.

    Without an algorithm it is a `fixed_beam` that returns all of its hypotheses.

    Raises:
        ValueError: the graph cannot express a part of the algorithm.
    """
    is_whisper = model.config.model_type == "whisper"
    returns_all = algorithm is None
    if algorithm is None:
        algorithm = with_settings(fixed_beam(1), model)
    else:
        algorithm = with_settings(algorithm, model)
        op.facts.update(facts_of(algorithm, model))
    source, length = source_inputs(model)
    width, max_length = value("width", INT), value("max_length", INT)
    length_penalty = value("length_penalty", FLOAT)
    given = [source, length, width, max_length, length_penalty]
    prefix = None
    if is_whisper:
        prefix = value("prefix", INT, "B", "P")
        given.append(prefix)
    elif not returns_all:
        prefix = op.optional("prefix", torch.zeros(1, 0, dtype=torch.int64), "B", "P")
    network = Network(model, op)
    encoded = network.encode(op, source, length)
    width = op.Reshape(width, [1])
    sizes = Sizes(op.size(length, 0), encoded.length, width, max_length, length_penalty, prefix)
    rules = Rules(op, model, algorithm, sizes, returns_all=returns_all)
    found = Search(op, network, encoded, rules).run(op)
    final = rules.final_scores(op, found)
    final, index = op.TopK(final, rules.n_best, axis=1, outputs=2)
    best = found.at(op, index)
    num_tokens = op.Sub(best.length, op.Cast(best.has_ended, to=INT))
    num_tokens = op.Add(num_tokens, rules.prefix_length)
    num_tokens = op.Where(best.exists(op), num_tokens, 0)  # [B, K]
    is_token = op.Less(op.range(op.size(best.token, 2)), op.Unsqueeze(num_tokens, [2]))
    return [*given, *op.optional_inputs], [
        (op.Where(is_token, best.token, PADDING), value("tokens", INT, "B", "K", "T")),
        (op.Identity(num_tokens), value("lengths", INT, "B", "K")),
        (op.Identity(best.score), value("scores", FLOAT, "B", "K")),
        (final, value("final_scores", FLOAT, "B", "K")),
    ]
