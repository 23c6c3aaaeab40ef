"""The first part of a step of the tree: which live nodes the new rows see, and which pages they need."""

import triton
import triton.language as tl

from pybeam.triton_kernels.tree.masks import inherit_masks
from pybeam.triton_kernels.tree.paths import inherit_paths
from pybeam.triton_kernels.tree.survivors import PAGE_CELLS, counts_of


@triton.jit
def inherit(
    tree,
    survivors,
    numbers,
    span,  # see `span_of`
    rows,  # see `survivors_at`
    i_slot,
    p_place,  # [A, U], of every live node, with paths: whether a row sees it, then its new place
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
):
    """Let the rows of one source see what their parents saw.

    Rows have paths where there are no words of masks. Returns `counts_of` the slot then, which are not
    stored, and how many pages the new nodes need.
    """
    num_nodes, num_live, num_free, num_pages = counts_of(tree, i_slot)
    _, _, m_live, b_parent = rows
    num_live = tl.minimum(num_live, numbers.max_live)
    if MASK_WORDS == 0:
        p_place += tl.program_id(0).to(tl.int64) * numbers.max_live
        num_kept = inherit_paths(
            tree,
            numbers,
            p_place,
            i_slot,
            m_live,
            b_parent,
            num_live,
            num_free,
            BLOCK_ROWS,
            BLOCK_CELLS,
        )
    else:
        num_kept = inherit_masks(
            tree,
            survivors,
            numbers,
            span,
            rows,
            i_slot,
            num_live,
            num_free,
            MASK_WORDS,
            BLOCK_ROWS,
            BLOCK_CELLS,
        )
    num_free = tl.minimum(num_free + num_live - num_kept, numbers.max_free)
    room = tl.minimum(numbers.max_nodes - num_nodes, numbers.max_live - num_kept)
    num_new = tl.minimum(tl.sum(m_live.to(tl.int32), 0), room)
    needed = tl.cdiv(tl.maximum(num_new - num_free, 0), PAGE_CELLS)
    needed = tl.minimum(needed, numbers.max_pages - num_pages)
    return (num_nodes, num_kept, num_free, num_pages), needed
