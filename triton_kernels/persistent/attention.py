"""The attention of a phase: a program has 8 rows of a source and one head.

Lists of cells are those of all layers, so they are read once. Keys and values that lie in cells are on their
way before the program waits for its queries.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.lists import bits_of, nodes_at, sees
from pybeam.triton_kernels.attention.scores import finite_or_zero, logits_of
from pybeam.triton_kernels.attention.tiles import add_weighted, products_of, source_of
from pybeam.triton_kernels.persistent.exchange import CAN_WAIT, awaited, is_short

# of a tile, along the second axis of scores
QUERIES, ROWS = tl.constexpr(8), tl.constexpr(1)


class Tile(NamedTuple):
    """The rows of a program and their source."""

    begin: tl.tensor  # of the rows of the tile
    row_end: tl.tensor  # behind the rows of the source; not above `begin`: there is no such tile
    slot: tl.tensor
    head: tl.tensor


class Lines(NamedTuple):
    """Results and queries of a head, and the numbers from a row to the next."""

    out: tl.tensor
    query: tl.tensor
    out_stride: tl.tensor
    query_stride: tl.tensor


class Block(NamedTuple):
    """Keys and values of some nodes that lie in cells, and zeros for the others."""

    key: tl.tensor  # [nodes, D]
    value: tl.tensor  # [D, nodes]


@triton.jit
def tile_of(i_unit, p_offset, p_slot, num_sources, NUM_HEADS: tl.constexpr):
    i_tile, i_head = i_unit // NUM_HEADS, i_unit % NUM_HEADS
    i_first, row_begin, row_end, i_slot = source_of(
        i_tile, p_offset, p_slot, num_sources, 1, QUERIES
    )
    begin = row_begin + (i_tile - i_first) * QUERIES
    return Tile(begin, row_end, i_slot.to(tl.int64), i_head)


@triton.jit
def block_of(nodes, pools, m_n, HEAD_SIZE: tl.constexpr):
    """Load what lies in the cells of these nodes."""
    m_old = m_n
    if pools.new_key is not None:
        m_old = m_n & (nodes.new_cell != nodes.cell)
    o_d, o_cell = tl.arange(0, HEAD_SIZE), nodes.cell.to(tl.int64)
    p_key = pools.key + o_cell[:, None] * pools.key_stride + o_d[None, :]
    p_value = pools.value + o_cell[None, :] * pools.value_stride + o_d[:, None]
    b_key = tl.load(p_key, mask=m_old[:, None], other=0.0)
    return Block(b_key, tl.load(p_value, mask=m_old[None, :], other=0.0))


@triton.jit
def new_block(nodes, pools, o_new, m_new, HEAD_SIZE: tl.constexpr):
    """Load what is there of the keys and values of new nodes, which stand in lines of rows `o_new`."""
    o_d, o_new = tl.arange(0, HEAD_SIZE), o_new.to(tl.int64)
    p_key = pools.new_key + o_new[:, None] * pools.new_key_stride + o_d[None, :]
    p_value = pools.new_value + o_new[None, :] * pools.new_value_stride + o_d[:, None]
    b_key = tl.load(p_key, mask=m_new[:, None], other=0.0, volatile=True)
    return Block(b_key, tl.load(p_value, mask=m_new[None, :], other=0.0, volatile=True))


@triton.jit
def with_new(block, nodes, pools, o_new, m_n, HEAD_SIZE: tl.constexpr):
    """The same block with the keys and values of new nodes, when they are there."""
    b_key, b_value = block.key, block.value
    if pools.new_key is not None:
        m_new = m_n & (nodes.new_cell == nodes.cell)
        new = new_block(nodes, pools, o_new, m_new, HEAD_SIZE)
        if CAN_WAIT:
            while is_short(new.key) | is_short(new.value):
                new = new_block(nodes, pools, o_new, m_new, HEAD_SIZE)
        b_key = tl.where(m_new[:, None], new.key, b_key)
        b_value = tl.where(m_new[None, :], new.value, b_value)
    return Block(b_key, b_value)


@triton.jit
def attend(
    lines,
    tile,
    lists,
    b_entry,
    pools,
    num_pool_cells,
    rules,
    MASK_WORDS: tl.constexpr,
    NODES: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
):
    """Attend over the nodes of a list, and write those of rows, if there are any."""
    o_d, o_n = tl.arange(0, HEAD_SIZE), tl.arange(0, NODES)
    o_m = tl.minimum(tile.begin + tl.arange(0, QUERIES), tile.row_end - 1)
    m_row = tile.begin + tl.arange(0, QUERIES) < tile.row_end
    m_n = o_n < lists.num_cells
    nodes = nodes_at(o_n, lists, pools, MASK_WORDS)
    block = block_of(nodes, pools, m_n, HEAD_SIZE)
    bits = bits_of(b_entry, MASK_WORDS)
    if pools.new_key is not None:
        b_new_cell = tl.load(pools.new_cell + o_m, mask=m_row, other=-1).to(tl.int64)[:, None]
        m_new = (b_new_cell >= 0) & (b_new_cell < num_pool_cells)
    o_m = o_m.to(tl.int64)[:, None]
    p_query = lines.query + o_m * lines.query_stride + o_d[None, :]
    b_query = awaited(p_query, (o_d >= 0)[None, :])
    b_peak = tl.full([QUERIES], -float("inf"), tl.float32)
    b_total = tl.zeros([QUERIES], tl.float32)
    b_sum = tl.zeros([HEAD_SIZE, QUERIES], tl.float32)
    for start in range(0, lists.num_cells, NODES):
        o_n = start + tl.arange(0, NODES)
        m_n = o_n < lists.num_cells
        block = with_new(block, nodes, pools, lists.first_new + o_n, m_n, HEAD_SIZE)
        b_product = products_of(b_query, block.key, ROWS)
        m_sees = sees(nodes.words, bits, m_n, MASK_WORDS, ROWS)
        b_logit = logits_of(b_product, m_sees, b_product, 0, rules, False, False)
        b_value = block.value
        nodes = nodes_at(o_n + NODES, lists, pools, MASK_WORDS)
        block = block_of(nodes, pools, o_n + NODES < lists.num_cells, HEAD_SIZE)
        b_new_peak = tl.maximum(b_peak, tl.max(b_logit, 0))
        b_shift = finite_or_zero(b_new_peak)
        b_weight = tl.exp2(b_logit - b_shift[None, :])
        b_scale = tl.exp2(b_peak - b_shift)
        b_sum = add_weighted(b_sum * b_scale[None, :], b_weight, b_value, ROWS)
        b_total = b_total * b_scale + tl.sum(b_weight, 0)
        b_peak = b_new_peak
    # a row that sees no cell has weight 0 and gets zeros
    b_out = tl.trans(b_sum / tl.where(b_total == 0.0, 1.0, b_total)[None, :])
    p_line = lines.out + o_m * lines.out_stride + o_d[None, :]
    tl.store(p_line, b_out.to(lines.out.dtype.element_ty), mask=m_row[:, None])
    if pools.new_key is not None:
        # nobody waits for these in this launch, and they have been seen above
        p_new_key = pools.new_key + o_m * pools.new_key_stride + o_d[None, :]
        p_new_value = pools.new_value + o_m * pools.new_value_stride + o_d[None, :]
        b_new_key = awaited(p_new_key, m_new)
        b_new_value = awaited(p_new_value, m_new)
        p_key = pools.key + b_new_cell * pools.key_stride + o_d[None, :]
        p_value = pools.value + b_new_cell * pools.value_stride + o_d[None, :]
        tl.store(p_key, b_new_key, mask=m_new)
        tl.store(p_value, b_new_value, mask=m_new)
