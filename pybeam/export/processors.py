"""Processors as operators. The classes in `RECORDERS` can be part of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pybeam.arguments import ArgumentError
from pybeam.export.builder import FLOAT, Builder, Value
from pybeam.export.hypotheses import INF, PADDING
from pybeam.models.transformer.model import Transformer
from pybeam.processors.bans import (
    NoRepeatNgram,
    SuppressSequences,
    SuppressTokens,
    SuppressTokensAtStart,
)
from pybeam.processors.base import AnyProcessor, Processor, stage_of
from pybeam.processors.ends import EosGrowth, FirstToken, LastToken, MinLength
from pybeam.processors.penalties import EosPenalty, RepetitionPenalty, Temperature, TokenPenalty
from pybeam.speech.whisper.timestamps import WhisperTimestamps

# of the processors with a number that callers may give: the input's name, and the attribute with its default
NUMBERS = {
    EosPenalty: ("eos_penalty", "penalty"),
    RepetitionPenalty: ("repetition_penalty", "penalty"),
    Temperature: ("temperature", "temperature"),
    TokenPenalty: ("token_penalty", "penalty"),
}


class GraphRows(NamedTuple):
    """The R rows of a step, as processors see them. Nothing is recorded that nobody asks for."""

    op: Builder
    model: Transformer
    history: Value  # [B, K, t], tokens behind the start token; all rows have as many
    place: Value  # [R], b * K + k of each row
    width: Value  # [1], K
    position: Value  # [], t
    prefix_length: Value  # [B, 1]
    limit: Value  # [B, 1], generated tokens at which rows are cut

    def token(self) -> Value:
        """Return [R, t], the tokens of every row behind the start token."""
        return self.op.Gather(self.op.Flatten(self.history, axis=2), self.place, axis=0)

    def of(self, numbers: Value) -> Value:
        """Return [R, 1], every row's number among those of the sources [B, 1]."""
        return self.op.Gather(numbers, self.op.Div(self.place, self.width), axis=0)

    def num_generated(self) -> Value:
        """Return [R, 1], tokens behind the prefix."""
        return self.op.Sub(self.position, self.of(self.prefix_length))

    def is_token(self, tokens: Sequence[int]) -> Value:
        """Return [V] bool, true for these tokens."""
        mask = torch.zeros(self.model.vocab_size, dtype=torch.bool)
        mask[list(tokens)] = True
        return self.op.constant(mask)

    def is_eos(self) -> Value:
        return self.is_token(self.model.eos_ids)

    def seen(self, counts_start: bool) -> Value:
        """Return [R, 1 + T] tokens that count, behind a -1, so that there is always one."""
        op, token = self.op, self.token()
        column = op.sizes(op.size(token, 0), 1)
        start = [op.Expand(self.model.start_id, column)] if counts_start else []
        return op.Concat(op.Expand(PADDING, column), *start, token, axis=1)

    def held(self, x: Value, token: Value, is_one: Value) -> Value:
        """Return [R, V] bool, true for those of the tokens [R, n] where is_one."""
        op, size = self.op, self.model.vocab_size
        # what is none is written behind the last token
        place = op.Where(is_one, token, size)
        none = op.Expand(op.constant(torch.tensor(False)), op.sizes(op.size(x, 0), size + 1))
        one = op.Expand(op.constant(torch.tensor(True)), op.Shape(place))
        return op.Slice(op.ScatterElements(none, place, one, axis=1), [0], [size], [1])


# (processor, logits or log-probabilities [R, V], rows, a number that callers may give) -> what is seen
Record = Callable[[Any, Value, GraphRows, Any], Value]


class Chain:
    """The processors of an algorithm.

    Args:
        op: gets an input for each processor that has a number.
        model: is searched.
        processors: in the order in which they act.

    Raises:
        ValueError: one of them is no operator, or does not fit the model, or two take the same input.
    """

    def __init__(self, op: Builder, model: Transformer, processors: Sequence[AnyProcessor]) -> None:
        self._steps: list[tuple[Record, AnyProcessor, Value | None]] = []
        for processor in processors:
            record = RECORDERS.get(type(processor))
            if record is None or not isinstance(processor, Processor):
                known = ", ".join(sorted({one.__name__ for one in RECORDERS}))
                raise ArgumentError(
                    "algorithm",
                    f"must have processors that are operators of a graph ({known}), but has {processor!r}; "
                    "leave it out, or let pybeam search with encoder.onnx and decoder.onnx",
                )
            processor.check(model)
            given = None
            if type(processor) in NUMBERS:
                name, attribute = NUMBERS[type(processor)]
                if any(type(other) is type(processor) for _, other, _ in self._steps):
                    raise ArgumentError(
                        "algorithm",
                        f"must have one processor at most that takes `{name}`, since this is an input of the "
                        "graph, but has several; join them",
                    )
                given = op.number(name, float(getattr(processor, attribute)))
            self._steps.append((record, processor, given))

    def __call__(self, logits: Value, rows: GraphRows) -> tuple[Value, Value]:
        """Return what orders the tokens of a row, and their log-probabilities, [R, V] each."""
        op, are_logits = rows.op, True
        for record, processor, given in self._steps:
            if are_logits and stage_of(processor) == "log_probs":
                logits, are_logits = op.LogSoftmax(logits, axis=1), False
            logits = record(processor, logits, rows, given)
        return logits, op.LogSoftmax(logits, axis=1) if are_logits else logits


def _temperature(processor: Temperature, x: Value, rows: GraphRows, given: Value) -> Value:
    return rows.op.Div(x, given)


def _eos_penalty(processor: EosPenalty, x: Value, rows: GraphRows, given: Value) -> Value:
    return rows.op.Where(rows.is_eos(), rows.op.Mul(x, given), x)


def _token_penalty(processor: TokenPenalty, x: Value, rows: GraphRows, given: Value) -> Value:
    return rows.op.Where(rows.is_token([processor.token]), rows.op.Sub(x, given), x)


def _repetition_penalty(
    processor: RepetitionPenalty, x: Value, rows: GraphRows, given: Value
) -> Value:
    op, token = rows.op, rows.seen(processor.counts_start)
    is_held = rows.held(x, token, op.GreaterOrEqual(token, 0))
    penalised = op.Where(op.Less(x, 0.0), op.Mul(x, given), op.Div(x, given))
    return op.Where(is_held, penalised, x)


def _no_repeat_ngram(processor: NoRepeatNgram, x: Value, rows: GraphRows, _: None) -> Value:
    op, size = rows.op, processor.n - 1
    seen = rows.seen(processor.counts_start)
    num = op.Max(op.Sub(op.size(seen, 1), size), 0)  # [1] windows
    last = op.Sub(op.size(seen, 1), 1)

    def window(i: int) -> Value:
        return op.Slice(seen, [i], op.Add(num, i), [1])

    follows = window(size)
    matches = op.GreaterOrEqual(follows, 0)
    for i in range(size):
        place = op.Max(op.Sub(last, size - 1 - i), 0)
        matches = op.And(matches, op.Equal(window(i), op.Gather(seen, place, axis=1)))
    return op.Where(rows.held(x, follows, matches), -INF, x)


def _suppress_tokens(processor: SuppressTokens, x: Value, rows: GraphRows, _: None) -> Value:
    return rows.op.Where(rows.is_token(processor.tokens), -INF, x)


def _suppress_tokens_at_start(
    processor: SuppressTokensAtStart, x: Value, rows: GraphRows, _: None
) -> Value:
    op = rows.op
    start = op.Max(rows.of(rows.prefix_length), processor.skips)  # [R, 1]
    is_start = op.Equal(rows.position, start)
    return op.Where(op.And(is_start, rows.is_token(processor.tokens)), -INF, x)


def _suppress_sequences(processor: SuppressSequences, x: Value, rows: GraphRows, _: None) -> Value:
    op, eos_ids = rows.op, rows.model.eos_ids
    spared = [(eos,) for eos in eos_ids] if processor.spares_eos else []
    sequences = [one for one in processor.sequences if one not in spared]
    if not sequences:
        return x
    banned = torch.tensor([one[-1] for one in sequences])
    shape = op.sizes(op.size(x, 0), len(sequences))
    near = op.Expand(op.constant(torch.tensor(True)), shape)  # [R, N]
    seen = rows.seen(processor.counts_start)
    for back in range(2, max(map(len, sequences)) + 1):
        wanted = torch.tensor([one[-back] if len(one) >= back else PADDING for one in sequences])
        place = op.Max(op.Sub(op.size(seen, 1), back - 1), 0)
        is_equal = op.Equal(op.Gather(seen, place, axis=1), op.constant(wanted))
        near = op.And(near, op.Or(op.constant(wanted < 0), is_equal))
    token = op.Expand(op.constant(banned), op.Shape(near))
    return op.Where(rows.held(x, token, near), -INF, x)


def _min_length(processor: MinLength, x: Value, rows: GraphRows, _: None) -> Value:
    done = rows.position if processor.counts_prefix else rows.num_generated()
    is_early = rows.op.Less(done, processor.length)
    return rows.op.Where(rows.op.And(is_early, rows.is_eos()), -INF, x)


def _first_token(processor: FirstToken, x: Value, rows: GraphRows, _: None) -> Value:
    if processor.token is None:
        return x
    op = rows.op
    # a prefix takes the place of this token
    has_none = op.Equal(rows.of(rows.prefix_length), 0)  # [R, 1]
    nothing = op.And(op.Equal(rows.position, 0), has_none)
    return op.Where(nothing, op.Where(rows.is_token([processor.token]), 0.0, -INF), x)


def _last_token(processor: LastToken, x: Value, rows: GraphRows, _: None) -> Value:
    op = rows.op
    last = op.Sub(rows.of(rows.limit), 1)
    is_last = op.Equal(rows.num_generated(), last)  # [R, 1]
    of_eos = x if processor.is_scored else 0.0
    return op.Where(is_last, op.Where(rows.is_eos(), of_eos, -INF), x)


def _eos_growth(processor: EosGrowth, x: Value, rows: GraphRows, _: None) -> Value:
    op = rows.op
    late = op.Max(op.Sub(rows.num_generated(), processor.start), 0)  # [R, 1]
    growth = op.Sub(op.Pow(float(processor.factor), op.Cast(late, to=FLOAT)), 1.0)
    grown = op.Where(op.Greater(x, -INF), op.Add(x, op.Mul(op.Abs(x), growth)), x)
    return op.Where(rows.is_eos(), grown, x)


def _timestamps(rule: WhisperTimestamps, x: Value, rows: GraphRows, _: None) -> Value:
    op, size = rows.op, rows.model.vocab_size
    begin, token = rule.no_timestamps + 1, torch.arange(size)
    is_stamp, is_text = token >= begin, token < rows.model.eos_id
    done = rows.num_generated()  # [R, 1]
    is_first, is_behind = op.Equal(done, 0), op.GreaterOrEqual(done, 0)
    latest, is_pair, is_alone = _before(begin, rows, done)
    # a timestamp that ends one segment may begin the next one
    least = op.Add(latest, op.Where(is_alone, 0, 1))
    least = op.Where(op.Less(latest, 0), begin, least)
    most = size
    if rule.max_initial is not None:
        most = op.Where(is_first, begin + rule.max_initial, size)
    place = op.constant(token)
    is_off = op.Or(op.Or(op.Less(place, least), op.Greater(place, most)), is_pair)
    is_off = op.And(op.constant(is_stamp), is_off)
    is_off = op.Or(op.constant(token == rule.no_timestamps), is_off)
    x = op.Where(op.And(is_behind, is_off), -INF, x)
    # EOS may follow a timestamp that stands alone
    no_text = op.Or(is_first, is_alone)
    no_stamp = op.Or(
        op.And(op.constant(is_text), no_text), op.And(op.constant(~is_text & ~is_stamp), is_first)
    )
    x = op.Where(no_stamp, -INF, x)
    largest = op.ReduceMax(op.Where(op.constant(is_stamp), -INF, x), [1])
    wins = op.And(is_behind, op.Greater(_log_sum(op, x, is_stamp), largest))
    return op.Where(op.And(op.constant(~is_stamp), wins), -INF, x)


def _before(begin: int, rows: GraphRows, done: Value) -> tuple[Value, Value, Value]:
    """Return the latest generated timestamp [R, 1], or -1, and whether it ends the hypothesis.

    That is two answers: it ends the hypothesis and begins a segment, or it ends a segment too.
    """
    op, token = rows.op, rows.token()  # [R, t]
    column = op.sizes(op.size(token, 0), 1)
    # the start token is no timestamp, and there is always one column
    token = op.Concat(op.Expand(-1, column), token, axis=1)
    place = op.range(op.size(token, 1))
    start = op.Add(rows.of(rows.prefix_length), 1)
    is_stamp = op.And(op.GreaterOrEqual(token, begin), op.GreaterOrEqual(place, start))
    at = op.ReduceMax(op.Where(is_stamp, place, -1), [1])  # [R, 1]
    ends = op.Equal(at, rows.position)
    one_before = op.Reshape(op.Max(op.Sub(rows.position, 1), 0), [1])
    is_pair = op.Or(op.Gather(is_stamp, one_before, axis=1), op.Less(done, 2))
    latest = op.GatherElements(token, op.Max(at, 0), axis=1)
    latest = op.Where(op.Less(at, 0), -1, latest)
    return latest, op.And(ends, is_pair), op.And(ends, op.Not(is_pair))


def _log_sum(op: Builder, x: Value, is_one: torch.Tensor) -> Value:
    """Compute ``log(sum(exp(x)))`` of some columns of [R, V]: [R, 1], -inf where all of them are."""
    x = op.Where(op.constant(is_one), x, -INF)
    largest = op.ReduceMax(x, [1])
    has_any = op.Greater(largest, -INF)
    peak = op.Where(has_any, largest, 0.0)
    return op.Add(peak, op.Log(op.ReduceSum(op.Exp(op.Sub(x, peak)), [1])))


RECORDERS: dict[type[object], Record] = {
    EosGrowth: _eos_growth,
    EosPenalty: _eos_penalty,
    FirstToken: _first_token,
    LastToken: _last_token,
    MinLength: _min_length,
    NoRepeatNgram: _no_repeat_ngram,
    RepetitionPenalty: _repetition_penalty,
    SuppressSequences: _suppress_sequences,
    SuppressTokens: _suppress_tokens,
    SuppressTokensAtStart: _suppress_tokens_at_start,
    Temperature: _temperature,
    TokenPenalty: _token_penalty,
    WhisperTimestamps: _timestamps,
}
