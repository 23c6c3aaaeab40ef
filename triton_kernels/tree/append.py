"""The second part of a step of the tree: every source takes its pages and appends its nodes."""

import triton
import triton.language as tl

from pybeam.triton_kernels.tree.masks import row_bits
from pybeam.triton_kernels.tree.paths import extend_paths
from pybeam.triton_kernels.tree.survivors import PAGE_CELLS


@triton.jit
def take_pages(tree, needed):
    """Take the topmost free pages, as many as a source needs.

    Returns how many pages were free, and how many of them the source has. Programs of one launch take them as
    they come.
    """
    num_left, num_taken = 0, 0
    if needed > 0:
        num_left = tl.maximum(tl.atomic_add(tree.num_free_pages, -needed, sem="relaxed"), 0)
        num_taken = tl.minimum(needed, num_left)
        if num_taken < needed:
            tl.atomic_add(tree.num_free_pages, needed - num_taken, sem="relaxed")
    return num_left, num_taken


@triton.jit
def keep_pages(tree, numbers, i_slot, pages, num_pages, num_unused):
    """Note the pages that a source has taken, and the cells of the last one that it does not need yet."""
    num_left, num_taken = pages
    # every thread has read the stack before one overwrites it
    tl.debug_barrier()
    o_page = tl.arange(0, PAGE_CELLS)
    p_page = tree.page + i_slot * numbers.max_pages + num_pages
    for start in range(0, num_taken, PAGE_CELLS):
        o_taken = start + o_page
        m_taken = o_taken < num_taken
        b_taken = tl.load(tree.free_page + num_left - 1 - o_taken, mask=m_taken)
        tl.store(p_page + o_taken, b_taken, mask=m_taken)
    # a stack: the lowest unused cell of the last page is taken next
    last_page = tl.load(tree.free_page + num_left - num_taken)
    b_stack = (last_page + 1) * PAGE_CELLS - 1 - o_page
    m_stack = o_page < tl.minimum(num_unused, numbers.max_free)
    tl.store(tree.free_cell + i_slot * numbers.max_free + o_page, b_stack, mask=m_stack)


@triton.jit
def nodes_before(tree, numbers, rows, i_slot):
    """Return what the rows of a source need of the tree before it grows: the nodes of their parents."""
    _, m_row, _, b_parent = rows
    p_old = tree.row_node + i_slot * numbers.max_rows + b_parent
    return tl.load(p_old, mask=m_row & (b_parent >= 0), other=-1)


@triton.jit
def append_nodes(
    tree,
    survivors,
    numbers,
    rows,  # see `survivors_at`
    num_rows,  # that go on
    i_slot,
    counts,  # see `inherit`
    b_rank,  # of rows among those that go on
    b_parent_node,
    pages,
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """Append the nodes of the rows of one source, which takes these `pages`; see `take_pages`.

    Returns how many pages it has then.
    """
    num_left, num_taken = pages
    max_nodes, max_rows, max_live = numbers.max_nodes, numbers.max_rows, numbers.max_live
    o_survivor, m_row, m_live, _ = rows
    p_free_cell = tree.free_cell + i_slot * numbers.max_free
    num_nodes, num_live, num_free, num_pages = counts
    room = tl.minimum(max_nodes - num_nodes, max_live - num_live)
    room = tl.minimum(room, num_free + num_taken * PAGE_CELLS)
    m_new = m_live & (b_rank < room)
    num_new = tl.minimum(num_rows, tl.maximum(room, 0))
    num_unused = num_free + num_taken * PAGE_CELLS - num_new
    b_node = tl.where(m_new, num_nodes + b_rank, b_parent_node)

    # free cells from the top of the stack, then the cells of the pages in order
    m_free = m_new & (b_rank < num_free)
    b_cell = tl.load(p_free_cell + num_free - 1 - b_rank, mask=m_free, other=0)
    b_token = tl.load(survivors.token + o_survivor, mask=m_new)
    b_log_prob = tl.load(survivors.log_prob + o_survivor, mask=m_new)
    if num_taken > 0:
        b_beyond = b_rank - num_free
        o_free_page = num_left - 1 - b_beyond // PAGE_CELLS
        b_page = tl.load(tree.free_page + o_free_page, mask=m_new & (b_rank >= num_free), other=0)
        b_cell = tl.where(m_free, b_cell, b_page * PAGE_CELLS + b_beyond % PAGE_CELLS)
        keep_pages(tree, numbers, i_slot, pages, num_pages, num_unused)

    p_row = i_slot * max_rows + tl.arange(0, BLOCK_ROWS)
    p_node = i_slot * max_nodes + b_node
    tl.store(tree.token + p_node, b_token, mask=m_new)
    tl.store(tree.parent + p_node, b_parent_node, mask=m_new)
    tl.store(tree.log_prob + p_node, b_log_prob, mask=m_new)
    tl.store(tree.row_node + p_row, b_node, mask=m_row)
    tl.store(tree.row_cell + p_row, tl.where(m_new, b_cell, -1), mask=m_row)
    p_live = i_slot * max_live + num_live + b_rank
    tl.store(tree.live_cell + p_live, b_cell, mask=m_new)
    for w in tl.static_range(MASK_WORDS):
        b_bits = row_bits(m_new, w, BLOCK_ROWS)
        tl.store(tree.live_mask + p_live * MASK_WORDS + w, b_bits, mask=m_new)
    if MASK_WORDS == 0:
        b_place = num_live + b_rank
        extend_paths(tree, numbers, i_slot, m_new, b_place, num_new, BLOCK_ROWS)

    tl.store(tree.num_free + i_slot, num_unused)
    num_pages += num_taken
    tl.store(tree.num_pages + i_slot, num_pages)
    tl.store(tree.num_nodes + i_slot, num_nodes + num_new)
    tl.store(tree.num_live + i_slot, num_live + num_new)
    return num_pages
