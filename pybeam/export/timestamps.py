"""Whisper's rules for timestamps as operators: `pybeam.speech.whisper_timestamps`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pybeam.export.builder import Builder, Value
from pybeam.export.hypotheses import INF
from pybeam.export.rows import GraphRows
from pybeam.models.transformer.model import Transformer
from pybeam.speech.whisper.timestamps import WhisperTimestamps


class Before(NamedTuple):
    """The generated timestamps of R rows, [R, 1] each."""

    latest: Value  # -1: there is none
    is_pair: Value  # it ends the hypothesis, and begins a segment
    is_alone: Value  # it ends the hypothesis, and a segment


def with_timestamps(
    op: Builder, rule: WhisperTimestamps, model: Transformer, x: Value, rows: GraphRows
) -> Value:
    """Return what is left of logits or log-probabilities x [R, V]."""
    begin, eos, size = rule.no_timestamps + 1, model.eos_id, model.vocab_size
    token = torch.arange(size)
    is_stamp, is_text = token >= begin, token < eos
    done = rows.num_generated(op)  # [R, 1]
    is_first, is_behind = op.Equal(done, 0), op.GreaterOrEqual(done, 0)
    latest, is_pair, is_alone = _before(op, begin, rows, done)
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


def _before(op: Builder, begin: int, rows: GraphRows, done: Value) -> Before:
    token = rows.token(op)  # [R, t]
    column = op.sizes(op.size(token, 0), 1)
    # the start token is no timestamp, and there is always one column
    token = op.Concat(op.Expand(-1, column), token, axis=1)
    place = op.range(op.size(token, 1))
    start = op.Add(rows.of(op, rows.prefix_length), 1)
    is_stamp = op.And(op.GreaterOrEqual(token, begin), op.GreaterOrEqual(place, start))
    at = op.ReduceMax(op.Where(is_stamp, place, -1), [1])  # [R, 1]
    ends = op.Equal(at, rows.position)
    one_before = op.Reshape(op.Max(op.Sub(rows.position, 1), 0), [1])
    is_pair = op.Or(op.Gather(is_stamp, one_before, axis=1), op.Less(done, 2))
    latest = op.GatherElements(token, op.Max(at, 0), axis=1)
    latest = op.Where(op.Less(at, 0), -1, latest)
    return Before(latest, op.And(ends, is_pair), op.And(ends, op.Not(is_pair)))


def _log_sum(op: Builder, x: Value, is_one: torch.Tensor) -> Value:
    """Compute ``log(sum(exp(x)))`` of some columns of [R, V]: [R, 1], -inf where all of them are."""
    x = op.Where(op.constant(is_one), x, -INF)
    largest = op.ReduceMax(x, [1])
    has_any = op.Greater(largest, -INF)
    peak = op.Where(has_any, largest, 0.0)
    return op.Add(peak, op.Log(op.ReduceSum(op.Exp(op.Sub(x, peak)), [1])))
