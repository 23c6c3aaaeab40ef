"""The kernel of `decoder_layers`: the phases of a decoder's layers, one behind another in all programs."""

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.lists import Lists
from pybeam.triton_kernels.attention.new_nodes import Pools
from pybeam.triton_kernels.persistent.ahead import ask_for
from pybeam.triton_kernels.persistent.attention import QUERIES, Lines, tile_of
from pybeam.triton_kernels.persistent.exchange import LAUNCHES, empty, leave
from pybeam.triton_kernels.persistent.phases import (
    CROSS_POOL,
    NUM_ADDRESSES,
    OWN_POOL,
    Seen,
    ask_ahead,
    attention_phase,
    product_phase,
)
from pybeam.triton_kernels.persistent.products import NUM_PARTS, Rows

# phases of a layer in their order
QKV, OWN, OWN_OUT, QUERY, CROSS, CROSS_OUT, INNER, INNER_OUT, NUM_PHASES = (
    tl.constexpr(i) for i in range(9)
)


@triton.jit(
    do_not_specialize=[
        "num_sources",
        "max_cells",
        "max_source_cells",
        "num_pool_cells",
        "after_bytes",
        "num_layers",
        "first_layer",
        "last_layer",
        "epsilon",
        "scale",
    ],
    do_not_specialize_on_alignment=[
        "p_offset",
        "p_slot",
        "p_num_cells",
        "p_entry",
        "p_new_cell",
        "p_source_length",
    ],
)
def decoder_layers_kernel(
    p_address,  # [layers, NUM_ADDRESSES]
    p_states,  # [R, d], which the layers change
    p_normed,  # [R, d]; None: norms stand before sublayers, else behind them
    p_places,  # of `Exchange`
    p_books,
    p_offset,
    p_slot,
    p_cell,
    p_num_cells,
    p_mask,
    p_entry,
    p_new_cell,
    p_source_cell,
    p_source_length,
    p_after,
    num_sources,
    max_cells,
    max_source_cells,
    num_pool_cells,
    after_bytes,
    num_layers,
    first_layer,
    last_layer,
    epsilon,
    scale,
    WIDTH: tl.constexpr,
    INNER_WIDTH: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    QKV_GROUPS: tl.constexpr,
    INNER_GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    INNER_PARTS: tl.constexpr,
    PACKS: tl.constexpr,
    INNER_PACKS: tl.constexpr,
    NODES: tl.constexpr,
    AHEAD: tl.constexpr,  # how many products before its own each product's weights are asked for; 0: never
    PHASE: tl.constexpr,  # the only one of each layer; -1: all
):
    dtype: tl.constexpr = p_states.dtype.element_ty
    HEAD_SIZE: tl.constexpr = WIDTH // NUM_HEADS
    IS_WHOLE: tl.constexpr = PHASE < 0
    p_residual = p_states if p_normed is None else p_normed
    NUM_PLACES: tl.constexpr = ROWS * (9 * WIDTH + INNER_WIDTH)

    for i in tl.static_range(0, AHEAD):
        ask_ahead(p_address, last_layer, dtype, WIDTH, INNER_WIDTH, i)
    tile = tile_of(tl.program_id(0), p_offset, p_slot, num_sources, NUM_HEADS)
    o_row = tl.minimum(tile.begin + tl.arange(0, QUERIES), tile.row_end - 1)
    b_entry = tl.load(p_entry + o_row, mask=o_row >= 0, other=0)
    # of keys and values, what there is of them
    pools = Pools(None, None, 0, 0, p_states, p_states, 0, 0, p_new_cell)
    num_cells = tl.load(p_num_cells + tile.slot)
    p_cell += tile.slot * max_cells
    p_mask += tile.slot * max_cells * MASK_WORDS
    row_end = tile.row_end
    lists = Lists(p_cell, p_mask, max_cells, num_cells, row_end - num_cells, row_end)
    own = Seen(lists, pools, b_entry, num_pool_cells)
    pools = Pools(None, None, 0, 0, None, None, 0, 0, None)
    num_cells = tl.load(p_source_length + tile.slot)
    p_source_cell += tile.slot * max_source_cells
    lists = Lists(p_source_cell, None, max_source_cells, num_cells, 0, 0)
    source = Seen(lists, pools, b_entry, 0)
    # rows behind those of sources are nobody's
    num_rows = tl.load(p_offset + num_sources)
    i_set = tl.load(p_books + LAUNCHES) % 2
    p_own_set = p_places + i_set * num_layers * NUM_PLACES
    p_other_set = p_places + (1 - i_set) * num_layers * NUM_PLACES

    for i_layer in range(first_layer, last_layer):
        p_layer = p_address + i_layer * NUM_ADDRESSES
        num_left = last_layer - i_layer
        p_qkv = p_own_set + i_layer * NUM_PLACES
        p_attended = p_qkv + ROWS * 3 * WIDTH
        p_sum = p_attended + ROWS * WIDTH
        p_query = p_sum + ROWS * WIDTH
        p_source_attended = p_query + ROWS * WIDTH
        p_source_sum = p_source_attended + ROWS * WIDTH
        p_inner_sum = p_source_sum + ROWS * WIDTH
        p_inner = p_inner_sum + ROWS * WIDTH
        if IS_WHOLE or PHASE == QKV:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 0)
            # the first rows are those of another kernel
            p_x = tl.where(i_layer > 0, p_inner_sum - NUM_PLACES, p_states)
            rows = Rows(p_x, p_qkv, None, None, p_normed, num_rows, epsilon)
            product_phase(
                rows,
                p_layer + 0 * NUM_PARTS,
                3 * WIDTH,
                WIDTH,
                0,
                True,
                ROWS,
                QKV_GROUPS,
                PARTS,
                PACKS,
            )
        if IS_WHOLE or PHASE == OWN:
            lines = Lines(p_attended, p_qkv, WIDTH, 3 * WIDTH)
            attention_phase(
                lines,
                tile,
                own,
                p_layer + OWN_POOL,
                scale,
                WIDTH,
                MASK_WORDS,
                NODES,
                HEAD_SIZE,
            )
            empty(p_other_set + i_layer * NUM_PLACES, NUM_PLACES)
        if IS_WHOLE or PHASE == OWN_OUT:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 1)
            rows = Rows(p_attended, p_sum, p_residual, p_states, None, num_rows, epsilon)
            product_phase(
                rows, p_layer + 1 * NUM_PARTS, WIDTH, WIDTH, 0, False, ROWS, GROUPS, PARTS, PACKS
            )
        if IS_WHOLE or PHASE == QUERY:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 2)
            rows = Rows(p_sum, p_query, None, None, p_normed, num_rows, epsilon)
            product_phase(
                rows, p_layer + 2 * NUM_PARTS, WIDTH, WIDTH, 0, True, ROWS, GROUPS, PARTS, PACKS
            )
        if IS_WHOLE or PHASE == CROSS:
            lines = Lines(p_source_attended, p_query, WIDTH, WIDTH)
            attention_phase(
                lines,
                tile,
                source,
                p_layer + CROSS_POOL,
                scale,
                WIDTH,
                0,
                NODES,
                HEAD_SIZE,
            )
        if IS_WHOLE or PHASE == CROSS_OUT:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 3)
            rows = Rows(
                p_source_attended, p_source_sum, p_residual, p_states, None, num_rows, epsilon
            )
            product_phase(
                rows, p_layer + 3 * NUM_PARTS, WIDTH, WIDTH, 0, False, ROWS, GROUPS, PARTS, PACKS
            )
        if IS_WHOLE or PHASE == INNER:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 4)
            if p_after is not None:
                if num_left == 1:
                    ask_for(p_after, after_bytes)
            rows = Rows(p_source_sum, p_inner, None, None, p_normed, num_rows, epsilon)
            product_phase(
                rows,
                p_layer + 4 * NUM_PARTS,
                INNER_WIDTH,
                WIDTH,
                ACTIVATION,
                True,
                ROWS,
                INNER_GROUPS,
                PARTS,
                PACKS,
            )
        if IS_WHOLE or PHASE == INNER_OUT:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 5)
            rows = Rows(p_inner, p_inner_sum, p_residual, p_states, None, num_rows, epsilon)
            product_phase(
                rows,
                p_layer + 5 * NUM_PARTS,
                WIDTH,
                INNER_WIDTH,
                0,
                False,
                ROWS,
                GROUPS,
                INNER_PARTS,
                INNER_PACKS,
            )
    if IS_WHOLE:
        leave(p_books)
