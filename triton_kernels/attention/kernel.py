"""The kernel of `tree_attention`: a tile of rows attends over its source's cells, and reads each cell once.

One program runs per (tile, key head, split). A tile is `BLOCK_M` query rows of one source: rows of its beam
times the query heads that share the key head. A source with few rows has one tile, so its whole beam
reads every key and value together. Where there are too few tiles to fill the device the cells are
split; the last program of a tile merges the parts in their order.

A program is short, and most of its time it waits for memory: for the offsets, for the list of the source, for
keys and values. So it reads at once what depends on the same numbers, and the list a block ahead of the keys.

In a step of a decoder, the same launch writes the keys and values of new nodes to their cells
(`new_nodes.py`): the first split of a tile writes those of the rows whose first head is in the tile.
"""

import triton.language as tl

from pybeam.triton_kernels.attention.lists import Lists, bits_of, nodes_at, sees
from pybeam.triton_kernels.attention.new_nodes import Pools, lines_of, write_nodes
from pybeam.triton_kernels.attention.paths import Paths, add_paths
from pybeam.triton_kernels.attention.scores import Query, Rules, finite_or_zero, logits_of
from pybeam.triton_kernels.attention.tiles import add_weighted, merge, products_of, source_of
from pybeam.triton_kernels.attention.variants import MIN_BLOCKS
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant


@one_variant(
    layout=[
        "query_row_stride",
        "query_head_stride",
        "key_cell_stride",
        "key_head_stride",
        "value_cell_stride",
        "value_head_stride",
        "new_key_row_stride",
        "new_key_head_stride",
        "new_value_row_stride",
        "new_value_head_stride",
    ],
    anywhere=[
        "p_offset",
        "p_slot",
        "p_num_cells",
        "p_entry",
        "p_path",
        "p_path_length",
        "p_num_shared",
        "p_position",
        "p_cell_position",
        "p_new_cell",
    ],
)
def tree_attention_kernel(
    p_query,
    p_key,
    p_value,
    p_out,
    p_offset,
    p_slot,
    p_cell,
    p_num_cells,
    p_mask,
    p_entry,  # of the rows: bits of masks, or lines of paths
    p_path,  # None: rows see masks, or all cells
    p_path_length,
    p_num_shared,
    p_sum,  # [tiles * G, splits, BLOCK_M, BLOCK_D], unnormalised parts of the result
    p_peak,  # [tiles * G, splits, BLOCK_M], largest logit of each part
    p_total,  # [tiles * G, splits, BLOCK_M], weight of each part
    p_count,  # [tiles * G], parts that are written
    p_position,
    p_cell_position,
    p_bias,
    p_new_key,  # [R, G, D], those of new nodes
    p_new_value,
    p_new_cell,  # [R], where they go
    scale,
    soft_cap,
    bias_size,
    bias_origin,
    window,
    num_sources,
    num_key_heads,
    max_cells,
    max_entries,
    max_path,
    num_splits,
    query_row_stride,
    query_head_stride,
    key_cell_stride,
    key_head_stride,
    value_cell_stride,
    value_head_stride,
    new_key_row_stride,
    new_key_head_stride,
    new_value_row_stride,
    new_value_head_stride,
    num_pool_cells,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    ARE_WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # axes of scores; a product on tensor cores has 16 lines or more but only 8 columns, where few rows go
    ROWS: tl.constexpr = 1 if BLOCK_M < 16 else 0
    CELLS: tl.constexpr = 1 - ROWS
    await_kernels()
    if ARE_WIDE and (HEAD_SIZE % 16 != 0):
        # Triton looks for multiples of 16 numbers alone, which lines of such heads are not
        UNIT: tl.constexpr = 128 // p_query.dtype.element_ty.primitive_bitwidth
        query_row_stride = query_row_stride // UNIT * UNIT
        query_head_stride = query_head_stride // UNIT * UNIT
        key_cell_stride = key_cell_stride // UNIT * UNIT
        key_head_stride = key_head_stride // UNIT * UNIT
        value_cell_stride = value_cell_stride // UNIT * UNIT
        value_head_stride = value_head_stride // UNIT * UNIT
        new_key_row_stride = new_key_row_stride // UNIT * UNIT
        new_key_head_stride = new_key_head_stride // UNIT * UNIT
        new_value_row_stride = new_value_row_stride // UNIT * UNIT
        new_value_head_stride = new_value_head_stride // UNIT * UNIT
    i_unit, i_split = tl.program_id(0), tl.program_id(1)
    # heads innermost: programs that run together read neighbouring keys
    i_tile, i_head = i_unit // num_key_heads, i_unit % num_key_heads
    begins = source_of(i_tile, p_offset, p_slot, num_sources, GROUP, BLOCK_M)
    i_first_tile, row_begin, row_end, i_slot = begins
    num_queries = (row_end - row_begin) * GROUP
    query_begin = (i_tile - i_first_tile) * BLOCK_M
    if query_begin >= num_queries:
        return
    # all that the source points to is asked for before the first of it is needed
    i_slot = i_slot.to(tl.int64)
    num_listed = tl.load(p_num_cells + i_slot)
    num_cells = num_listed  # that the rows read together
    if p_path is not None:
        num_cells = tl.load(p_num_shared + i_slot) if p_num_shared is not None else num_listed * 0
    # lines beyond the last repeat it: a mask would occupy registers throughout the loop
    o_m = tl.minimum(query_begin + tl.arange(0, BLOCK_M), num_queries - 1)
    o_d = tl.arange(0, BLOCK_D)
    m_d = (o_d < HEAD_SIZE)[None, :]
    o_row = row_begin + o_m // GROUP
    o_head = i_head * GROUP + o_m % GROUP
    o_query = o_row.to(tl.int64) * query_row_stride + o_head * query_head_stride
    b_query = tl.load(p_query + o_query[:, None] + o_d[None, :], mask=m_d, other=0.0)
    b_entry = o_row
    if (MASK_WORDS > 0) or (p_path is not None):
        b_entry = tl.load(p_entry + o_row)
    if p_path is not None:
        p_own_path = p_path + (i_slot * max_entries + b_entry) * max_path
    b_position = o_row
    if (p_bias is not None) or HAS_WINDOW:
        b_position = tl.load(p_position + o_row)
    p_key += i_head.to(tl.int64) * key_head_stride
    p_value += i_head.to(tl.int64) * value_head_stride
    if p_new_key is not None:
        p_new_key += i_head.to(tl.int64) * new_key_head_stride
        p_new_value += i_head.to(tl.int64) * new_value_head_stride
    pools = Pools(
        p_key,
        p_value,
        key_cell_stride,
        value_cell_stride,
        p_new_key,
        p_new_value,
        new_key_row_stride,
        new_value_row_stride,
        p_new_cell,
        ARE_WIDE,
    )
    rules = Rules(scale, soft_cap, p_bias, bias_size, bias_origin, window)
    # new nodes stand last in the list, in the order of the rows: what to add to a place for its row
    first_new = row_end - num_listed
    p_cell += i_slot * max_cells
    if MASK_WORDS > 0:
        p_mask += i_slot * max_cells * MASK_WORDS
    lists = Lists(p_cell, p_mask, max_cells, num_cells, first_new, row_end)
    nodes = nodes_at(i_split * BLOCK_N + tl.arange(0, BLOCK_N), lists, pools, MASK_WORDS)
    num_parts = 1
    if p_sum is not None:
        # the first program writes the result of a source without cells
        num_parts = tl.maximum(tl.cdiv(num_cells, MIN_BLOCKS * BLOCK_N), 1)
        num_parts = tl.minimum(num_parts, num_splits)
        if i_split >= num_parts:
            return
    if p_new_key is not None:
        if i_split == 0:
            m_row = (query_begin + tl.arange(0, BLOCK_M) < num_queries) & (o_m % GROUP == 0)
            write_nodes(pools, o_row, m_row, m_d, num_pool_cells, BLOCK_D)

    bits = bits_of(b_entry, MASK_WORDS)
    b_peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    b_total = tl.zeros([BLOCK_M], tl.float32)
    b_sum = tl.zeros([BLOCK_M, BLOCK_D] if ROWS == 0 else [BLOCK_D, BLOCK_M], tl.float32)
    # a loop that never runs would leave a wait for products that there are not: ptxas 12.8 crashes at that
    if (p_path is None) or (p_num_shared is not None):
        # parts take blocks in turn, so a program knows its first without the number of cells
        for start in range(i_split * BLOCK_N, num_cells, num_parts * BLOCK_N):
            o_n = start + tl.arange(0, BLOCK_N)
            m_n = o_n < num_cells
            p_key_line, p_value_line = lines_of(pools, nodes.cell, nodes.new_cell, first_new + o_n)
            m_line = m_n[:, None] & m_d
            b_key = tl.load(p_key_line[:, None] + o_d[None, :], mask=m_line, other=0.0)
            p_value_line = tl.expand_dims(p_value_line, CELLS) + tl.expand_dims(o_d, ROWS)
            m_value = tl.expand_dims(m_n, CELLS) & tl.expand_dims(o_d < HEAD_SIZE, ROWS)
            b_value = tl.load(p_value_line, mask=m_value, other=0.0)
            b_product = products_of(b_query, b_key, ROWS)
            m_sees = sees(nodes.words, bits, m_n, MASK_WORDS, ROWS)
            b_back = b_product
            if (p_bias is not None) or HAS_WINDOW:
                b_cell_position = tl.load(p_cell_position + nodes.cell, mask=m_n, other=0)
                b_back = tl.expand_dims(b_position, CELLS) - tl.expand_dims(b_cell_position, ROWS)
            # these arrive while the scores are computed
            nodes = nodes_at(o_n + num_parts * BLOCK_N, lists, pools, MASK_WORDS)
            b_logit = logits_of(
                b_product, m_sees, b_back, tl.expand_dims(o_head, CELLS), rules, HAS_CAP, HAS_WINDOW
            )
            b_new_peak = tl.maximum(b_peak, tl.max(b_logit, CELLS))
            b_shift = finite_or_zero(b_new_peak)
            b_weight = tl.exp2(b_logit - tl.expand_dims(b_shift, CELLS))
            b_scale = tl.exp2(b_peak - b_shift)
            b_sum = add_weighted(b_sum * tl.expand_dims(b_scale, CELLS), b_weight, b_value, ROWS)
            b_total = b_total * b_scale + tl.sum(b_weight, CELLS)
            b_peak = b_new_peak
    if ROWS == 1:
        b_sum = tl.trans(b_sum)
    if p_path is not None:
        if i_split == 0:
            paths = Paths(
                p_own_path,
                p_cell + num_cells,
                tl.minimum(tl.load(p_path_length + i_slot), max_path),
                num_listed - num_cells,
                first_new + num_cells,
                row_end,
            )
            query = Query(b_query, m_d, o_head, b_position, p_cell_position)
            b_peak, b_total, b_sum = add_paths(
                paths, pools, query, rules, (b_peak, b_total, b_sum), HAS_CAP, HAS_WINDOW, BLOCK_D
            )

    is_last = True
    if p_sum is not None:
        if num_parts > 1:
            i_first = i_unit.to(tl.int64) * num_splits * BLOCK_M
            o_part = i_first + i_split * BLOCK_M + tl.arange(0, BLOCK_M)
            tl.store(p_sum + o_part[:, None] * BLOCK_D + o_d[None, :], b_sum)
            tl.store(p_peak + o_part, b_peak)
            tl.store(p_total + o_part, b_total)
            # all threads must have written before one of them counts the part
            tl.debug_barrier()
            is_last = tl.atomic_add(p_count + i_unit, 1, sem="acq_rel") == num_parts - 1
            if is_last:
                tl.store(p_count + i_unit, 0)
                b_sum, b_total = merge(
                    p_sum + i_first * BLOCK_D,
                    p_peak + i_first,
                    p_total + i_first,
                    num_parts,
                    BLOCK_M,
                    BLOCK_D,
                )
    if is_last:
        # a row that sees no cell has weight 0 and gets zeros
        b_out = b_sum / tl.where(b_total == 0.0, 1.0, b_total)[:, None]
        o_out = (o_row.to(tl.int64) * num_key_heads * GROUP + o_head) * HEAD_SIZE
        p_line = p_out + o_out[:, None] + o_d[None, :]
        m_line = query_begin + tl.arange(0, BLOCK_M) < num_queries
        tl.store(p_line, b_out.to(p_out.dtype.element_ty), mask=m_line[:, None] & m_d)
