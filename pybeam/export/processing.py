"""Processors as operators. The classes in `RECORDERS` can be part of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pybeam.arguments import ArgumentError
from pybeam.export.builder import FLOAT, Builder, Value
from pybeam.export.hypotheses import INF, PADDING
from pybeam.export.rows import GraphRows
from pybeam.export.timestamps import with_timestamps
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

# (operators of a step, logits or log-probabilities [R, V], rows) -> what is seen instead
Apply = Callable[[Builder, Value, GraphRows], Value]


class Inputs:
    """The inputs of a graph: those that callers must give, and those that have defaults."""

    def __init__(self, op: Builder, required: Sequence[Value]) -> None:
        self._op = op
        self._required = list(required)
        self._optional: dict[str, Value] = {}

    @property
    def all(self) -> list[Value]:
        return [*self._required, *self._optional.values()]

    def number(self, name: str, default: float) -> Value:
        """Make an input [] that may be left out, int64 or float32 as its default is."""
        dtype = torch.int64 if isinstance(default, int) else torch.float32
        return self.tensor(name, torch.tensor(default, dtype=dtype))

    def tensor(self, name: str, default: torch.Tensor, *shape: int | str) -> Value:
        """Make an input that may be left out. Raises ValueError if there is one of that name."""
        if name in self._optional:
            raise ArgumentError(
                "algorithm",
                f"must have one processor at most that takes `{name}`, since this is an input of the graph, "
                "but has several; join them",
            )
        self._optional[name] = self._op.optional(name, default, *shape)
        return self._optional[name]


class Chain:
    """The processors of an algorithm.

    Args:
        inputs: get those that the processors have.

    Raises:
        ValueError: one of them is no operator, or does not fit the model.
    """

    def __init__(
        self, inputs: Inputs, model: Transformer, processors: Sequence[AnyProcessor]
    ) -> None:
        self._steps = []
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
            apply = record(processor, _Context(inputs, model))
            self._steps.append((stage_of(processor) == "log_probs", apply))

    def __call__(self, op: Builder, logits: Value, rows: GraphRows) -> tuple[Value, Value]:
        """Return what orders the tokens of a row, and their log-probabilities, [R, V] each."""
        are_logits = True
        for needs_log_probs, apply in self._steps:
            if are_logits and needs_log_probs:
                logits, are_logits = op.LogSoftmax(logits, axis=1), False
            logits = apply(op, logits, rows)
        return logits, op.LogSoftmax(logits, axis=1) if are_logits else logits


class _Context(NamedTuple):
    inputs: Inputs
    model: Transformer

    def is_token(self, op: Builder, tokens: Sequence[int]) -> Value:
        """Return [V] bool, true for these tokens."""
        mask = torch.zeros(self.model.vocab_size, dtype=torch.bool)
        mask[list(tokens)] = True
        return op.constant(mask)

    def is_eos(self, op: Builder) -> Value:
        return self.is_token(op, self.model.eos_ids)

    def seen(self, op: Builder, rows: GraphRows, counts_start: bool) -> Value:
        """Return [R, 1 + T] tokens that count, behind a -1, so that there is always one."""
        token = rows.token(op)
        column = op.sizes(op.size(token, 0), 1)
        start = [op.Expand(self.model.start_id, column)] if counts_start else []
        return op.Concat(op.Expand(PADDING, column), *start, token, axis=1)

    def without(self, op: Builder, x: Value, token: Value, is_banned: Value) -> Value:
        """Forbid tokens [R, n] where is_banned [R, n]."""
        return op.Where(self.held(op, x, token, is_banned), -INF, x)

    def held(self, op: Builder, x: Value, token: Value, is_one: Value) -> Value:
        """Return [R, V] bool, true for those of the tokens [R, n] where is_one."""
        size = self.model.vocab_size
        # what is none is written behind the last token
        place = op.Where(is_one, token, size)
        none = op.Expand(op.constant(torch.tensor(False)), op.sizes(op.size(x, 0), size + 1))
        one = op.Expand(op.constant(torch.tensor(True)), op.Shape(place))
        return op.Slice(op.ScatterElements(none, place, one, axis=1), [0], [size], [1])


def _temperature(processor: Temperature, context: _Context) -> Apply:
    given = context.inputs.number("temperature", float(processor.temperature))
    return lambda op, x, rows: op.Div(x, given)


def _eos_penalty(processor: EosPenalty, context: _Context) -> Apply:
    given = context.inputs.number("eos_penalty", float(processor.penalty))
    return lambda op, x, rows: op.Where(context.is_eos(op), op.Mul(x, given), x)


def _token_penalty(processor: TokenPenalty, context: _Context) -> Apply:
    given = context.inputs.number("token_penalty", float(processor.penalty))
    return lambda op, x, rows: op.Where(
        context.is_token(op, [processor.token]), op.Sub(x, given), x
    )


def _repetition_penalty(processor: RepetitionPenalty, context: _Context) -> Apply:
    given = context.inputs.number("repetition_penalty", float(processor.penalty))

    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        token = context.seen(op, rows, processor.counts_start)
        is_held = context.held(op, x, token, op.GreaterOrEqual(token, 0))
        penalised = op.Where(op.Less(x, 0.0), op.Mul(x, given), op.Div(x, given))
        return op.Where(is_held, penalised, x)

    return apply


def _no_repeat_ngram(processor: NoRepeatNgram, context: _Context) -> Apply:
    size = processor.n - 1

    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        seen = context.seen(op, rows, processor.counts_start)
        num = op.Max(op.Sub(op.size(seen, 1), size), 0)  # [1] windows
        last = op.Sub(op.size(seen, 1), 1)

        def window(i: int) -> Value:
            return op.Slice(seen, [i], op.Add(num, i), [1])

        follows = window(size)
        matches = op.GreaterOrEqual(follows, 0)
        for i in range(size):
            place = op.Max(op.Sub(last, size - 1 - i), 0)
            matches = op.And(matches, op.Equal(window(i), op.Gather(seen, place, axis=1)))
        return context.without(op, x, follows, matches)

    return apply


def _suppress_tokens(processor: SuppressTokens, context: _Context) -> Apply:
    return lambda op, x, rows: op.Where(context.is_token(op, processor.tokens), -INF, x)


def _suppress_tokens_at_start(processor: SuppressTokensAtStart, context: _Context) -> Apply:
    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        start = op.Max(rows.of(op, rows.prefix_length), processor.skips)  # [R, 1]
        is_start = op.Equal(rows.position, start)
        return op.Where(op.And(is_start, context.is_token(op, processor.tokens)), -INF, x)

    return apply


def _suppress_sequences(processor: SuppressSequences, context: _Context) -> Apply:
    eos_ids = context.model.eos_ids
    spared = [(eos,) for eos in eos_ids] if processor.spares_eos else []
    sequences = [one for one in processor.sequences if one not in spared]
    longest = max(map(len, sequences), default=0)

    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        if not sequences:
            return x
        banned = torch.tensor([one[-1] for one in sequences])
        shape = op.sizes(op.size(x, 0), len(sequences))
        near = op.Expand(op.constant(torch.tensor(True)), shape)  # [R, N]
        seen = context.seen(op, rows, processor.counts_start)
        for back in range(2, longest + 1):
            wanted = torch.tensor(
                [one[-back] if len(one) >= back else PADDING for one in sequences]
            )
            place = op.Max(op.Sub(op.size(seen, 1), back - 1), 0)
            is_equal = op.Equal(op.Gather(seen, place, axis=1), op.constant(wanted))
            near = op.And(near, op.Or(op.constant(wanted < 0), is_equal))
        token = op.Expand(op.constant(banned), op.Shape(near))
        return context.without(op, x, token, near)

    return apply


def _min_length(processor: MinLength, context: _Context) -> Apply:
    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        done = rows.position if processor.counts_prefix else rows.num_generated(op)
        is_early = op.Less(done, processor.length)
        return op.Where(op.And(is_early, context.is_eos(op)), -INF, x)

    return apply


def _first_token(processor: FirstToken, context: _Context) -> Apply:
    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        if processor.token is None:
            return x
        # a prefix takes the place of this token
        has_none = op.Equal(rows.of(op, rows.prefix_length), 0)  # [R, 1]
        nothing = op.And(op.Equal(rows.position, 0), has_none)
        forced = op.Where(context.is_token(op, [processor.token]), 0.0, -INF)
        return op.Where(nothing, forced, x)

    return apply


def _last_token(processor: LastToken, context: _Context) -> Apply:
    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        last = op.Sub(rows.of(op, rows.limit), 1)
        is_last = op.Equal(rows.num_generated(op), last)  # [R, 1]
        of_eos = x if processor.is_scored else 0.0
        return op.Where(is_last, op.Where(context.is_eos(op), of_eos, -INF), x)

    return apply


def _eos_growth(processor: EosGrowth, context: _Context) -> Apply:
    def apply(op: Builder, x: Value, rows: GraphRows) -> Value:
        late = op.Max(op.Sub(rows.num_generated(op), processor.start), 0)  # [R, 1]
        growth = op.Sub(op.Pow(float(processor.factor), op.Cast(late, to=FLOAT)), 1.0)
        grown = op.Where(op.Greater(x, -INF), op.Add(x, op.Mul(op.Abs(x), growth)), x)
        return op.Where(context.is_eos(op), grown, x)

    return apply


def _timestamps(processor: WhisperTimestamps, context: _Context) -> Apply:
    return lambda op, x, rows: with_timestamps(op, processor, context.model, x, rows)


RECORDERS: dict[type[object], Callable[[Any, _Context], Apply]] = {
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
