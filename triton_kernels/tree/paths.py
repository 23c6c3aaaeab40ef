"""Paths of the token tree grow by a step.

`pybeam.kvcache.token_tree` says what a path is. A line of `path` is a row's, a column is one depth. Columns
do not depend on each other, so they are moved one after another.
"""

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum


@triton.jit
def inherit_paths(
    tree,
    numbers,
    p_place,  # [U], of every live node: whether a row sees it, then its new place
    i_slot,
    m_live,
    b_parent,
    num_live,
    num_free,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
):
    """Give every row the path of its parent. A node that no row sees frees its cell.

    Returns how many nodes stay.
    """
    max_rows, max_path = numbers.max_rows, numbers.max_path
    m_inherits = m_live & (b_parent >= 0)
    p_live_cell = tree.live_cell + i_slot * numbers.max_live
    p_free_cell = tree.free_cell + i_slot * numbers.max_free
    p_path = tree.path + i_slot * max_rows * max_path
    o_row = tl.arange(0, BLOCK_ROWS)
    p_old = p_path + b_parent.to(tl.int64) * max_path
    p_new = p_path + o_row.to(tl.int64) * max_path
    length = tl.minimum(tl.load(tree.path_length + i_slot), max_path)

    for start in range(0, num_live, BLOCK_CELLS):
        o_live = start + tl.arange(0, BLOCK_CELLS)
        tl.store(p_place + o_live, 0, mask=o_live < num_live)
    tl.debug_barrier()
    for t in range(0, length):
        b_old = tl.load(p_old + t, mask=m_inherits, other=-1)
        # rows that see the same node write the same number
        tl.store(p_place + b_old, 1, mask=(b_old >= 0) & (b_old < num_live))
    tl.debug_barrier()
    num_kept = 0
    for start in range(0, num_live, BLOCK_CELLS):
        o_live = start + tl.arange(0, BLOCK_CELLS)
        m_old = o_live < num_live
        b_cell = tl.load(p_live_cell + o_live, mask=m_old, other=0)
        b_kept = tl.load(p_place + o_live, mask=m_old, other=0)
        b_place = num_kept + exclusive_sum(b_kept)
        # live nodes only move towards the front, so only this block can still read a place to be written
        tl.debug_barrier()
        tl.store(p_live_cell + b_place, b_cell, mask=b_kept != 0)
        tl.store(p_place + o_live, b_place, mask=b_kept != 0)
        o_free = num_free + o_live - b_place
        m_freed = m_old & (b_kept == 0) & (o_free < numbers.max_free)
        tl.store(p_free_cell + o_free, b_cell, mask=m_freed)
        num_kept += tl.sum(b_kept, 0)
    tl.debug_barrier()
    for t in range(0, length):
        b_old = tl.load(p_old + t, mask=m_inherits, other=-1)
        b_new = tl.load(p_place + b_old, mask=(b_old >= 0) & (b_old < num_live), other=-1)
        # every row has read this column before one overwrites it
        tl.debug_barrier()
        tl.store(p_new + t, b_new, mask=o_row < max_rows)
    return num_kept


@triton.jit
def extend_paths(tree, numbers, i_slot, m_new, b_place, num_new, BLOCK_ROWS: tl.constexpr):
    """Add the places [BLOCK_ROWS] of new nodes to the paths of their rows."""
    max_rows, max_path = numbers.max_rows, numbers.max_path
    length = tl.load(tree.path_length + i_slot)
    o_row = tl.arange(0, BLOCK_ROWS)
    p_end = tree.path + (i_slot * max_rows + o_row) * max_path + length
    m_end = (o_row < max_rows) & (length >= 0) & (length < max_path)
    tl.store(p_end, tl.where(m_new, b_place, -1), mask=m_end)
    # every thread has read the length before one overwrites it
    tl.debug_barrier()
    if num_new > 0:
        tl.store(tree.path_length + i_slot, tl.minimum(length + 1, max_path))
