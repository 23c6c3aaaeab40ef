"""Masks of the token tree pass on by a step."""

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum


@triton.jit
def row_bits(m_row, word: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """Bit ``row - 64 * word`` for the rows of that word, 0 for the others."""
    o_bit = tl.arange(0, BLOCK_ROWS) - 64 * word
    b_one = tl.full([BLOCK_ROWS], 1, tl.int64)
    return tl.where(m_row & (o_bit >= 0) & (o_bit < 64), b_one << (o_bit & 63).to(tl.int64), 0)


@triton.jit
def inherit_masks(
    tree,
    numbers,
    i_slot,
    m_live,
    b_parent,
    num_live,
    num_free,
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
):
    """Give every live node the masks of its rows' children. A node that no row sees frees its cell.

    Returns how many nodes stay.
    """
    max_live, max_free = numbers.max_live, numbers.max_free
    m_inherits = m_live & (b_parent >= 0)
    b_bits = row_bits(m_inherits, 0, BLOCK_ROWS)
    b_bits_1 = row_bits(m_inherits, 1, BLOCK_ROWS)
    b_shift = (b_parent & 63).to(tl.int64)
    p_live_cell = tree.live_cell + i_slot * max_live
    p_live_mask = tree.live_mask + i_slot * max_live * MASK_WORDS
    p_free_cell = tree.free_cell + i_slot * max_free
    num_kept = 0
    for start in range(0, num_live, BLOCK_CELLS):
        o_live = start + tl.arange(0, BLOCK_CELLS)
        m_old = o_live < num_live
        b_cell = tl.load(p_live_cell + o_live, mask=m_old, other=0)
        p_word = p_live_mask + o_live.to(tl.int64) * MASK_WORDS
        b_word = tl.load(p_word, mask=m_old, other=0)[:, None]
        if MASK_WORDS == 2:
            b_word_1 = tl.load(p_word + 1, mask=m_old, other=0)[:, None]
            b_word = tl.where((b_parent >= 64)[None, :], b_word_1, b_word)
        # [cells, rows]: the parent of the row saw the cell; each row adds its own bit
        m_sees = (b_word >> b_shift[None, :]) & 1 != 0
        b_new = tl.sum(tl.where(m_sees, b_bits[None, :], 0), 1)
        b_any = b_new
        if MASK_WORDS == 2:
            b_new_1 = tl.sum(tl.where(m_sees, b_bits_1[None, :], 0), 1)
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
