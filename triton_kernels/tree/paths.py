"""Paths of the token tree grow by a step, one program per source.

`pybeam.kvcache.token_tree` says what a path is. A line of `path` is a row's, a column is one depth. Columns
do not depend on each other, so they are moved one after another.
"""

import triton
import triton.language as tl

from pybeam.contracts import Survivors
from pybeam.triton_kernels.arithmetic import exclusive_sum
from pybeam.triton_kernels.dependent_launch import await_kernels, begins_early
from pybeam.triton_kernels.tree.survivors import (
    LISTS,
    NUMBERS,
    store_lists,
    survivors_of,
)


@begins_early
@triton.jit(do_not_specialize=[*NUMBERS, "max_path"], do_not_specialize_on_alignment=LISTS)
def inherit_paths_kernel(
    tree,
    p_token,
    p_parent,
    p_score,
    p_log_prob,
    p_count,
    p_num_finished,
    p_has_nan,
    p_place,  # [A, U], of every live node: whether a row sees it, then its new place
    p_slot,
    p_needed,  # [A + 1], pages each source needs, then how many are free
    eos_id,
    capacity,
    num_slots,
    max_nodes,
    max_rows,
    max_live,
    max_free,
    max_pages,
    max_path,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
):
    await_kernels()
    survivors = Survivors(
        p_token, p_parent, p_score, p_log_prob, p_count, p_num_finished, p_has_nan
    )
    i_source = tl.program_id(0)
    if i_source == 0:
        # the next launch changes this number while its programs still need the old one
        tl.store(p_needed + tl.num_programs(0), tl.load(tree.num_free_pages))
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    if (i_slot < 0) | (i_slot >= num_slots):
        tl.store(p_needed + i_source, 0)
        return
    _, _, m_live, b_parent = survivors_of(survivors, eos_id, capacity, max_rows, BLOCK_ROWS)
    m_inherits = m_live & (b_parent >= 0)
    p_live_cell = tree.live_cell + i_slot * max_live
    p_place += i_source.to(tl.int64) * max_live
    p_free_cell = tree.free_cell + i_slot * max_free
    p_path = tree.path + i_slot * max_rows * max_path
    o_row = tl.arange(0, BLOCK_ROWS)
    p_old = p_path + b_parent.to(tl.int64) * max_path
    p_new = p_path + o_row.to(tl.int64) * max_path
    length = tl.minimum(tl.load(tree.path_length + i_slot), max_path)
    num_live = tl.minimum(tl.load(tree.num_live + i_slot), max_live)
    num_free = tl.load(tree.num_free + i_slot)

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
        m_freed = m_old & (b_kept == 0) & (o_free < max_free)
        tl.store(p_free_cell + o_free, b_cell, mask=m_freed)
        num_kept += tl.sum(b_kept, 0)
    tl.debug_barrier()
    for t in range(0, length):
        b_old = tl.load(p_old + t, mask=m_inherits, other=-1)
        b_new = tl.load(p_place + b_old, mask=(b_old >= 0) & (b_old < num_live), other=-1)
        # every row has read this column before one overwrites it
        tl.debug_barrier()
        tl.store(p_new + t, b_new, mask=o_row < max_rows)
    store_lists(
        tree,
        p_needed,
        i_slot,
        m_live,
        num_live,
        num_kept,
        num_free,
        max_nodes,
        max_live,
        max_free,
        max_pages,
    )


@triton.jit
def extend_paths(
    tree,
    i_slot,
    m_new,
    b_place,
    num_new,
    max_rows,
    max_path,
    BLOCK_ROWS: tl.constexpr,
):
    """Add the places [BLOCK_ROWS] of new nodes to the paths of their rows."""
    length = tl.load(tree.path_length + i_slot)
    o_row = tl.arange(0, BLOCK_ROWS)
    p_end = tree.path + (i_slot * max_rows + o_row) * max_path + length
    m_end = (o_row < max_rows) & (length >= 0) & (length < max_path)
    tl.store(p_end, tl.where(m_new, b_place, -1), mask=m_end)
    # every thread has read the length before one overwrites it
    tl.debug_barrier()
    if num_new > 0:
        tl.store(tree.path_length + i_slot, tl.minimum(length + 1, max_path))
