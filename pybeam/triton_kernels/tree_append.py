"""`tree_append`: a step of the token tree, one program per source.

It takes two launches, because the pages that a source gets depend on those that earlier sources take.
The first launch gives every live node the masks of its rows' children, frees the cells of nodes that no
row sees any more, and counts the pages needed. In the second, every source adds up the counts before its
own, takes its pages and appends its nodes. The result is the same as for one source after another.

The engine must make room (`TokenTree.reserve`). If it did not, a survivor gets no node, cell or page.
Nothing is ever written out of bounds.
"""

import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.tree_paths import extend_paths, inherit_paths_kernel
from pybeam.triton_kernels.tree_survivors import (
    LISTS,
    NUMBERS,
    PAGE_CELLS,
    exclusive_sum,
    store_lists,
    survivors_of,
)

BLOCK_SOURCES = tl.constexpr(128)
TILE_WORDS = 2048
# rows of a beam that one warp moves
WARP_ROWS = 128
MAX_WARPS = 16


@triton.jit
def row_bits(m_row, word: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """Bit ``row - 64 * word`` for the rows of that word, 0 for the others."""
    o_bit = tl.arange(0, BLOCK_ROWS) - 64 * word
    b_one = tl.full([BLOCK_ROWS], 1, tl.int64)
    return tl.where(m_row & (o_bit >= 0) & (o_bit < 64), b_one << (o_bit & 63).to(tl.int64), 0)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=LISTS)
def inherit_kernel(
    p_live_cell,
    p_live_mask,
    p_num_live,
    p_free_cell,
    p_num_free,
    p_num_nodes,
    p_num_pages,
    p_num_free_pages,
    p_slot,
    p_first,
    p_count,
    p_parent,
    p_token,
    p_needed,  # [A + 1], pages each source needs, then how many are free
    eos_id,
    capacity,
    num_slots,
    max_nodes,
    max_rows,
    max_live,
    max_free,
    max_pages,
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
):
    i_source = tl.program_id(0)
    if i_source == 0:
        # the next launch changes this number while its programs still need the old one
        tl.store(p_needed + tl.num_programs(0), tl.load(p_num_free_pages))
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    if (i_slot < 0) | (i_slot >= num_slots):
        tl.store(p_needed + i_source, 0)
        return
    _, _, m_live, b_parent = survivors_of(
        p_first, p_count, p_parent, p_token, eos_id, capacity, max_rows, BLOCK_ROWS
    )
    m_inherits = m_live & (b_parent >= 0)
    b_bits = row_bits(m_inherits, 0, BLOCK_ROWS)
    b_bits_1 = row_bits(m_inherits, 1, BLOCK_ROWS)
    b_shift = (b_parent & 63).to(tl.int64)
    p_live_cell += i_slot * max_live
    p_live_mask += i_slot * max_live * MASK_WORDS
    p_free_cell += i_slot * max_free
    num_live = tl.minimum(tl.load(p_num_live + i_slot), max_live)
    num_free = tl.load(p_num_free + i_slot)

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
    store_lists(
        p_num_live,
        p_num_free,
        p_num_nodes,
        p_num_pages,
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
def pages_before(p_needed, i_source):
    """Count the pages that the sources before this one need."""
    num_before = 0
    for start in range(0, i_source, BLOCK_SOURCES):
        o_source = start + tl.arange(0, BLOCK_SOURCES)
        num_before += tl.sum(tl.load(p_needed + o_source, mask=o_source < i_source, other=0), 0)
    return num_before


@triton.jit(do_not_specialize=[*NUMBERS, "max_path"], do_not_specialize_on_alignment=LISTS)
def append_kernel(
    p_token,
    p_parent,
    p_log_prob,
    p_num_nodes,
    p_row_node,
    p_row_cell,
    p_live_cell,
    p_live_mask,
    p_num_live,
    p_path,
    p_path_length,
    p_free_cell,
    p_num_free,
    p_page,
    p_num_pages,
    p_free_page,
    p_num_free_pages,
    p_slot,
    p_first,
    p_count,
    p_survivor_parent,
    p_survivor_token,
    p_survivor_log_prob,
    p_needed,
    eos_id,
    capacity,
    num_slots,
    max_nodes,
    max_rows,
    max_live,
    max_free,
    max_pages,
    max_path,
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    i_source, num_sources = tl.program_id(0), tl.num_programs(0)
    num_before = pages_before(p_needed, i_source)
    needed = tl.load(p_needed + i_source)
    # pages left by the sources before this one; this source takes the topmost of them
    num_left = tl.maximum(tl.load(p_needed + num_sources) - num_before, 0)
    num_taken = tl.minimum(needed, num_left)
    if i_source == num_sources - 1:
        tl.store(p_num_free_pages, num_left - num_taken)
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    if (i_slot < 0) | (i_slot >= num_slots):
        return
    o_survivor, m_row, m_live, b_parent = survivors_of(
        p_first,
        p_count,
        p_survivor_parent,
        p_survivor_token,
        eos_id,
        capacity,
        max_rows,
        BLOCK_ROWS,
    )
    p_row_node += i_slot * max_rows
    p_row_cell += i_slot * max_rows
    p_free_cell += i_slot * max_free
    num_nodes = tl.load(p_num_nodes + i_slot)
    num_live = tl.load(p_num_live + i_slot)
    num_free = tl.load(p_num_free + i_slot)
    num_pages = tl.load(p_num_pages + i_slot)
    b_parent_node = tl.load(p_row_node + b_parent, mask=m_row & (b_parent >= 0), other=-1)
    room = tl.minimum(max_nodes - num_nodes, max_live - num_live)
    room = tl.minimum(room, num_free + num_taken * PAGE_CELLS)
    b_rank = exclusive_sum(m_live.to(tl.int32))
    m_new = m_live & (b_rank < room)
    num_new = tl.sum(m_new.to(tl.int32), 0)

    # free cells from the top of the stack, then the cells of the pages in order
    m_free = m_new & (b_rank < num_free)
    b_free = tl.load(p_free_cell + num_free - 1 - b_rank, mask=m_free, other=0)
    b_beyond = b_rank - num_free
    o_free_page = num_left - 1 - b_beyond // PAGE_CELLS
    b_page = tl.load(p_free_page + o_free_page, mask=m_new & (b_rank >= num_free), other=0)
    b_cell = tl.where(m_free, b_free, b_page * PAGE_CELLS + b_beyond % PAGE_CELLS)

    # every thread has read rows, stacks and counters before one overwrites them
    tl.debug_barrier()
    o_row = tl.arange(0, BLOCK_ROWS)
    o_node = num_nodes + b_rank
    p_node = i_slot * max_nodes + o_node
    b_token = tl.load(p_survivor_token + o_survivor, mask=m_new)
    tl.store(p_token + p_node, b_token, mask=m_new)
    tl.store(p_parent + p_node, b_parent_node, mask=m_new)
    b_log_prob = tl.load(p_survivor_log_prob + o_survivor, mask=m_new)
    tl.store(p_log_prob + p_node, b_log_prob, mask=m_new)
    tl.store(p_row_node + o_row, tl.where(m_new, o_node, b_parent_node), mask=m_row)
    tl.store(p_row_cell + o_row, tl.where(m_new, b_cell, -1), mask=m_row)
    p_live = i_slot * max_live + num_live + b_rank
    tl.store(p_live_cell + p_live, b_cell, mask=m_new)
    for w in tl.static_range(MASK_WORDS):
        b_bits = row_bits(m_new, w, BLOCK_ROWS)
        tl.store(p_live_mask + p_live * MASK_WORDS + w, b_bits, mask=m_new)
    if MASK_WORDS == 0:
        extend_paths(
            p_path,
            p_path_length,
            i_slot,
            m_new,
            num_live + b_rank,
            num_new,
            max_rows,
            max_path,
            BLOCK_ROWS,
        )

    o_page = tl.arange(0, PAGE_CELLS)
    for start in range(0, num_taken, PAGE_CELLS):
        o_taken = start + o_page
        m_taken = o_taken < num_taken
        b_taken = tl.load(p_free_page + num_left - 1 - o_taken, mask=m_taken)
        tl.store(p_page + i_slot * max_pages + num_pages + o_taken, b_taken, mask=m_taken)
    num_unused = num_free + num_taken * PAGE_CELLS - num_new
    if num_taken > 0:
        # a stack: the lowest unused cell of the last page is taken next
        last_page = tl.load(p_free_page + num_left - num_taken)
        b_stack = (last_page + 1) * PAGE_CELLS - 1 - o_page
        tl.store(p_free_cell + o_page, b_stack, mask=o_page < tl.minimum(num_unused, max_free))
    tl.store(p_num_free + i_slot, num_unused)
    tl.store(p_num_pages + i_slot, num_pages + num_taken)
    tl.store(p_num_nodes + i_slot, num_nodes + num_new)
    tl.store(p_num_live + i_slot, num_live + num_new)


def tree_append(
    token: Tensor,
    parent: Tensor,
    log_prob: Tensor,
    num_nodes: Tensor,
    row_node: Tensor,
    row_cell: Tensor,
    live_cell: Tensor,
    live_mask: Tensor,
    num_live: Tensor,
    path: Tensor,
    path_length: Tensor,
    free_cell: Tensor,
    num_free: Tensor,
    page: Tensor,
    num_pages: Tensor,
    free_page: Tensor,
    num_free_pages: Tensor,
    slot: Tensor,
    first: Tensor,
    count: Tensor,
    survivor_parent: Tensor,
    survivor_token: Tensor,
    survivor_log_prob: Tensor,
    eos_id: int,
) -> None:
    """`pybeam.kvcache.token_tree.TokenTree.append`."""
    num_sources = slot.numel()
    if num_sources == 0:
        return
    block_rows = max(16, triton.next_power_of_2(row_node.shape[1]))
    needed = slot.new_empty(num_sources + 1)
    of_survivors = (
        slot.contiguous(),
        first.contiguous(),
        count.contiguous(),
        survivor_parent.contiguous(),
        survivor_token.contiguous(),
    )
    most = (tensor.shape[1] for tensor in (token, row_node, live_cell, free_cell, page))
    sizes = (eos_id, survivor_parent.shape[1], page.shape[0], *most)
    lists = (free_cell, num_free, num_nodes, num_pages, num_free_pages, *of_survivors, needed)
    mask_words, num_warps = live_mask.shape[2], triton.cdiv(block_rows, WARP_ROWS)
    if mask_words == 0:
        place = live_cell.new_empty(num_sources, live_cell.shape[1])
        inherit_paths_kernel[(num_sources,)](
            live_cell,
            num_live,
            path,
            path_length,
            place,
            *lists,
            *sizes,
            path.shape[2],
            BLOCK_ROWS=block_rows,
            BLOCK_CELLS=TILE_WORDS // 2,
            num_warps=min(max(4, num_warps), MAX_WARPS),
        )
    else:
        inherit_kernel[(num_sources,)](
            live_cell,
            live_mask,
            num_live,
            *lists,
            *sizes,
            MASK_WORDS=mask_words,
            BLOCK_ROWS=block_rows,
            BLOCK_CELLS=TILE_WORDS // block_rows,
        )
    append_kernel[(num_sources,)](
        token,
        parent,
        log_prob,
        num_nodes,
        row_node,
        row_cell,
        live_cell,
        live_mask,
        num_live,
        path,
        path_length,
        free_cell,
        num_free,
        page,
        num_pages,
        free_page,
        num_free_pages,
        *of_survivors,
        survivor_log_prob.contiguous(),
        needed,
        *sizes,
        path.shape[2],
        MASK_WORDS=mask_words,
        BLOCK_ROWS=block_rows,
        num_warps=min(num_warps, MAX_WARPS),
    )
