"""The first launch of `tree_append`: which live nodes the new rows see, and which pages they need."""

import triton.language as tl

from pybeam.contracts import Survivors
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.tree.masks import inherit_masks
from pybeam.triton_kernels.tree.paths import inherit_paths
from pybeam.triton_kernels.tree.survivors import (
    LISTS,
    Numbers,
    counts_of,
    span_of,
    store_lists,
    survivors_at,
)


@one_variant(anywhere=LISTS)
def inherit_kernel(
    tree,
    p_token,
    p_parent,
    p_score,
    p_log_prob,
    p_count,
    p_num_finished,
    p_has_nan,
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
    p_place,  # [A, U], of every live node, with paths: whether a row sees it, then its new place
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
):
    """One program per source. Rows have paths where there are no words of masks."""
    await_kernels()
    survivors = Survivors(
        p_token, p_parent, p_score, p_log_prob, p_count, p_num_finished, p_has_nan
    )
    numbers = Numbers(
        eos_id, capacity, num_slots, max_nodes, max_rows, max_live, max_free, max_pages, max_path
    )
    i_source = tl.program_id(0)
    # loads come first, so that they wait together
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    span = span_of(survivors, numbers)
    if i_source == 0:
        # the next launch changes this number while its programs still need the old one
        tl.store(p_needed + tl.num_programs(0), tl.load(tree.num_free_pages))
    if (i_slot < 0) | (i_slot >= num_slots):
        tl.store(p_needed + i_source, 0)
        return
    num_nodes, num_live, num_free, num_pages = counts_of(tree, i_slot)
    o_row = tl.arange(0, BLOCK_ROWS)
    _, _, m_live, b_parent = survivors_at(survivors, numbers, span, o_row)
    num_live = tl.minimum(num_live, max_live)
    if MASK_WORDS == 0:
        p_place += i_source.to(tl.int64) * max_live
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
            tree, survivors, numbers, span, i_slot, num_live, num_free, MASK_WORDS, BLOCK_CELLS
        )
    counts = num_nodes, num_live, num_free, num_pages
    store_lists(tree, numbers, p_needed, i_slot, m_live, counts, num_kept)
