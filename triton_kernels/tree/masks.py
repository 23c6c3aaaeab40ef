"""Masks of the token tree pass on by a step."""

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum

# rows whose parents are loaded together
NEAR_ROWS = tl.constexpr(8)


@triton.jit
def row_bits(m_row, word: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """Bit ``row - 64 * word`` for the rows of that word, 0 for the others."""
    o_bit = tl.arange(0, BLOCK_ROWS) - 64 * word
    b_one = tl.full([BLOCK_ROWS], 1, tl.int64)
    return tl.where(m_row & (o_bit >= 0) & (o_bit < 64), b_one << (o_bit & 63).to(tl.int64), 0)


@triton.jit
def parents_at(survivors, span, start):
    """Load the parents of a few rows from `start` on, for every thread: anything where there is no row."""
    first, num_rows = span
    parents = ()
    for i in tl.static_range(NEAR_ROWS):
        p_parent = survivors.parent + first + start + i
        parents += (tl.load(p_parent, mask=start + i < num_rows),)
    return parents


@triton.jit
def seen_by(parents, b_word, b_word_1, MASK_WORDS: tl.constexpr):
    """Return bit i of each node, if the i-th of these rows saw it."""
    b_near = tl.zeros_like(b_word).to(tl.int32)
    # one row after another, so that a node needs no more than its thread has
    for i in tl.static_range(NEAR_ROWS):
        b_old = b_word
        if MASK_WORDS == 2:
            b_old = tl.where(parents[i] >= 64, b_word_1, b_word)
        b_near |= ((b_old >> (parents[i] & 63).to(tl.int64)) & 1).to(tl.int32) << i
    return b_near


@triton.jit
def inherited_word(
    survivors,
    span,
    b_word,
    b_word_1,
    nearest,  # parents of the first rows
    heirs,  # bits of rows that have a parent
    word: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """Return a word of the new masks of nodes: the bits of rows whose parents saw a node."""
    if BLOCK_ROWS <= NEAR_ROWS:
        b_new = seen_by(nearest, b_word, b_word_1, MASK_WORDS).to(tl.int64)
    else:
        b_new = tl.zeros_like(b_word)
        for start in range(64 * word, tl.minimum(span[1], 64 * word + 64), NEAR_ROWS):
            parents = parents_at(survivors, span, start)
            b_near = seen_by(parents, b_word, b_word_1, MASK_WORDS)
            b_new |= b_near.to(tl.int64) << (start - 64 * word)
    return b_new & heirs


@triton.jit
def nodes_at(p_live_cell, p_live_mask, o_live, num, MASK_WORDS: tl.constexpr):
    """Load cells and masks of live nodes, where there are so many."""
    m_live = o_live < num
    b_cell = tl.load(p_live_cell + o_live, mask=m_live, other=0)
    p_word = p_live_mask + o_live.to(tl.int64) * MASK_WORDS
    b_word = tl.load(p_word, mask=m_live, other=0)
    b_word_1 = b_word
    if MASK_WORDS == 2:
        b_word_1 = tl.load(p_word + 1, mask=m_live, other=0)
    return b_cell, b_word, b_word_1


@triton.jit
def inherit_masks(
    tree,
    survivors,
    numbers,
    span,  # see `span_of`
    rows,  # see `survivors_at`
    i_slot,
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
    p_live_cell = tree.live_cell + i_slot * max_live
    p_live_mask = tree.live_mask + i_slot * max_live * MASK_WORDS
    p_free_cell = tree.free_cell + i_slot * max_free
    o_first = tl.arange(0, BLOCK_CELLS)
    # before the number of live nodes is known
    nodes = nodes_at(p_live_cell, p_live_mask, o_first, max_live, MASK_WORDS)
    nearest = ()
    if BLOCK_ROWS <= NEAR_ROWS:
        nearest = parents_at(survivors, span, 0)
    _, _, m_live, b_parent = rows
    # where a row has no parent, any number may stand for it
    m_heir = m_live & (b_parent >= 0)
    heirs = tl.sum(row_bits(m_heir, 0, BLOCK_ROWS), 0)
    num_kept = 0
    for start in range(0, num_live, BLOCK_CELLS):
        o_live = start + o_first
        m_old = o_live < num_live
        if start > 0:
            nodes = nodes_at(p_live_cell, p_live_mask, o_live, num_live, MASK_WORDS)
        b_cell, b_word, b_word_1 = nodes
        b_new = inherited_word(
            survivors, span, b_word, b_word_1, nearest, heirs, 0, MASK_WORDS, BLOCK_ROWS
        )
        b_any = b_new
        if MASK_WORDS == 2:
            heirs_1 = tl.sum(row_bits(m_heir, 1, BLOCK_ROWS), 0)
            b_new_1 = inherited_word(
                survivors, span, b_word, b_word_1, nearest, heirs_1, 1, MASK_WORDS, BLOCK_ROWS
            )
            b_any = b_new | b_new_1
        m_kept = m_old & (b_any != 0)
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
        m_freed = m_old & ~m_kept & (o_free < max_free)
        tl.store(p_free_cell + o_free, b_cell, mask=m_freed)
        num_kept += tl.sum(b_kept, 0)
    return num_kept
