"""Record a batched beam search as ONNX operators: one graph from source ids or features to hypotheses.

The rules are those of an `Algorithm`. Keys and values do not follow the rows here either: masks say which
rows see them, and those that no row sees are dropped.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch

from pybeam.export.builder import BOOL, FLOAT, INT, Builder, Recorded, Value, value
from pybeam.export.candidates import Finished, Ranking
from pybeam.export.finishing import Progress
from pybeam.export.hypotheses import (
    DTYPES,
    INF,
    PADDING,
    RANKS,
    Hypotheses,
    Split,
    count_of,
    first,
)
from pybeam.export.layers import source_inputs
from pybeam.export.processors import Inputs
from pybeam.export.rules import Rules, Sizes, facts_of
from pybeam.export.transformer import Encoded, KeyValue, Network, Places
from pybeam.models.transformer.model import Transformer
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam
from pybeam.search.settings import applied, plain


def with_settings(algorithm: Algorithm, model: Transformer) -> Algorithm:
    """Return the search of a decoder: with the settings of the model's folder, but a forced first token."""
    whole = applied(algorithm, model)
    return dataclasses.replace(whole, processors=tuple(map(plain, whole.processors)))


class Beams(NamedTuple):
    """The state between two steps, for K entries of each of B sources.

    An entry is a row, which is alive, or a hypothesis that has ended and is held.
    """

    token: Value  # [B, K], the last one
    seen: Value  # [B, K, U] bool, which earlier tokens of its source a row descends from
    found: Value  # [B, 1], hypotheses that have finished
    best: Value  # [B, 1], the best score among them
    is_topped: Value  # [B, 1] bool, whether the best candidate of a step has ended
    live: Hypotheses  # K of them
    finished: Hypotheses  # in the order in which they finished, or best first
    own: list[KeyValue]  # per layer, of U earlier tokens

    @classmethod
    def start(cls, op: Builder, network: Network, rules: Rules, batch: Value) -> Beams:
        """Make the first beam. Every source has K rows, for the sake of the shape, but one score."""
        model, width, num_layers = network.model, rules.width, len(network.model.decoder.layers)
        live = Hypotheses.none(op, batch, width)
        zero = op.Expand(0, op.sizes(batch, 1))
        is_first = op.Equal(op.Add(live.length, op.range(width)), 0)
        cache = op.Expand(0.0, op.sizes(network.num_heads, batch, 0, network.head_size))
        return cls(
            op.Expand(model.start_id, op.sizes(batch, width)),
            op.Cast(op.Expand(0, op.sizes(batch, width, 0)), to=BOOL),
            zero,
            op.Expand(-INF, op.sizes(batch, 1)),
            op.Cast(zero, to=BOOL),
            live._replace(score=op.Where(is_first, 0.0, -INF)),
            Hypotheses.none(op, batch, op.Mul(width, rules.num_kept)),
            [KeyValue(cache, cache) for _ in range(num_layers)],
        )

    @classmethod
    def inputs(cls, num_layers: int) -> Beams:
        """Make the inputs of a graph that takes this state."""
        dtypes = [INT, BOOL, INT, FLOAT, BOOL, *2 * DTYPES, *2 * num_layers * (FLOAT,)]
        ranks = [2, 3, 2, 2, 2, *2 * RANKS, *2 * num_layers * (4,)]
        return cls.of(
            [
                value(f"state.{i}", dtype, *(f"state.{i}.{axis}" for axis in range(rank)))
                for i, (dtype, rank) in enumerate(zip(dtypes, ranks, strict=True))
            ]
        )

    @classmethod
    def of(cls, values: list[Value]) -> Beams:
        """The state whose `values` these are."""
        num, size = len(cls._fields) - 3, len(Hypotheses._fields)
        live, finished = values[num : num + size], values[num + size : num + 2 * size]
        caches = values[num + 2 * size :]
        pairs = [KeyValue(*caches[i : i + 2]) for i in range(0, len(caches), 2)]
        token, seen, found, best, is_topped = values[:num]
        beams = Hypotheses(*live), Hypotheses(*finished)
        return cls(token, seen, found, best, is_topped, *beams, pairs)

    def values(self) -> list[Value]:
        """All tensors, in order."""
        caches = (one for pair in self.own for one in pair)
        return [*self[:-3], *self.live, *self.finished, *caches]


class Search:
    """The loop of one graph, with the tensors that its body reads."""

    def __init__(self, op: Builder, network: Network, encoded: Encoded, rules: Rules) -> None:
        self._network, self._rules = network, rules
        self._ranking, self._finished = Ranking(network.model, rules), Finished(rules)
        self._cross = [
            KeyValue(
                *(op.Gather(op.Gather(encoded.key_value, i, axis=0), j, axis=0) for j in (0, 1))
            )
            for i in range(len(network.model.decoder.layers))
        ]
        self._cross_bias = op.bias(op.Unsqueeze(encoded.mask, [1]))  # [B, 1, E]
        self._batch = op.size(encoded.length, 0)

    def run(self, op: Builder) -> Hypotheses:
        """The hypotheses of each source that have finished or were cut."""
        values = Beams.start(op, self._network, self._rules, self._batch).values()
        body, most = self._body(), self._rules.num_steps(op)
        states = op.Loop(most, None, *values, body=body, outputs=len(values))
        return Beams.of(list(states)).finished

    def _body(self):
        """Record the graph of one step, as the operator Loop takes it."""
        op = Builder("step.")
        step, is_running = value("step", INT), value("is_running", BOOL)
        beams = Beams.inputs(len(self._cross))
        after = self._step(op, beams, step)
        goes_on = op.ReduceMax(op.Cast(after.live.exists(op), to=INT), keepdims=0)
        outputs = [op.Cast(goes_on, to=BOOL), *map(op.Identity, after.values())]
        inputs = beams.values()
        for output, given in zip(outputs, [is_running, *inputs], strict=True):
            output.dtype = given.dtype
        return op.graph("step", [step, is_running, *inputs], outputs)

    def _step(self, op: Builder, beams: Beams, step: Value) -> Beams:
        rules, live = self._rules, beams.live
        is_alive = op.And(live.exists(op), op.Not(live.has_ended))
        places = self._places(op, is_alive)
        logits, written = self._network.step(
            op,
            op.Gather(op.Reshape(beams.token, [-1]), places.place, axis=0),
            op.Expand(step, op.Shape(places.place)),
            places,
            beams.own,
            op.bias(op.Concat(beams.seen, self._itself(op), axis=2)),
            self._cross,
            self._cross_bias,
        )
        depth = self._ranking.depth(op, step)
        ranked = self._ranking.candidates(op, live, logits, places, step)
        split = self._ranking.split(op, ranked, depth, beams.found, beams.best)
        finishes = self._finished.kept(op, split.finishes, beams.found)
        index = first(op, split.goes_on, rules.width)
        chosen, is_one = ranked.at(op, index), op.GatherElements(split.goes_on, index, axis=1)
        after = live.followed_by(op, chosen, is_one)
        is_alive = op.And(is_one, op.Not(chosen.has_ended))  # [B, K]
        finals = None
        if rules.algorithm.stop.certificate:
            finals = self._finished.finals(op, beams.finished, ranked, finishes)
        found = op.Add(beams.found, count_of(op, finishes))
        now = Progress(depth, found, split, finals, after, is_alive, beams.is_topped)
        end = rules.stop.ending(op, now)
        left = op.And(split.goes_on, end.keeps_rows)
        if rules.algorithm.ended_only:
            left = op.And(left, ranked.has_ended)
        finished = self._finished.after(op, beams.finished, live, ranked, Split(finishes, left))
        goes_on = op.Not(end.is_done)
        after = after._replace(score=op.Where(goes_on, after.score, -INF))
        seen, own = self._kept(op, beams, written, chosen.parent, op.And(is_alive, goes_on))
        best = op.ReduceMax(op.Where(finishes, ranked.score, -INF), [1])
        best = op.Max(beams.best, best)
        token = op.Gather(after.token, -1, axis=2)
        return Beams(token, seen, found, best, end.is_topped, after, finished, own)

    def _itself(self, op: Builder) -> Value:
        """Return [B, K, K] bool: in a step, a row sees itself and no other row."""
        width = self._rules.width
        row = op.range(width)
        is_itself = op.Equal(op.Unsqueeze(row, [1]), row)
        return op.Expand(is_itself, op.sizes(self._batch, width, width))

    def _places(self, op: Builder, is_alive: Value) -> Places:
        """The rows: entries [B, K] that are alive. The others cost no product."""
        flat = op.Reshape(op.Cast(is_alive, to=INT), [-1])
        row = op.Max(op.Sub(op.CumSum(flat, 0), 1), 0)
        return Places(op.Reshape(row, op.Shape(is_alive)), op.Squeeze(op.NonZero(flat), [0]))

    def _kept(
        self, op: Builder, beams: Beams, written: list[KeyValue], parent: Value, is_alive: Value
    ) -> tuple[Value, list[KeyValue]]:
        """The tokens that rows [B, K] with these parents see, without those that no row of a beam sees."""
        width = self._rules.width
        is_parent = op.Equal(op.Unsqueeze(parent, [2]), op.range(width))  # [B, K, K]
        seen = op.GatherND(beams.seen, op.Unsqueeze(parent, [2]), batch_dims=1)
        seen = op.And(op.Concat(seen, is_parent, axis=2), op.Unsqueeze(is_alive, [2]))
        is_seen = op.ReduceMax(op.Cast(seen, to=INT), [1], keepdims=0)  # [B, U + K]
        num = op.ReduceMax(op.ReduceSum(is_seen, [1]), keepdims=0)
        index = first(op, op.Cast(is_seen, to=BOOL), op.Reshape(num, [1]))  # [B, num]
        # the same tokens for every row, and for every head
        by_row = op.Expand(op.Unsqueeze(index, [1]), op.sizes(1, width, 1))
        heads = self._network.num_heads
        by_head = op.Expand(op.Unsqueeze(index, [0, 3]), op.sizes(heads, 1, 1, 1))
        own = [
            KeyValue(
                *(
                    op.GatherND(op.Concat(*pair, axis=2), by_head, batch_dims=2)
                    for pair in zip(old, new, strict=True)
                )
            )
            for old, new in zip(beams.own, written, strict=True)
        ]
        return op.GatherElements(seen, by_row, axis=2), own


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
    prefix = value("prefix", INT, "B", "P") if is_whisper else None
    inputs = Inputs(op, given if prefix is None else [*given, prefix])
    if prefix is None and not returns_all:
        prefix = inputs.tensor("prefix", torch.zeros(1, 0, dtype=torch.int64), "B", "P")
    network = Network(model, op)
    encoded = network.encode(op, source, length)
    width = op.Reshape(width, [1])
    sizes = Sizes(op.size(length, 0), encoded.length, width, max_length, length_penalty, prefix)
    rules = Rules.record(op, inputs, model, algorithm, sizes, returns_all=returns_all)
    found = Search(op, network, encoded, rules).run(op)
    final = rules.stop.scores.of(op, found)
    final, index = op.TopK(final, rules.n_best, axis=1, outputs=2)
    best = found.at(op, index)
    num_tokens = op.Sub(best.length, op.Cast(best.has_ended, to=INT))
    num_tokens = op.Add(num_tokens, rules.prefix_length)
    num_tokens = op.Where(best.exists(op), num_tokens, 0)  # [B, K]
    is_token = op.Less(op.range(op.size(best.token, 2)), op.Unsqueeze(num_tokens, [2]))
    return inputs.all, [
        (op.Where(is_token, best.token, PADDING), value("tokens", INT, "B", "K", "T")),
        (op.Identity(num_tokens), value("lengths", INT, "B", "K")),
        (op.Identity(best.score), value("scores", FLOAT, "B", "K")),
        (final, value("final_scores", FLOAT, "B", "K")),
    ]
