"""Record a batched `fixed_beam` as ONNX operators: one graph from source ids or features to hypotheses.

The rules are those of `pybeam.fixed_beam(width, n_best=width, max_length=…, scoring=power(…))`. Keys and
values do not follow the rows here either: masks say which rows see them, and those that no row sees are
dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from pybeam.export.builder import BOOL, FLOAT, INT, Builder, Recorded, Value, value
from pybeam.export.front import source_inputs
from pybeam.export.transformer import KeyValue, Network, Places
from pybeam.models.transformer.model import Transformer

INF = float("inf")
PADDING = -1


class Hypotheses(NamedTuple):
    """N hypotheses per source. A score of -inf stands for no hypothesis."""

    token: Value  # [B, N, T] int64, padded with -1
    score: Value  # [B, N]
    length: Value  # [B, N] int64, generated tokens, EOS included
    has_ended: Value  # [B, N] bool

    def first(self, op: Builder, is_one: Value, num: Value) -> tuple[Hypotheses, Value]:
        """Take the first `num` [1] hypotheses where `is_one` [B, N]; returns their places [B, num] too."""
        index = _first(op, is_one, num)
        taken, there = self.at(op, index), op.GatherElements(is_one, index, axis=1)
        return taken._replace(score=op.Where(there, taken.score, -INF)), index

    def at(self, op: Builder, index: Value) -> Hypotheses:
        """The hypotheses at `index` [B, M]."""
        return Hypotheses(
            op.GatherND(self.token, op.Unsqueeze(index, [2]), batch_dims=1),
            *(op.GatherElements(one, index, axis=1) for one in self[1:]),
        )

    def longer(self, op: Builder) -> Hypotheses:
        """Make room for one more token."""
        column = op.sizes(op.size(self.token, 0), op.size(self.token, 1), 1)
        return self._replace(token=op.Concat(self.token, op.Expand(PADDING, column), axis=2))

    def and_then(self, op: Builder, others: Hypotheses) -> Hypotheses:
        """Put `others` behind these hypotheses."""
        pairs = zip(self, others, strict=True)
        return Hypotheses(*(op.Concat(*pair, axis=1) for pair in pairs))


class Beams(NamedTuple):
    """The state between two steps, for K rows of each of B sources."""

    token: Value  # [B, K], the last one
    seen: Value  # [B, K, U] bool, which earlier tokens of its source a row descends from
    live: Hypotheses  # K of them
    finished: Hypotheses  # K of them, in the order in which they finished
    own: list[KeyValue]  # per layer, of U earlier tokens

    def values(self) -> list[Value]:
        caches = (one for pair in self.own for one in pair)
        return [self.token, self.seen, *self.live, *self.finished, *caches]

    @classmethod
    def of(cls, values: list[Value]) -> Beams:
        token, seen, *rest = values
        caches = rest[8:]
        pairs = [KeyValue(*caches[i : i + 2]) for i in range(0, len(caches), 2)]
        return cls(token, seen, Hypotheses(*rest[:4]), Hypotheses(*rest[4:8]), pairs)


class Search:
    """The loop of one graph, with the sizes [1] and the tensors that its body reads."""

    def __init__(self, network: Network, op: Builder, source: Value, length: Value, width: Value):
        self._network, self._width = network, width
        key_value, _, mask = network.encode(op, source, length)
        num_layers = len(network.model.decoder.layers)
        self._cross = [
            KeyValue(*(op.Gather(op.Gather(key_value, i, axis=0), j, axis=0) for j in (0, 1)))
            for i in range(num_layers)
        ]
        self._cross_bias = op.bias(op.Unsqueeze(mask, [1]))  # [B, 1, E]
        self._beam = op.size(source, 0), width

    def run(self, op: Builder, max_length: Value) -> Hypotheses:
        """The 2 K hypotheses of each source: first those that finished, then those that were cut."""
        start = self._start(op)
        body = self._body(start)
        values = start.values()
        states = op.Loop(max_length, None, *values, body=body, outputs=len(values))
        end = Beams.of(list(states))
        return end.finished.and_then(op, end.live)

    def _start(self, op: Builder) -> Beams:
        """Make the first beam. Every source has K rows, for the sake of the shape, but one score."""
        network = self._network

        def filled(given: int | float, *shape: Value | int) -> Value:
            return op.Expand(given, op.sizes(*shape))

        beam = self._beam
        zero = filled(0, *beam)
        no = op.Cast(zero, to=BOOL)
        none = Hypotheses(filled(PADDING, *beam, 0), filled(-INF, *beam), zero, no)
        is_first = op.Equal(op.Add(zero, op.range(self._width)), 0)
        cache = filled(0.0, network.num_heads, beam[0], 0, network.head_size)
        return Beams(
            filled(network.model.start_id, *beam),
            op.Cast(filled(0, *beam, 0), to=BOOL),
            none._replace(score=op.Where(is_first, 0.0, -INF)),
            none,
            [KeyValue(cache, cache) for _ in self._cross],
        )

    def _body(self, start: Beams):
        """Record the graph of one step, as the operator Loop takes it."""
        op = Builder("step.")
        step, is_running = value("step", INT), value("is_running", BOOL)
        dtypes = [INT, BOOL, *2 * (INT, FLOAT, INT, BOOL), *2 * len(start.own) * (FLOAT,)]
        ranks = [2, 3, *2 * (3, 2, 2, 2), *2 * len(start.own) * (4,)]
        inputs = [
            value(f"state.{i}", dtype, *(f"state.{i}.{axis}" for axis in range(rank)))
            for i, (dtype, rank) in enumerate(zip(dtypes, ranks, strict=True))
        ]
        after = self._step(op, Beams.of(list(inputs)), step)
        goes_on = op.ReduceMax(op.Cast(op.Greater(after.live.score, -INF), to=INT), keepdims=0)
        outputs = [op.Cast(goes_on, to=BOOL), *map(op.Identity, after.values())]
        for output, dtype in zip(outputs, [BOOL, *dtypes], strict=True):
            output.dtype = dtype
        return op.graph("step", [step, is_running, *inputs], outputs)

    def _step(self, op: Builder, beams: Beams, step: Value) -> Beams:
        places = self._places(op, beams.live)
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
        candidates, parent = self._candidates(op, beams.live, logits, places.row, step)
        is_one = op.Greater(candidates.score, -INF)
        is_early = op.Less(op.range(op.size(is_one, 1)), self._width)
        # an ended candidate finishes at rank < K; candidates that go on fill the beam, whatever their rank
        finishes = op.And(op.And(is_one, candidates.has_ended), is_early)
        goes_on = op.And(is_one, op.Not(candidates.has_ended))
        had_finished = op.Greater(beams.finished.score, -INF)
        finished, _ = (
            beams.finished.longer(op)
            .and_then(op, candidates)
            .first(op, op.Concat(had_finished, finishes, axis=1), self._width)
        )
        live, index = candidates.first(op, goes_on, self._width)
        last_finished = op.Gather(finished.score, [-1], axis=1)  # [B, 1]
        is_done = op.Greater(last_finished, -INF)
        live = live._replace(score=op.Where(is_done, -INF, live.score))
        parent = op.GatherElements(parent, index, axis=1)  # [B, K]
        seen, own = self._kept(op, beams, written, parent, op.Greater(live.score, -INF))
        return Beams(op.Gather(live.token, -1, axis=2), seen, live, finished, own)

    def _itself(self, op: Builder) -> Value:
        """Return [B, K, K] bool: in a step, a row sees itself and no other row."""
        row = op.range(self._width)
        return op.Expand(op.Equal(op.Unsqueeze(row, [1]), row), op.sizes(*self._beam, self._width))

    def _kept(
        self, op: Builder, beams: Beams, written: list[KeyValue], parent: Value, is_alive: Value
    ) -> tuple[Value, list[KeyValue]]:
        """The tokens that rows [B, K] with these parents see, without those that no row of a beam sees."""
        is_parent = op.Equal(op.Unsqueeze(parent, [2]), op.range(self._width))  # [B, K, K]
        seen = op.GatherND(beams.seen, op.Unsqueeze(parent, [2]), batch_dims=1)
        seen = op.And(op.Concat(seen, is_parent, axis=2), op.Unsqueeze(is_alive, [2]))
        is_seen = op.ReduceMax(op.Cast(seen, to=INT), [1], keepdims=0)  # [B, U + K]
        num = op.ReduceMax(op.ReduceSum(is_seen, [1]), keepdims=0)
        index = _first(op, op.Cast(is_seen, to=BOOL), op.Reshape(num, [1]))  # [B, num]
        # the same tokens for every row, and for every head
        by_row = op.Expand(op.Unsqueeze(index, [1]), op.sizes(1, self._width, 1))
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

    def _places(self, op: Builder, live: Hypotheses) -> Places:
        """The rows: hypotheses that are alive. The others cost no product."""
        is_alive = op.Cast(op.Greater(live.score, -INF), to=INT)  # [B, K]
        flat = op.Reshape(is_alive, [-1])
        row = op.Max(op.Sub(op.CumSum(flat, 0), 1), 0)
        return Places(op.Reshape(row, op.Shape(is_alive)), op.Squeeze(op.NonZero(flat), [0]))

    def _candidates(
        self, op: Builder, live: Hypotheses, logits: Value, row: Value, step: Value
    ) -> tuple[Hypotheses, Value]:
        """Find the best 2 K continuations of every source, best first, and their rows [B, 2 K]."""
        # within a row the logit decides, and TopK prefers the lower token among equals
        vocab_size, twice = self._network.model.vocab_size, op.Mul(self._width, 2)
        _, token = op.TopK(logits, op.Min(twice, vocab_size), axis=1, outputs=2)  # [R, M]
        log_prob = op.GatherElements(op.LogSoftmax(logits, axis=1), token, axis=1)
        token, log_prob = (op.Gather(one, row, axis=0) for one in (token, log_prob))  # [B, K, M]
        score = op.Add(op.Unsqueeze(live.score, [2]), log_prob)
        flat = op.sizes(self._beam[0], -1)
        # between rows the score decides, and TopK prefers the lower row among equals
        score, index = op.TopK(op.Reshape(score, flat), twice, axis=1, outputs=2)  # [B, 2 K]
        parent = op.Div(index, op.size(log_prob, 2))
        token = op.GatherElements(op.Reshape(token, flat), index, axis=1)
        before = live.at(op, parent).token  # [B, 2 K, t]
        candidates = Hypotheses(
            op.Concat(before, op.Unsqueeze(token, [2]), axis=2),
            score,
            op.Expand(op.Add(step, 1), op.Shape(token)),
            op.Equal(token, self._network.model.eos_id),
        )
        return candidates, parent


def _first(op: Builder, is_one: Value, num: Value) -> Value:
    """Find the places [B, num] of the first `num` [1] true elements of [B, N], then of others."""
    size = op.size(is_one, 1)
    # TopK prefers the earlier among equals
    key = op.Mul(op.Cast(is_one, to=INT), op.Sub(size, op.range(size)))
    return op.TopK(key, num, axis=1, outputs=2)[1]


def record_search(op: Builder, model: Transformer) -> Recorded:
    """Record the whole search. docs/reference/onnx.md describes its inputs and outputs."""
    source, length = source_inputs(model)
    width, max_length = value("width", INT), value("max_length", INT)
    length_penalty = value("length_penalty", FLOAT)
    search = Search(Network(model, op), op, source, length, op.Reshape(width, [1]))
    found = search.run(op, op.Min(max_length, model.max_positions))
    norm = op.Pow(op.Cast(op.Max(found.length, 1), to=FLOAT), length_penalty)
    final, index = op.TopK(op.Div(found.score, norm), op.Reshape(width, [1]), axis=1, outputs=2)
    best = found.at(op, index)
    num_tokens = op.Sub(best.length, op.Cast(best.has_ended, to=INT))  # [B, K]
    is_token = op.Less(op.range(op.size(best.token, 2)), op.Unsqueeze(num_tokens, [2]))
    return [source, length, width, max_length, length_penalty], [
        (op.Where(is_token, best.token, PADDING), value("tokens", INT, "B", "K", "T")),
        (num_tokens, value("lengths", INT, "B", "K")),
        (op.Identity(best.score), value("scores", FLOAT, "B", "K")),
        (final, value("final_scores", FLOAT, "B", "K")),
    ]
