"""The kernel of `decoder_layers`: the phases of a decoder's layers, one behind another in all programs."""

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.lists import Lists, nodes_at
from pybeam.triton_kernels.attention.new_nodes import Pools
from pybeam.triton_kernels.persistent.ahead import ask_for
from pybeam.triton_kernels.persistent.attention import QUERIES, Lines, tile_of
from pybeam.triton_kernels.persistent.barrier import COUNTER_STRIDE, Before, arrive, leave
from pybeam.triton_kernels.persistent.phases import (
    CROSS_POOL,
    NUM_ADDRESSES,
    OWN_POOL,
    Seen,
    ask_ahead,
    attention_phase,
    product_phase,
    share_of,
)
from pybeam.triton_kernels.persistent.products import NUM_PARTS, Rows

# phases of a layer in their order
QKV, OWN, OWN_OUT, QUERY, CROSS, CROSS_OUT, INNER, INNER_OUT, NUM_PHASES = (
    tl.constexpr(i) for i in range(9)
)


@triton.jit(
    do_not_specialize=[
        "num_rows",
        "num_sources",
        "max_cells",
        "max_source_cells",
        "num_pool_cells",
        "after_bytes",
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
    p_qkv,  # [R, 3 d]
    p_attended,  # [R, d]
    p_query,  # [R, d]
    p_inner,  # [R, F]
    p_offset,
    p_slot,
    p_cell,
    p_num_cells,
    p_mask,
    p_entry,
    p_new_cell,
    p_source_cell,
    p_source_length,
    p_count,
    p_after,
    num_rows,
    num_sources,
    max_cells,
    max_source_cells,
    num_pool_cells,
    after_bytes,
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
    NUM_COUNTERS: tl.constexpr,  # a power of two
    AHEAD: tl.constexpr,  # how many products before its own each product's weights are asked for; 0: never
    PHASE: tl.constexpr,  # the only one of each layer; -1: all
):
    dtype: tl.constexpr = p_states.dtype.element_ty
    HEAD_SIZE: tl.constexpr = WIDTH // NUM_HEADS
    IS_WHOLE: tl.constexpr = PHASE < 0
    p_residual = p_states if p_normed is None else p_normed
    num_before = tl.num_programs(0) if IS_WHOLE else 0

    for i in tl.static_range(0, AHEAD):
        ask_ahead(p_address, last_layer, dtype, WIDTH, INNER_WIDTH, i)
    tile = tile_of(tl.program_id(0), p_offset, p_slot, num_sources, NUM_HEADS)
    o_row = tl.minimum(tile.begin + tl.arange(0, QUERIES), tile.row_end - 1)
    b_entry = tl.load(p_entry + o_row, mask=o_row >= 0, other=0)
    o_node = tl.arange(0, NODES)
    p_key, p_value = p_qkv + WIDTH, p_qkv + 2 * WIDTH
    stride: tl.constexpr = 3 * WIDTH
    pools = Pools(p_qkv, p_qkv, 0, 0, p_key, p_value, stride, stride, p_new_cell)
    num_cells = tl.load(p_num_cells + tile.slot)
    p_cell += tile.slot * max_cells
    p_mask += tile.slot * max_cells * MASK_WORDS
    row_end = tile.row_end
    lists = Lists(p_cell, p_mask, max_cells, num_cells, row_end - num_cells, row_end)
    own = Seen(lists, pools, b_entry, num_pool_cells)
    pools = Pools(p_qkv, p_qkv, 0, 0, None, None, 0, 0, None)
    num_cells = tl.load(p_source_length + tile.slot)
    p_source_cell += tile.slot * max_source_cells
    lists = Lists(p_source_cell, None, max_source_cells, num_cells, 0, 0)
    source = Seen(lists, pools, b_entry, 0)
    # more rows need the registers
    KEEPS_NODES: tl.constexpr = ROWS == 8
    if KEEPS_NODES:
        own_nodes = nodes_at(o_node, own.lists, own.pools, MASK_WORDS)
        source_nodes = nodes_at(o_node, source.lists, source.pools, 0)

    for i_layer in range(first_layer, last_layer):
        p_layer = p_address + i_layer * NUM_ADDRESSES
        p_phase = p_count + i_layer * (NUM_PHASES * COUNTER_STRIDE)
        num_left = last_layer - i_layer
        if IS_WHOLE or PHASE == QKV:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 0)
            rows = Rows(p_qkv, p_states, None, p_normed, num_rows, epsilon)
            before = Before(p_phase, tl.where(i_layer > 0, num_before, 0))
            product_phase(
                rows,
                p_layer + 0 * NUM_PARTS,
                before,
                3 * WIDTH,
                WIDTH,
                0,
                True,
                ROWS,
                QKV_GROUPS,
                PARTS,
                PACKS,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
        if IS_WHOLE or PHASE == OWN:
            if not KEEPS_NODES:
                own_nodes = nodes_at(o_node, own.lists, own.pools, MASK_WORDS)
            lines = Lines(p_attended, p_qkv, WIDTH, 3 * WIDTH)
            before = Before(p_phase, num_before)
            attention_phase(
                lines,
                tile,
                own,
                own_nodes,
                p_layer + OWN_POOL,
                scale,
                before,
                WIDTH,
                MASK_WORDS,
                NODES,
                HEAD_SIZE,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
        if IS_WHOLE or PHASE == OWN_OUT:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 1)
            rows = Rows(p_states, p_attended, p_residual, None, num_rows, epsilon)
            before = Before(p_phase, num_before)
            product_phase(
                rows,
                p_layer + 1 * NUM_PARTS,
                before,
                WIDTH,
                WIDTH,
                0,
                False,
                ROWS,
                GROUPS,
                PARTS,
                PACKS,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
        if IS_WHOLE or PHASE == QUERY:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 2)
            rows = Rows(p_query, p_states, None, p_normed, num_rows, epsilon)
            before = Before(p_phase, num_before)
            product_phase(
                rows,
                p_layer + 2 * NUM_PARTS,
                before,
                WIDTH,
                WIDTH,
                0,
                True,
                ROWS,
                GROUPS,
                PARTS,
                PACKS,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
        if IS_WHOLE or PHASE == CROSS:
            if not KEEPS_NODES:
                source_nodes = nodes_at(o_node, source.lists, source.pools, 0)
            lines = Lines(p_attended, p_query, WIDTH, WIDTH)
            before = Before(p_phase, num_before)
            attention_phase(
                lines,
                tile,
                source,
                source_nodes,
                p_layer + CROSS_POOL,
                scale,
                before,
                WIDTH,
                0,
                NODES,
                HEAD_SIZE,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
        if IS_WHOLE or PHASE == CROSS_OUT:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 3)
            rows = Rows(p_states, p_attended, p_residual, None, num_rows, epsilon)
            before = Before(p_phase, num_before)
            product_phase(
                rows,
                p_layer + 3 * NUM_PARTS,
                before,
                WIDTH,
                WIDTH,
                0,
                False,
                ROWS,
                GROUPS,
                PARTS,
                PACKS,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
        if IS_WHOLE or PHASE == INNER:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 4)
            if p_after is not None:
                if num_left == 1:
                    ask_for(p_after, after_bytes, share_of(after_bytes))
            rows = Rows(p_inner, p_states, None, p_normed, num_rows, epsilon)
            before = Before(p_phase, num_before)
            product_phase(
                rows,
                p_layer + 4 * NUM_PARTS,
                before,
                INNER_WIDTH,
                WIDTH,
                ACTIVATION,
                True,
                ROWS,
                INNER_GROUPS,
                PARTS,
                PACKS,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
        if IS_WHOLE or PHASE == INNER_OUT:
            if AHEAD > 0:
                ask_ahead(p_layer, num_left, dtype, WIDTH, INNER_WIDTH, AHEAD + 5)
            rows = Rows(p_states, p_inner, p_residual, None, num_rows, epsilon)
            before = Before(p_phase, num_before)
            product_phase(
                rows,
                p_layer + 5 * NUM_PARTS,
                before,
                WIDTH,
                INNER_WIDTH,
                0,
                False,
                ROWS,
                GROUPS,
                INNER_PARTS,
                INNER_PACKS,
            )
            p_phase += COUNTER_STRIDE
            if IS_WHOLE:
                arrive(p_phase)
    if IS_WHOLE:
        leave(p_count, tl.num_programs(0), last_layer * NUM_PHASES + 1, NUM_COUNTERS)
