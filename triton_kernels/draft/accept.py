"""Parts of `draft_commit`: outputs that are final, and guesses of what follows.

`csrc/cpu/drafts.cpp` says the same for one source after another.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.beam.columns import (
    DRAFT_BLOCK,
    DRAFT_CREDIT,
    DRAFT_FEEDS_ALL,
    DRAFT_FILL,
    DRAFT_HORIZON,
    DRAFT_MAX_ROWS,
    DRAFT_NGRAM,
    DRAFT_NUM_GUESSES,
    DRAFT_PRICE,
    DRAFT_WINDOW,
    FINISHED_EOS,
    FINISHED_FINAL,
    FINISHED_LENGTH,
    FINISHED_LOG_PROB,
    FINISHED_NODE,
    FINISHED_SCORE,
    INT_DEPTH,
    INT_ENDED_ONLY,
    INT_EXPANSIONS,
    INT_MAX_LENGTH,
    INT_NUM_FINISHED,
    INT_NUM_FOUND,
    INT_PREFIX_LENGTH,
    INT_REASON,
    INT_SCORED_FROM,
    INT_STEPS,
    INT_TARGET_LENGTH,
    INT_WIDTH,
    NUM_DRAFT_INTS,
    STOP_EMPTY_BEAM,
    STOP_ERROR,
    STOP_MAX_LENGTH,
    STOP_RUNNING,
    STOP_WIDTH,
)
from pybeam.triton_kernels.beam.finish import final_score, lines_of

# as in `pybeam.backends.torch_drafts`, in hundredths of a step
STEP, ALLOWANCE, MOST_CREDIT = tl.constexpr(100), tl.constexpr(2), tl.constexpr(200)
MOST_NGRAM, FILL_LAST, FILL_NONE = tl.constexpr(4), tl.constexpr(-1), tl.constexpr(-2)
BLOCK_TEXT = tl.constexpr(128)


class Numbers(NamedTuple):
    """Tokens, and the sizes of arrays."""

    eos_id: tl.tensor
    vocab_size: tl.tensor
    max_nodes: tl.tensor
    max_rows: tl.tensor
    max_live: tl.tensor
    max_finished: tl.tensor
    max_prefix: tl.tensor
    max_guesses: tl.tensor


class Step(NamedTuple):
    """All that a step of drafts reads and changes, of all sources."""

    tree: tl.tuple
    beams: tl.tuple
    drafts: tl.tuple
    survivors: tl.tuple
    eos_token: tl.tensor
    numbers: tl.tuple


class Rows(NamedTuple):
    """Where the rows of a source stand, and what guesses them: pointers, then numbers."""

    token: tl.tensor
    parent: tl.tensor
    guess: tl.tensor
    num_guesses: tl.tensor
    fill: tl.tensor
    feeds_all: tl.tensor


@triton.jit
def adapt(p_draft, num_guesses, num_hits):
    """Store the next window: every guess costs its price, and every guess that holds earns a step."""
    price = tl.load(p_draft + DRAFT_PRICE)
    credit = tl.load(p_draft + DRAFT_CREDIT) + ALLOWANCE + STEP * num_hits - price * num_guesses
    credit = tl.minimum(credit, tl.maximum(MOST_CREDIT, 2 * price))
    larger = tl.maximum(2 * num_guesses, tl.load(p_draft + DRAFT_WINDOW) - 1)
    wanted = tl.maximum(tl.where(num_hits == num_guesses, larger, num_hits), 1)
    # the initialiser makes the first guess and the model the second: a row with the first guess alone would
    # not tell how well the model guesses
    wanted = tl.where((num_guesses == 0) & (credit < 2 * price), 0, wanted)
    affordable = tl.maximum(credit, 0) // tl.maximum(price, 1)
    most = tl.minimum(affordable, tl.load(p_draft + DRAFT_MAX_ROWS) - 1)
    tl.debug_barrier()
    tl.store(p_draft + DRAFT_CREDIT, credit)
    tl.store(p_draft + DRAFT_WINDOW, 1 + tl.minimum(wanted, most))


@triton.jit
def accept(step, i_slot, first_row, num_rows, BLOCK_ROWS: tl.constexpr):
    """Append the outputs that are final, and stop. Returns how many there are.

    An output is final if all outputs before it were guessed right.
    """
    tree, beams, survivors = step.tree, step.beams, step.survivors
    eos_id, max_rows = step.numbers.eos_id, step.numbers.max_rows
    p_ints, p_floats, table = lines_of(beams, i_slot, step.numbers.max_finished)
    p_draft = step.drafts.ints + i_slot * NUM_DRAFT_INTS
    p_node = i_slot * step.numbers.max_nodes
    depth, max_length = tl.load(p_ints + INT_DEPTH), tl.load(p_ints + INT_MAX_LENGTH)
    num_generated = depth + 1 - tl.load(p_ints + INT_PREFIX_LENGTH)
    o_row = tl.arange(0, BLOCK_ROWS)
    b_token = tl.load(survivors.token + first_row + o_row, mask=o_row < num_rows, other=-1)
    b_log_prob = tl.load(survivors.log_prob + first_row + o_row, mask=o_row < num_rows, other=0.0)
    m_next = o_row + 1 < num_rows
    b_guess = tl.load(tree.token + p_node + depth + 1 + o_row, mask=m_next, other=-1)
    m_end = (b_token < 0) | (b_token == eos_id) | (num_generated + o_row >= max_length)
    accepted = 1 + tl.min(tl.where(m_next & ~m_end & (b_guess == b_token), max_rows, o_row), 0)

    # one by one, as greedy search adds them
    score = tl.load(beams.score + i_slot * max_rows)
    for q in range(0, accepted):
        is_there = tl.load(survivors.token + first_row + q) >= 0
        score += tl.load(survivors.log_prob + first_row + q, mask=is_there, other=0.0)
    last = first_row + accepted - 1
    token, node = tl.load(survivors.token + last), depth + accepted - 1
    has_ended, is_none = token == eos_id, token < 0
    has_nan = tl.load(survivors.has_nan + last) != 0
    is_cut = num_generated + accepted - 1 >= max_length
    reason = tl.where(is_cut, STOP_MAX_LENGTH, STOP_RUNNING)
    reason = tl.where(has_ended, STOP_WIDTH, reason)
    reason = tl.where(is_none, tl.where(has_nan, STOP_ERROR, STOP_EMPTY_BEAM), reason)
    is_kept = (reason == STOP_MAX_LENGTH) & (tl.load(p_ints + INT_ENDED_ONLY) == 0)
    scored_from = tl.load(p_ints + INT_SCORED_FROM)
    length = node + 1 - scored_from  # tokens that count in n
    is_given = depth < scored_from + tl.load(p_ints + INT_TARGET_LENGTH)
    expansions = tl.load(p_ints + INT_EXPANSIONS) + num_rows
    steps = tl.load(p_ints + INT_STEPS) + 1
    adapts = ~is_given & (tl.load(p_draft + DRAFT_BLOCK) == 0)

    # every thread has read what is overwritten now
    tl.debug_barrier()
    m_new = (o_row < accepted) & (b_token >= 0) & (b_token != eos_id)
    tl.store(tree.token + p_node + depth + 1 + o_row, b_token, mask=m_new)
    tl.store(tree.log_prob + p_node + depth + 1 + o_row, b_log_prob, mask=m_new)
    tl.store(tree.parent + p_node + depth + 1 + o_row, depth + o_row, mask=m_new)
    tl.store(beams.score + i_slot * max_rows, score)
    if (reason == STOP_WIDTH) | is_kept:
        log_prob = tl.load(survivors.log_prob + last)
        tl.store(table.ints + FINISHED_NODE, tl.where(has_ended, node, node + 1))
        tl.store(table.ints + FINISHED_LENGTH, length)
        tl.store(table.ints + FINISHED_EOS, tl.where(has_ended, tl.load(step.eos_token + last), -1))
        tl.store(table.floats + FINISHED_SCORE, score)
        tl.store(table.floats + FINISHED_LOG_PROB, tl.where(has_ended, log_prob, 0.0))
        tl.store(table.floats + FINISHED_FINAL, final_score(p_floats, score, length, has_ended))
        tl.store(p_ints + INT_NUM_FINISHED, 1)
        tl.store(p_ints + INT_NUM_FOUND, 1)
    tl.store(p_ints + INT_REASON, reason)
    tl.store(p_ints + INT_EXPANSIONS, expansions)
    tl.store(p_ints + INT_STEPS, steps)
    tl.store(p_ints + INT_DEPTH, depth + accepted)
    if adapts:
        adapt(p_draft, num_rows - 1, accepted - 1)
    return accepted


@triton.jit
def next_rows(p_ints, p_draft):
    """Return how many rows the next step has, unless a guess ends the output or nobody guesses."""
    depth = tl.load(p_ints + INT_DEPTH)
    done = depth - tl.load(p_ints + INT_PREFIX_LENGTH)
    block, horizon = tl.load(p_draft + DRAFT_BLOCK), tl.load(p_draft + DRAFT_HORIZON)
    in_block = block - done % tl.maximum(block, 1)
    rows = tl.where(block > 0, in_block, tl.load(p_draft + DRAFT_WINDOW))
    rows = tl.where(done >= horizon, 1, tl.minimum(rows, horizon - done))
    given = tl.load(p_ints + INT_SCORED_FROM) + tl.load(p_ints + INT_TARGET_LENGTH) - depth
    most = tl.minimum(tl.load(p_draft + DRAFT_MAX_ROWS), given)
    rows = tl.minimum(tl.where(given > 0, most, rows), tl.load(p_ints + INT_MAX_LENGTH) - done)
    # a slot that was never opened has no place for a row
    is_live = (tl.load(p_ints + INT_REASON) == STOP_RUNNING) & (tl.load(p_ints + INT_WIDTH) > 0)
    return tl.where(is_live, rows, 0)


@triton.jit
def find_ngram(p_text, end, p_token, node, n):
    """Return the latest place before `end` in a text that the n tokens before a node precede, or -1."""
    b_found = tl.zeros([BLOCK_TEXT], tl.int32) - 1
    for start in range(0, end, BLOCK_TEXT):
        o_at = start + tl.arange(0, BLOCK_TEXT)
        m_fits = (o_at >= n) & (o_at < end) & (node >= n)
        for back in tl.static_range(1, MOST_NGRAM + 1):
            wanted = tl.load(p_token + node - back, mask=(back <= n) & (node >= n), other=0)
            b_text = tl.load(p_text + o_at - back, mask=m_fits & (back <= n), other=0)
            m_fits &= b_text == wanted
        b_found = tl.maximum(b_found, tl.where(m_fits, o_at, -1))
    return tl.max(b_found, 0)


@triton.jit
def largest(one, other):
    return tl.maximum(one, other)


@triton.jit
def guess_by_ngrams(step, rows, ngram, depth, num_rows, o_row, b_value):
    """Store guesses one after another: `b_value`, or, where that is -1, what followed the last tokens before.

    The output is searched first, then the given guesses. Returns the rows of the next step.
    """
    p_token, p_guess = rows.token, rows.guess
    for q in range(1, num_rows):
        if q < num_rows:
            node = depth + q
            # every thread sees the token before
            tl.debug_barrier()
            before = tl.load(p_token + node - 1)
            at = find_ngram(p_guess, rows.num_guesses, p_token, node, ngram)
            found = tl.load(p_guess + at, mask=at >= 0, other=-1)
            at = find_ngram(p_token, node, p_token, node, ngram)
            found = tl.where(at >= 0, tl.load(p_token + at, mask=at >= 0, other=-1), found)
            is_token = (found >= 0) & (found < step.numbers.vocab_size)
            found = tl.where(is_token, found, tl.where(rows.fill == FILL_LAST, before, rows.fill))
            own = tl.max(tl.where(o_row == q, b_value, -1), 0)
            token = tl.where(own >= 0, own, found)
            # no row follows a guess that ends the output, or no guess
            ends = (token < 0) | ((token == step.numbers.eos_id) & ~rows.feeds_all)
            tl.store(p_token + node, token, mask=~ends)
            tl.store(rows.parent + node, node - 1, mask=~ends)
            num_rows = tl.where(ends, q, num_rows)
    return num_rows


@triton.jit
def guess_rows(step, i_slot, first_carried, num_carried, BLOCK_ROWS: tl.constexpr):
    """Store guesses of the tokens behind the last one. Returns the rows of the next step.

    `num_carried` outputs from `first_carried` on are the model's guesses of the first of these tokens.
    """
    numbers = step.numbers
    eos_id, vocab_size, max_rows = numbers.eos_id, numbers.vocab_size, numbers.max_rows
    p_ints, _, _ = lines_of(step.beams, i_slot, numbers.max_finished)
    p_draft = step.drafts.ints + i_slot * NUM_DRAFT_INTS
    p_token = step.tree.token + i_slot * numbers.max_nodes
    p_parent = step.tree.parent + i_slot * numbers.max_nodes
    p_guess = step.drafts.guess + i_slot * numbers.max_guesses
    depth, fill = tl.load(p_ints + INT_DEPTH), tl.load(p_draft + DRAFT_FILL)
    known = tl.load(p_ints + INT_SCORED_FROM) + tl.load(p_ints + INT_TARGET_LENGTH)
    feeds_all = tl.load(p_draft + DRAFT_FEEDS_ALL) != 0
    ngram = tl.load(p_draft + DRAFT_NGRAM)
    num_guesses = tl.minimum(tl.load(p_draft + DRAFT_NUM_GUESSES), numbers.max_guesses)
    room = tl.minimum(tl.minimum(numbers.max_nodes, numbers.max_live) - depth, max_rows)
    num_rows = tl.minimum(next_rows(p_ints, p_draft), room)

    o_row = tl.arange(0, BLOCK_ROWS)
    m_row = (o_row >= 1) & (o_row < num_rows)
    o_node, o_carried = depth + o_row, o_row - 1
    m_given = m_row & (o_node <= known) & (o_node <= numbers.max_prefix)
    p_given = step.beams.prefix + i_slot * numbers.max_prefix + o_node - 1
    b_given = tl.load(p_given, mask=m_given, other=0)
    # an output behind a wrong guess is a poor guess where others are good
    m_carried = m_row & (o_carried < num_carried) & (fill != FILL_NONE)
    p_carried = step.survivors.token + first_carried + o_carried
    b_value = tl.load(p_carried, mask=m_carried, other=-1)
    o_place = o_node - tl.load(p_ints + INT_PREFIX_LENGTH) - 1
    m_guess = m_row & (ngram == 0) & (o_place >= 0) & (o_place < num_guesses)
    b_guess = tl.load(p_guess + o_place, mask=m_guess, other=-1)
    b_guess = tl.where((b_guess >= 0) & (b_guess < vocab_size), b_guess, -1)
    # where there is no guess, n-grams say one below
    b_guess = tl.where((b_guess < 0) & (ngram == 0) & (fill >= 0), fill, b_guess)
    b_value = tl.where(b_value >= 0, b_value, b_guess)
    b_value = tl.where(o_node <= known, b_given, b_value)
    if ngram > 0:
        rows = Rows(p_token, p_parent, p_guess, num_guesses, fill, feeds_all)
        num_rows = guess_by_ngrams(step, rows, ngram, depth, num_rows, o_row, b_value)
    else:
        # the token before, where it is the guess: the last of those that are known
        last = tl.load(p_token + depth).to(tl.int64)
        b_numbered = (o_row.to(tl.int64) << 32) + b_value.to(tl.int64)
        b_numbered = tl.where(m_row & (b_value >= 0), b_numbered, last)
        b_numbered = tl.associative_scan(b_numbered, 0, largest)
        b_token = (b_numbered & 0xFFFFFFFF).to(tl.int32)
        # no row follows a guess that ends the output, or no guess
        m_none = (b_value < 0) & (fill == FILL_NONE)
        m_last = m_row & (m_none | ((b_token == eos_id) & ~feeds_all))
        num_rows = tl.minimum(num_rows, tl.min(tl.where(m_last, o_row, max_rows), 0))
        m_row &= o_row < num_rows
        # every thread has read the last token
        tl.debug_barrier()
        tl.store(p_token + o_node, b_token, mask=m_row)
        tl.store(p_parent + o_node, o_node - 1, mask=m_row)
    return num_rows
