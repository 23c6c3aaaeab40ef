"""Phases of a decoder's layers: what one program does in an attention or a product."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.new_nodes import Pools
from pybeam.triton_kernels.attention.scores import Rules
from pybeam.triton_kernels.persistent.ahead import ask_for
from pybeam.triton_kernels.persistent.attention import Lines, attend
from pybeam.triton_kernels.persistent.products import NUM_PARTS, WEIGHT, Product, multiply
from pybeam.triton_kernels.product import LINES

# among the addresses of a layer: its products, and the pools behind them
NUM_PRODUCTS, OWN_POOL, CROSS_POOL, NUM_ADDRESSES = (tl.constexpr(i) for i in (6, 24, 25, 26))


class Seen(NamedTuple):
    """The nodes that the rows of a program see: those of hypotheses, or of their source."""

    lists: tl.tuple
    pools: tl.tuple  # without those of a layer
    entry: tl.tensor
    num_pool_cells: tl.tensor


@triton.jit
def attention_phase(
    lines,
    tile,
    seen,
    p_address,  # of the pool
    scale,
    WIDTH: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    NODES: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
):
    if tile.begin < tile.row_end:
        head = tile.head * HEAD_SIZE
        dtype: tl.constexpr = lines.out.dtype.element_ty
        address = tl.multiple_of(tl.load(p_address), 16)
        p_pool = tl.multiple_of(address.to(tl.pointer_type(dtype)), 16) + head
        p_query, stride = lines.query + head, lines.query_stride
        p_new_key, p_new_value = None, None
        if seen.pools.new_key is not None:
            # they stand behind the queries
            p_new_key, p_new_value = p_query + WIDTH, p_query + 2 * WIDTH
        # a cell has a key and a value
        pools = Pools(
            p_pool,
            p_pool + WIDTH,
            2 * WIDTH,
            2 * WIDTH,
            p_new_key,
            p_new_value,
            stride,
            stride,
            seen.pools.new_cell,
        )
        attend(
            Lines(lines.out + head, p_query, lines.out_stride, stride),
            tile,
            seen.lists,
            seen.entry,
            pools,
            seen.num_pool_cells,
            Rules(scale, 0.0, None, 0, 0, 0),
            MASK_WORDS,
            NODES,
            HEAD_SIZE,
        )


@triton.jit
def product_phase(
    rows,
    p_address,
    NUM_COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    PACKS: tl.constexpr,
):
    product = Product(p_address, tl.program_id(0) * LINES, tl.num_programs(0) * LINES)
    if product.first < NUM_COLUMNS:
        multiply(
            rows,
            product,
            NUM_COLUMNS,
            DEPTH,
            ACTIVATION,
            HAS_NORM,
            ROWS,
            GROUPS,
            PARTS,
            PACKS,
        )


@triton.jit
def ask_ahead(
    p_layer,
    num_layers,  # from this one on
    dtype: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER_WIDTH: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Have weights on their way to the L2: those of a product, counted from the first of this layer."""
    LAYER: tl.constexpr = PRODUCT // NUM_PRODUCTS
    PLACE: tl.constexpr = PRODUCT - LAYER * NUM_PRODUCTS
    HEIGHT: tl.constexpr = 3 * WIDTH if PLACE == 0 else INNER_WIDTH if PLACE > 3 else WIDTH
    NUM_BYTES: tl.constexpr = HEIGHT * WIDTH * dtype.primitive_bitwidth // 8
    p_weight = p_layer + LAYER * NUM_ADDRESSES + PLACE * NUM_PARTS + WEIGHT
    if LAYER < num_layers:
        ask_for(tl.load(p_weight), NUM_BYTES)
