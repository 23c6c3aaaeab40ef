"""Masks of the token tree pass on by a step."""

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum
from pybeam.triton_kernels.tree.survivors import survivors_at

NEAR_ROWS = tl.constexpr(8)


@triton.jit
def row_bits(m_row, word: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """Bit ``row - 64 * word`` for the rows of that word, 0 for the others."""
    o_bit = tl.arange(0, BLOCK_ROWS) - 64 * word
    b_one = tl.full([BLOCK_ROWS], 1, tl.int64)
    return tl.where(m_row & (o_bit >= 0) & (o_bit < 64), b_one << (o_bit & 63).to(tl.int64), 0)


@triton.jit
def inherited_word(
    survivors, numbers, span, b_word, b_word_1, word: tl.constexpr, MASK_WORDS: tl.constexpr
):
    """Return a word of the new masks of nodes: the bits of rows whose parents saw a node."""
    b_new = tl.zeros_like(b_word)
    # one row after another, so that a node needs no more than its thread has; a few are loaded at a time
    for start in range(64 * word, tl.minimum(span[1], 64 * word + 64), NEAR_ROWS):
        for i in tl.static_range(NEAR_ROWS):
            i_row = start + i
            _, _, is_live, parent = survivors_at(survivors, numbers, span, i_row)
            b_old = b_word
            if MASK_WORDS == 2:
                b_old = tl.where(parent >= 64, b_word_1, b_word)
            b_sees = (b_old >> (parent & 63).to(tl.int64)) & (is_live & (parent >= 0)).to(tl.int64)
            b_new |= b_sees << (i_row - 64 * word)
    return b_new


@triton.jit
def inherit_masks(
    tree,
    survivors,
    numbers,
    span,  # see `span_of`
    i_slot,
    num_live,
    num_free,
    MASK_WORDS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
):
    """Give every live node the masks of its rows' children. A node that no row sees frees its cell.

    Returns how many nodes stay.
    """
    max_live, max_free = numbers.max_live, numbers.max_free
    p_live_cell = tree.live_cell + i_slot * max_live
    p_live_mask = tree.live_mask + i_slot * max_live * MASK_WORDS
    p_free_cell = tree.free_cell + i_slot * max_free
    num_kept = 0
    for start in range(0, num_live, BLOCK_CELLS):
        o_live = start + tl.arange(0, BLOCK_CELLS)
        m_old = o_live < num_live
        b_cell = tl.load(p_live_cell + o_live, mask=m_old, other=0)
        p_word = p_live_mask + o_live.to(tl.int64) * MASK_WORDS
        b_word = tl.load(p_word, mask=m_old, other=0)
        b_word_1 = b_word
        if MASK_WORDS == 2:
            b_word_1 = tl.load(p_word + 1, mask=m_old, other=0)
        b_new = inherited_word(survivors, numbers, span, b_word, b_word_1, 0, MASK_WORDS)
        b_any = b_new
        if MASK_WORDS == 2:
            b_new_1 = inherited_word(survivors, numbers, span, b_word, b_word_1, 1, MASK_WORDS)
            b_any = b_new | b_new_1
        m_kept = b_any != 0
        b_kept = m_kept.to(tl.int32)
        b_place = num_kept + exclusive_sum(b_kept)
        # live nodes only move towards the front, so only this block can still read a place to be written
        tl.debug_barrier()
        tl.store(p_live_cell + b_place, b_cell, mask=m_kept)
        p_word = p_live_mask + b_place.to(tl.int64) * MASK_WORDS
        tl.store(p_word, b_new, mask=m_kept)
        if MASK_WORDS == 2:
            tl.store(p_word + 1, b_new_1, mask=m_kept)
        o_free = num_free + o_live - b_place
        m_freed = m_old & (b_any == 0) & (o_free < max_free)
        tl.store(p_free_cell + o_free, b_cell, mask=m_freed)
        num_kept += tl.sum(b_kept, 0)
    return num_kept
