"""Hypotheses, candidates and beams as tensors of a graph, and the places of the first ones among them."""

from __future__ import annotations

from typing import NamedTuple

from pybeam.export.builder import BOOL, FLOAT, INT, Builder, Value, value
from pybeam.export.transformer import KeyValue

INF = float("inf")
PADDING = -1
# of the tensors of `Hypotheses`
DTYPES, RANKS = (INT, FLOAT, INT, BOOL), (3, 2, 2, 2)


class Candidates(NamedTuple):
    """N continuations per source, best first. All are [B, N]; a score of -inf stands for no candidate."""

    token: Value
    parent: Value  # the entry of the beam that it continues
    score: Value
    log_prob: Value  # of the token
    length: Value  # generated tokens, EOS included
    has_ended: Value
    is_held: Value  # it had ended before: it stays what it is

    def at(self, op: Builder, index: Value) -> Candidates:
        """The candidates at `index` [B, M]."""
        return Candidates(*(op.GatherElements(one, index, axis=1) for one in self))


class Split(NamedTuple):
    """Which of the ranked candidates finish in this step, and which are the next beam: [B, N] bool."""

    finishes: Value
    goes_on: Value


class Hypotheses(NamedTuple):
    """N hypotheses per source. A score of -inf stands for no hypothesis."""

    token: Value  # [B, N, T] int64, forced prefix included, padded with -1
    score: Value  # [B, N]
    length: Value  # [B, N] int64, generated tokens, EOS included
    has_ended: Value  # [B, N] bool

    @classmethod
    def none(cls, op: Builder, batch: Value, num: Value) -> Hypotheses:
        """Make room for `num` [1] hypotheses of each source."""
        token, score, zero = (
            op.Expand(*given)
            for given in (
                (PADDING, op.sizes(batch, num, 0)),
                (-INF, op.sizes(batch, num)),
                (0, op.sizes(batch, num)),
            )
        )
        return cls(token, score, zero, op.Cast(zero, to=BOOL))

    def exists(self, op: Builder) -> Value:
        """Return [B, N] bool, false where there is no hypothesis."""
        return op.Greater(self.score, -INF)

    def at(self, op: Builder, index: Value) -> Hypotheses:
        """The hypotheses at `index` [B, M]."""
        return Hypotheses(
            history(op, self.token, index),
            *(op.GatherElements(one, index, axis=1) for one in self[1:]),
        )

    def followed_by(self, op: Builder, chosen: Candidates, is_one: Value) -> Hypotheses:
        """Continue these hypotheses with the candidates [B, M] where `is_one`."""
        before = history(op, self.token, chosen.parent)
        token = op.Where(chosen.is_held, PADDING, chosen.token)
        return Hypotheses(
            op.Concat(before, op.Unsqueeze(token, [2]), axis=2),
            op.Where(is_one, chosen.score, -INF),
            chosen.length,
            chosen.has_ended,
        )


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


def history(op: Builder, token: Value, index: Value) -> Value:
    """Return lines `index` [B, M] of tokens [B, N, T]: [B, M, T]."""
    return op.GatherND(token, op.Unsqueeze(index, [2]), batch_dims=1)


def first(op: Builder, is_one: Value, num: Value) -> Value:
    """Find the places [B, num] of the first `num` [1] true elements of [B, N], then of others."""
    size = op.size(is_one, 1)
    # TopK prefers the earlier among equals
    key = op.Mul(op.Cast(is_one, to=INT), op.Sub(size, op.range(size)))
    return op.TopK(key, num, axis=1, outputs=2)[1]


def any_of(op: Builder, is_one: Value) -> Value:
    """Return [B, 1] bool, whether some element of a line [B, N] is true."""
    return op.Cast(op.ReduceMax(op.Cast(is_one, to=INT), [1]), to=BOOL)


def count_of(op: Builder, is_one: Value) -> Value:
    """Return [B, 1] int64, how many elements of a line [B, N] are true."""
    return op.ReduceSum(op.Cast(is_one, to=INT), [1])


def number_of(op: Builder, is_one: Value) -> Value:
    """Return [B, N] int64, how many elements of a line are true up to each place, itself included."""
    return op.CumSum(op.Cast(is_one, to=INT), 1)
