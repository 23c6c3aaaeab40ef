"""The kernels of `draft_commit`."""

import triton
import triton.language as tl

from pybeam.contracts import Survivors
from pybeam.triton_kernels.beam.columns import INT_DEPTH, INT_NUM_ENTRIES, INT_NUM_ROWS, NUM_INTS
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.draft.accept import Numbers, Step, accept, guess_rows
from pybeam.triton_kernels.tree.append import take_pages
from pybeam.triton_kernels.tree.survivors import LISTS, PAGE_CELLS

BLOCK_SOURCES = tl.constexpr(128)


@triton.jit
def rows_before(beams, p_slot, num_slots):
    """Count the rows of the sources before this one."""
    num_rows, i_source = 0, tl.program_id(0)
    for start in range(0, i_source, BLOCK_SOURCES):
        o_source = start + tl.arange(0, BLOCK_SOURCES)
        i_slot = tl.load(p_slot + o_source, mask=o_source < i_source, other=-1).to(tl.int64)
        p_rows = beams.ints + i_slot * NUM_INTS + INT_NUM_ROWS
        num_rows += tl.sum(tl.load(p_rows, mask=(i_slot >= 0) & (i_slot < num_slots), other=0), 0)
    return num_rows


@one_variant(anywhere=[*LISTS, "p_eos_token"])
def accept_kernel(
    tree,
    beams,
    drafts,
    p_token,
    p_parent,
    p_score,
    p_log_prob,
    p_count,
    p_num_finished,
    p_has_nan,
    p_eos_token,
    p_slot,
    p_next,  # [A], rows of the next step; -1 for an empty slot, which stays as it is
    p_needed,  # [A], pages each source needs
    num_outputs,
    eos_id,
    vocab_size,
    num_slots,
    max_nodes,
    max_rows,
    max_live,
    max_pages,
    max_finished,
    max_prefix,
    max_guesses,
    OPENS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """OPENS: the sources begin, so that there is nothing to accept."""
    await_kernels()
    survivors = Survivors(
        p_token, p_parent, p_score, p_log_prob, p_count, p_num_finished, p_has_nan
    )
    numbers = Numbers(
        eos_id, vocab_size, max_nodes, max_rows, max_live, max_finished, max_prefix, max_guesses
    )
    step = Step(tree, beams, drafts, survivors, p_eos_token, numbers)
    i_source = tl.program_id(0)
    first_row = rows_before(beams, p_slot, num_slots)
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    is_slot = (i_slot >= 0) & (i_slot < num_slots)
    i_slot = tl.where(is_slot, i_slot, 0)
    num_rows = tl.load(beams.ints + i_slot * NUM_INTS + INT_NUM_ROWS)
    num_rows = tl.minimum(tl.where(is_slot, num_rows, 0), num_outputs - first_row)
    next_rows, needed, accepted = -1, 0, 0
    if OPENS:
        first_row, num_rows = 0, tl.where(is_slot, 1, 0)
    if num_rows > 0:
        if OPENS:
            accepted = num_rows
        else:
            accepted = accept(step, i_slot, first_row, num_rows, BLOCK_ROWS)
        # every thread sees the new tokens and numbers
        tl.debug_barrier()
        first_carried, num_carried = first_row + accepted, num_rows - accepted
        next_rows = guess_rows(step, i_slot, first_carried, num_carried, BLOCK_ROWS)
        num_tokens = tl.load(beams.ints + i_slot * NUM_INTS + INT_DEPTH) + next_rows
        num_pages = tl.minimum(tl.cdiv(num_tokens, PAGE_CELLS), max_pages)
        needed = tl.maximum(num_pages - tl.load(tree.num_pages + i_slot), 0)
        needed = tl.where(next_rows > 0, needed, 0)
    tl.store(p_next + i_source, next_rows)
    tl.store(p_needed + i_source, needed)


@one_variant(anywhere=["p_slot"])
def rows_kernel(
    tree,
    beams,
    p_slot,
    p_next,
    p_needed,
    max_rows,
    max_live,
    max_pages,
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """Take pages, and write rows: the masks are a staircase, because each row sees those before it."""
    await_kernels()
    i_source = tl.program_id(0)
    num_left, num_taken = take_pages(tree, tl.load(p_needed + i_source))
    num_rows = tl.load(p_next + i_source)
    if num_rows < 0:
        return
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    p_ints = beams.ints + i_slot * NUM_INTS
    depth = tl.load(p_ints + INT_DEPTH)
    num_pages = tl.load(tree.num_pages + i_slot)
    score = tl.load(beams.score + i_slot * max_rows)
    p_page = tree.page + i_slot * max_pages
    o_page = tl.arange(0, PAGE_CELLS)
    for start in range(0, num_taken, PAGE_CELLS):
        m_taken = start + o_page < num_taken
        b_taken = tl.load(tree.free_page + num_left - 1 - start - o_page, mask=m_taken)
        tl.store(p_page + num_pages + start + o_page, b_taken, mask=m_taken)
    # every thread sees the pages, and has read the numbers that are overwritten now
    tl.debug_barrier()
    o_row = tl.arange(0, BLOCK_ROWS)
    begin, end = tl.maximum(depth - max_rows, 0), depth + num_rows
    for start in range(begin, end, BLOCK_ROWS):
        o_node = start + o_row
        m_node = o_node < end
        b_page = tl.load(p_page + o_node // PAGE_CELLS, mask=m_node, other=0)
        p_live = i_slot * max_live + o_node
        tl.store(tree.live_cell + p_live, b_page * PAGE_CELLS + o_node % PAGE_CELLS, mask=m_node)
        for w in tl.static_range(MASK_WORDS):
            # rows before the first that sees a node have no bit
            b_shift = tl.minimum(tl.maximum(o_node - depth, 0) - 64 * w, 64)
            b_shift = tl.maximum(b_shift, 0).to(tl.int64)
            b_ones = tl.full([BLOCK_ROWS], -1, tl.int64)
            b_mask = tl.where(b_shift == 64, 0, b_ones << (b_shift & 63))
            tl.store(tree.live_mask + p_live * MASK_WORDS + w, b_mask, mask=m_node)
    m_row, m_entry = o_row < num_rows, o_row < max_rows
    o_node = depth + o_row
    b_page = tl.load(p_page + o_node // PAGE_CELLS, mask=m_row, other=0)
    b_cell = b_page * PAGE_CELLS + o_node % PAGE_CELLS
    p_entry = i_slot * max_rows + o_row
    tl.store(tree.row_node + p_entry, tl.where(m_row, o_node, 0), mask=m_entry)
    tl.store(tree.row_cell + p_entry, tl.where(m_row, b_cell, -1), mask=m_entry)
    tl.store(beams.is_alive + p_entry, m_row, mask=m_entry)
    tl.store(beams.score + p_entry, score, mask=m_entry)
    tl.store(p_ints + INT_NUM_ROWS, num_rows)
    tl.store(p_ints + INT_NUM_ENTRIES, num_rows)
    tl.store(tree.num_pages + i_slot, num_pages + num_taken)
    if num_rows > 0:
        tl.store(tree.num_nodes + i_slot, end)
        tl.store(tree.num_live + i_slot, end)
