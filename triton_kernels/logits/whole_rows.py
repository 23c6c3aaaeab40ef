"""Edits of whole rows of logits: a biased prefix, one token that is allowed, ordered marks, and records."""

from __future__ import annotations

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exp_shifted, log1p
from pybeam.triton_kernels.select.options import ends

BANNED = tl.constexpr(-float("inf"))
# where the tokens of a record begin in the line of a slot: behind how many tokens of the prefix follow that
# place, and the record's own line
RECORD_TOKENS = tl.constexpr(2)


@triton.jit
def bias_prefix(
    p_row, p_history, p_log, p_prefix, size, position, done, num_columns, BLOCK: tl.constexpr
):
    """Make the next token of a prefix likely, if the hypothesis has followed it so far."""
    first = position + 1 - done
    differs = done * 0
    for start in range(0, tl.minimum(size, done), BLOCK):
        o_place = start + tl.arange(0, BLOCK)
        m_place = o_place < tl.minimum(size, done)
        b_made = tl.load(p_history + first + o_place, mask=m_place, other=-1)
        b_wanted = tl.load(p_prefix + o_place, mask=m_place, other=-1)
        differs = tl.maximum(differs, tl.max((b_made != b_wanted).to(tl.int32), 0))
    is_within = (done >= 0) & (done < size)
    wanted = tl.load(p_prefix + done, mask=is_within, other=-1)
    if (wanted >= 0) & (differs == 0):
        log_beta, log_rest = tl.load(p_log), tl.load(p_log + 1)
        for start in range(0, num_columns, BLOCK):
            o_token = start + tl.arange(0, BLOCK)
            m_token = o_token < num_columns
            b_logit = tl.load(p_row + o_token, mask=m_token, other=0.0) + log_rest
            b_largest = tl.maximum(b_logit, log_beta)
            b_far = tl.where(b_largest == BANNED, BANNED, -tl.abs(b_logit - log_beta))
            b_sum = tl.where(b_logit == b_logit, b_largest + log1p(tl.exp(b_far)), b_logit)
            tl.store(p_row + o_token, tl.where(o_token == wanted, b_sum, b_logit), mask=m_token)


@triton.jit
def allow_one(p_row, token, num_columns, BLOCK: tl.constexpr):
    """Forbid all tokens but one, whose logit becomes 0."""
    for start in range(0, num_columns, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_logit = tl.where(o_token == token, 0.0, BANNED)
        tl.store(p_row + o_token, b_logit, mask=o_token < num_columns)


@triton.jit
def allow_eos(p_row, is_scored, eos, num_columns, BLOCK: tl.constexpr):
    """Forbid all tokens but those that end a hypothesis; these become 0 unless they are scored."""
    for start in range(0, num_columns, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        m_ends = ends(o_token, eos)
        m_written = (o_token < num_columns) & (~m_ends | (is_scored == 0))
        tl.store(p_row + o_token, tl.where(m_ends, 0.0, BANNED), mask=m_written)


@triton.jit
def mass(p_row, first, last, BLOCK: tl.constexpr):
    """Return log(sum(exp(x))) of the logits of tokens from `first` up to `last`; -inf if none is allowed."""
    b_peak = tl.full([BLOCK], BANNED, tl.float32)
    b_sum = tl.zeros([BLOCK], tl.float32)
    for start in range(first, last, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_logit = tl.load(p_row + o_token, mask=o_token < last, other=BANNED)
        b_new_peak = tl.maximum(b_peak, b_logit)
        b_sum = b_sum * exp_shifted(b_peak, b_new_peak) + exp_shifted(b_logit, b_new_peak)
        b_peak = b_new_peak
    peak = tl.max(b_peak, 0)
    return peak + tl.log(tl.sum(b_sum * exp_shifted(b_peak, peak), 0))


@triton.jit
def order_marks(
    p_row, p_history, begin, largest_first, position, done, eos, num_columns, BLOCK: tl.constexpr
):
    """Keep marks, the tokens from `begin` on, in order around segments of text; see `WhisperTimestamps`."""
    first = position + 1 - done
    latest = done * 0 - 1
    for start in range(first, position + 1, BLOCK):
        b_place = start + tl.arange(0, BLOCK)
        b_token = tl.load(p_history + b_place, mask=b_place <= position, other=-1)
        latest = tl.maximum(latest, tl.max(tl.where(b_token >= begin, b_place, -1), 0))
    token = tl.load(p_history + latest, mask=latest >= 0, other=begin - 1)
    before = tl.load(p_history + position - 1, mask=done >= 2, other=begin)
    begins = (latest == position) & (before >= begin)
    ends = (latest == position) & (before < begin)
    # one that ends a segment may begin the next one
    least = tl.where(begins, num_columns, token + 1 - ends.to(tl.int32))
    most = tl.where(done == 0, largest_first, num_columns)
    for start in range(begin - 1, num_columns, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        m_banned = (o_token < least) | (o_token > most)
        tl.store(p_row + o_token, BANNED, mask=m_banned & (o_token < num_columns))
    tl.debug_barrier()
    all_marks = mass(p_row, begin, num_columns, BLOCK)
    others = tl.where(done == 0, begin, tl.where(ends, eos, 0))
    # a NaN is not less than anything
    wins = done * 0 + 1
    for start in range(others, begin, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_logit = tl.load(p_row + o_token, mask=o_token < begin, other=BANNED)
        wins = tl.minimum(wins, tl.min((b_logit < all_marks).to(tl.int32), 0))
    for start in range(0, tl.where(wins > 0, begin, others), BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        m_banned = (o_token < others) | ((wins > 0) & (o_token < begin))
        tl.store(p_row + o_token, BANNED, mask=m_banned)


@triton.jit
def record(p_row, p_given, p_record, num_tokens, num_columns, BLOCK: tl.constexpr):
    """Write down the log-probabilities of tokens."""
    log_sum = mass(p_row, 0, num_columns, BLOCK)
    for start in range(0, num_tokens, BLOCK):
        o_place = start + tl.arange(0, BLOCK)
        m_place = o_place < num_tokens
        b_token = tl.load(p_given + RECORD_TOKENS + o_place, mask=m_place, other=0)
        b_logit = tl.load(p_row + b_token, mask=m_place, other=0.0)
        tl.store(p_record + o_place, b_logit - log_sum, mask=m_place)
