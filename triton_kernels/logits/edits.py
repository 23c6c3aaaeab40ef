"""Change few logits of each row, as a list of edits says: penalties, bans, a biased prefix.

One launch makes all edits, a program the edits of one row, one after another. A *line* of the list has the
number of an `Edit`, the addresses of two arrays, the sizes of their last dimensions, and numbers. Addresses
are those of arrays with a place per slot. So one variant of the kernel serves all lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pybeam import contracts
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.logits.whole_rows import (
    BANNED,
    allow_eos,
    allow_one,
    bias_prefix,
    order_marks,
    record,
)
from pybeam.triton_kernels.select.options import MAX_EOS, ends

# an edit, the addresses of two arrays, their two sizes, and two numbers
EDIT_WORDS = 7
WORDS = tl.constexpr(EDIT_WORDS)
REPETITION = tl.constexpr(int(contracts.Edit.REPETITION))
NGRAM = tl.constexpr(int(contracts.Edit.NGRAM))
TOKENS = tl.constexpr(int(contracts.Edit.TOKENS))
SEQUENCES = tl.constexpr(int(contracts.Edit.SEQUENCES))
MIN_LENGTH = tl.constexpr(int(contracts.Edit.MIN_LENGTH))
EOS_PENALTY = tl.constexpr(int(contracts.Edit.EOS_PENALTY))
TOKEN_PENALTY = tl.constexpr(int(contracts.Edit.TOKEN_PENALTY))
BIASED_PREFIX = tl.constexpr(int(contracts.Edit.BIASED_PREFIX))
FIRST_TOKEN = tl.constexpr(int(contracts.Edit.FIRST_TOKEN))
LAST_TOKEN = tl.constexpr(int(contracts.Edit.LAST_TOKEN))
COUNTS = tl.constexpr(int(contracts.Edit.COUNTS))
SEQUENCE_BIAS = tl.constexpr(int(contracts.Edit.SEQUENCE_BIAS))
MARKS = tl.constexpr(int(contracts.Edit.MARKS))
RECORD = tl.constexpr(int(contracts.Edit.RECORD))

# tokens of a hypothesis that a program reads at once: one variant of the kernel for each
BLOCKS = (256, 1024, 4096)


class Seen(NamedTuple):
    """Where the tokens stand that a hypothesis has seen: pointers, then numbers."""

    own: tl.tensor
    prompt: tl.tensor
    prompt_size: tl.tensor
    skipped: tl.tensor  # of its own tokens
    end: tl.tensor  # the place of the last token


@triton.jit
def tokens_at(seen, b_place, m_place):
    """Load the tokens at these places of what a hypothesis has seen: its prompt, then its own tokens."""
    m_prompt = m_place & (b_place < seen.prompt_size)
    b_prompt = tl.load(seen.prompt + b_place, mask=m_prompt, other=-1)
    b_own = b_place - seen.prompt_size
    b_token = tl.load(seen.own + b_own + seen.skipped, mask=m_place & (b_own >= 0), other=-1)
    return tl.where(b_own >= 0, b_token, b_prompt)


@triton.jit
def ban(p_row, b_token, m_banned):
    """Write -inf at tokens, but leave a NaN, which `select` reports."""
    b_logit = tl.load(p_row + b_token, mask=m_banned, other=0.0)
    tl.store(p_row + b_token, BANNED, mask=m_banned & (b_logit == b_logit))


@triton.jit
def penalise(p_row, seen, penalty, BLOCK: tl.constexpr):
    """Make each token that there is less probable, once, however often it occurs."""
    for start in range(0, seen.end + 1, BLOCK):
        b_place = start + tl.arange(0, BLOCK)
        m_place = b_place <= seen.end
        b_token = tokens_at(seen, b_place, m_place)
        m_new = m_place & (b_token >= 0)
        for place in range(0, start):
            # an earlier block has changed these
            token = tokens_at(seen, place, place >= 0)
            m_new = m_new & (b_token != token)
        b_logit = tl.load(p_row + b_token, mask=m_new, other=0.0)
        # nobody writes before all have read
        tl.debug_barrier()
        b_logit = tl.where(b_logit < 0.0, b_logit * penalty, tl.div_rn(b_logit, penalty))
        tl.store(p_row + b_token, b_logit, mask=m_new)


@triton.jit
def penalise_counts(p_row, seen, frequency, presence, BLOCK: tl.constexpr):
    """Make each token that there is less probable, the more often it occurs."""
    for start in range(0, seen.end + 1, BLOCK):
        b_place = start + tl.arange(0, BLOCK)
        m_place = b_place <= seen.end
        b_token = tokens_at(seen, b_place, m_place)
        m_new = m_place & (b_token >= 0)
        b_count = tl.zeros([BLOCK], tl.int32)
        for place in range(0, seen.end + 1):
            m_equal = b_token == tokens_at(seen, place, place >= 0)
            b_count += m_equal.to(tl.int32)
            # an earlier block has changed these
            m_new = m_new & ~(m_equal & (place < start))
        b_logit = tl.load(p_row + b_token, mask=m_new, other=0.0)
        # nobody writes before all have read
        tl.debug_barrier()
        b_logit -= b_count.to(tl.float32) * frequency + presence
        tl.store(p_row + b_token, b_logit, mask=m_new)


@triton.jit
def ban_ngrams(p_row, seen, n, BLOCK: tl.constexpr):
    """Ban each token that followed the last n - 1 tokens before."""
    for start in range(n - 1, seen.end + 1, BLOCK):
        b_place = start + tl.arange(0, BLOCK)
        m_place = b_place <= seen.end
        b_token = tokens_at(seen, b_place, m_place)
        m_banned = m_place & (b_token >= 0)
        for back in range(1, n):
            b_before = tokens_at(seen, b_place - back, m_place)
            place = tl.maximum(seen.end + 1 - back, 0)
            token = tokens_at(seen, place, place >= 0)
            m_banned = m_banned & (b_before == token)
        ban(p_row, b_token, m_banned)


@triton.jit
def ban_tokens(p_row, p_token, num_tokens, BLOCK: tl.constexpr):
    for start in range(0, num_tokens, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_token = tl.load(p_token + o_token, mask=o_token < num_tokens, other=-1)
        ban(p_row, b_token, b_token >= 0)


@triton.jit
def completed(p_sequence, o_line, num_sequences, longest, seen):
    """Return the last tokens of sequences, which come first here, and lengths: 0 unless they may come now."""
    m_line = o_line < num_sequences
    p_line = p_sequence + o_line.to(tl.int64) * longest
    b_last = tl.load(p_line, mask=m_line, other=-1)
    m_near = b_last >= 0
    b_length = m_near.to(tl.int32)
    for back in range(1, longest):
        b_token = tl.load(p_line + back, mask=m_line, other=-1)
        place = seen.end - (back - 1)
        token = tokens_at(seen, place, place >= 0)
        m_near = m_near & ((b_token < 0) | (b_token == token))
        b_length += (b_token >= 0).to(tl.int32)
    return b_last, tl.where(m_near, b_length, 0)


@triton.jit
def ban_sequences(
    p_row, p_sequence, num_sequences, longest, seen, spares_eos, eos, BLOCK: tl.constexpr
):
    """Ban the last token of each sequence whose others the hypothesis ends with."""
    for start in range(0, num_sequences, BLOCK):
        o_line = start + tl.arange(0, BLOCK)
        b_last, b_length = completed(p_sequence, o_line, num_sequences, longest, seen)
        m_spared = (spares_eos > 0) & (b_length == 1) & ends(b_last, eos)
        ban(p_row, b_last, (b_length > 0) & ~m_spared)


@triton.jit
def bias_sequences(p_row, p_sequence, p_bias, num_sequences, longest, seen, BLOCK: tl.constexpr):
    """Add to the last token of each sequence whose others the hypothesis ends with."""
    for start in range(0, num_sequences, BLOCK):
        o_line = start + tl.arange(0, BLOCK)
        b_last, b_length = completed(p_sequence, o_line, num_sequences, longest, seen)
        b_bias = tl.load(p_bias + o_line, mask=o_line < num_sequences, other=0.0)
        # of one length they end alike but for their last tokens
        for length in range(1, longest + 1):
            m_own = b_length == length
            b_logit = tl.load(p_row + b_last, mask=m_own, other=0.0)
            tl.store(p_row + b_last, b_logit + b_bias, mask=m_own)
            tl.debug_barrier()


@one_variant(
    anywhere=[
        "p_logits",
        "p_line",
        "p_history",
        "p_prompt",
        "p_slot",
        "p_position",
        "p_prefix_length",
        "p_max_length",
    ]
)
def edit_kernel(
    p_logits,
    p_line,
    p_history,
    p_prompt,
    p_slot,
    p_position,
    p_prefix_length,
    p_max_length,
    row_stride,
    num_columns,
    num_edits,
    history_stride,
    prompt_size,
    prefix_stride,
    limit_stride,
    more_eos,
    eos_0,
    eos_1,
    eos_2,
    eos_3,
    eos_4,
    eos_5,
    eos_6,
    eos_7,
    BLOCK: tl.constexpr,
):
    await_kernels()
    eos = (eos_0, eos_1, eos_2, eos_3, eos_4, eos_5, eos_6, eos_7)
    i_row = tl.program_id(0).to(tl.int64)
    p_row = p_logits + i_row * row_stride
    p_own = p_history + i_row * history_stride
    slot = tl.load(p_slot + i_row).to(tl.int64)
    position = tl.load(p_position + i_row)
    done = position - tl.load(p_prefix_length + slot * prefix_stride)
    for i_edit in range(num_edits):
        p_word = p_line + i_edit * WORDS
        kind = tl.load(p_word)
        first, second = tl.load(p_word + 1), tl.load(p_word + 2)
        p_first = first.to(tl.pointer_type(tl.float32)) + slot
        p_first_int = first.to(tl.pointer_type(tl.int32)) + slot
        size, last_size = tl.load(p_word + 3).to(tl.int32), tl.load(p_word + 4).to(tl.int32)
        number, other = tl.load(p_word + 5).to(tl.int32), tl.load(p_word + 6).to(tl.int32)
        # `number` of edits that look at all tokens: whether the start counts
        seen_prompt = tl.where(number > 0, prompt_size, 0)
        skipped = tl.where((number > 0) & (prompt_size == 0), 0, 1)
        p_before = p_prompt + slot * prompt_size
        end = seen_prompt + position - skipped
        seen = Seen(p_own, p_before, seen_prompt, skipped, end)
        if kind == REPETITION:
            penalty = tl.load(p_first)
            penalise(p_row, seen, penalty, BLOCK)
        elif kind == NGRAM:
            ban_ngrams(p_row, seen, other, BLOCK)
        elif kind == TOKENS:
            # `number`: the least place where a hypothesis starts; -1: the tokens are banned everywhere
            if (number < 0) | (position == tl.maximum(position - done, number)):
                p_token = first.to(tl.pointer_type(tl.int32)) + slot * size
                ban_tokens(p_row, p_token, size, BLOCK)
        elif kind == SEQUENCES:
            p_sequence = first.to(tl.pointer_type(tl.int32)) + slot * size * last_size
            num_sequences = tl.load(second.to(tl.pointer_type(tl.int32)) + slot)
            ban_sequences(p_row, p_sequence, num_sequences, last_size, seen, other, eos, BLOCK)
        elif kind == SEQUENCE_BIAS:
            p_sequence = first.to(tl.pointer_type(tl.int32)) + slot * size * last_size
            p_bias = second.to(tl.pointer_type(tl.float32)) + slot * size
            bias_sequences(p_row, p_sequence, p_bias, size, last_size, seen, BLOCK)
        elif kind == COUNTS:
            presence = tl.load(second.to(tl.pointer_type(tl.float32)) + slot)
            penalise_counts(p_row, seen, tl.load(p_first), presence, BLOCK)
        elif kind == MIN_LENGTH:
            length = tl.where(number > 0, position, done)
            if length < tl.load(p_first_int):
                for i in tl.static_range(MAX_EOS):
                    tl.store(p_row + eos[i], BANNED)
        elif kind == EOS_PENALTY:
            penalty = tl.load(p_first)
            for i in tl.static_range(MAX_EOS):
                logit = tl.load(p_row + eos[i])
                tl.store(p_row + eos[i], logit * penalty, mask=i <= more_eos)
        elif kind == TOKEN_PENALTY:
            tl.store(p_row + number, tl.load(p_row + number) - tl.load(p_first))
        elif kind == BIASED_PREFIX:
            p_log = first.to(tl.pointer_type(tl.float32)) + 2 * slot
            p_prefix = second.to(tl.pointer_type(tl.int32)) + slot * last_size
            bias_prefix(
                p_row, p_own, p_log, p_prefix, last_size, position, done, num_columns, BLOCK
            )
        elif kind == FIRST_TOKEN:
            token = tl.load(p_first_int)
            # a prefix takes the place of this token
            if (position == 0) & (done == 0) & (token >= 0):
                allow_one(p_row, token, num_columns, BLOCK)
        elif kind == LAST_TOKEN:
            if done + 1 == tl.load(p_max_length + slot * limit_stride):
                allow_eos(p_row, number, eos, num_columns, BLOCK)
        elif kind == MARKS:
            if done >= 0:
                largest_first = tl.load(p_first_int)
                if (done == 0) & (largest_first < 0):
                    # the first token may be any other
                    tl.store(p_row + number - 1, BANNED)
                else:
                    order_marks(
                        p_row,
                        p_own,
                        number,
                        largest_first,
                        position,
                        done,
                        eos_0,
                        num_columns,
                        BLOCK,
                    )
        elif kind == RECORD:
            p_given = first.to(tl.pointer_type(tl.int32)) + slot * size
            line = tl.load(p_given + 1)
            if (done == -tl.load(p_given)) & (line >= 0):
                p_record = second.to(tl.pointer_type(tl.float32)) + line.to(tl.int64) * last_size
                record(p_row, p_given, p_record, last_size, num_columns, BLOCK)
        # the next edit reads what this one wrote
        tl.debug_barrier()


def line_of(rule: contracts.EditRule, arrays: Sequence[Tensor]) -> list[int]:
    """Return the line of a processor with these arrays, which must stay."""
    addresses = [array.data_ptr() for array in arrays]
    sizes = [size for array in arrays for size in array.shape[1:]]
    kind, *numbers = rule.words
    return [kind, *[*addresses, 0, 0][:2], *[*sizes, 0, 0][:2], *numbers]


# the parameters are the arrays of a step, which kernels take one by one
def edit_logits(
    logits: Tensor,
    lines: Tensor,
    history: Tensor,
    prompt: Tensor,
    slot: Tensor,
    position: Tensor,
    prefix_length: Tensor,
    max_length: Tensor,
    eos_ids: Sequence[int],
) -> None:
    """Edit logits [R, V] float32 in place, see `pybeam.processors.edits`.

    Args:
        lines: [n, EDIT_WORDS] int64, see `line_of`.
        history: [R, T] int32, the tokens of every row, start token first; nothing is read without an edit
            that needs it.
        prompt: [S, P] int32, by slot.
        slot, position: [R] int32.
        prefix_length, max_length: [S] int32, by slot.
    """
    num_rows, num_columns = logits.shape
    if not logits.numel():
        return
    prompt_size = prompt.shape[1]
    num_tokens = history.shape[1] + prompt_size
    block = next((block for block in BLOCKS if num_tokens <= block), BLOCKS[-1])
    edit_kernel[(num_rows,)](
        logits,
        lines,
        history,
        prompt,
        slot,
        position,
        prefix_length,
        max_length,
        logits.stride(0),
        num_columns,
        len(lines),
        history.stride(0),
        prompt_size,
        prefix_length.stride(0),
        max_length.stride(0),
        len(eos_ids) - 1,
        # the first id fills the unused places
        *eos_ids,
        *[eos_ids[0]] * (MAX_EOS.value - len(eos_ids)),
        BLOCK=block,
        num_warps=max(4, block // 256),
    )
