"""Parts of tree attention: the tiles of sources, products of blocks, and parts that are merged."""

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.scores import finite_or_zero

BLOCK_SOURCES = tl.constexpr(64)


@triton.jit
def source_of(i_tile, p_offset, p_slot, num_sources, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The source that a tile belongs to: its first tile, its first row, the row behind its last, its slot.

    Tiles are numbered without a scan, so that each source gets at least those it needs. A tile behind the
    last source has no rows.
    """
    i_first_tile, row_begin, row_end, i_slot = 0, 0, 0, 0
    for start in range(0, num_sources, BLOCK_SOURCES):
        o_source = start + tl.arange(0, BLOCK_SOURCES)
        m_source = o_source < num_sources
        b_begin = tl.load(p_offset + o_source, mask=m_source, other=0)
        b_end = tl.load(p_offset + 1 + o_source, mask=m_source, other=0)
        b_slot = tl.load(p_slot + o_source, mask=m_source, other=0)
        b_first = (b_begin * GROUP + o_source * (BLOCK_M - 1)) // BLOCK_M
        b_next = (b_end * GROUP + (o_source + 1) * (BLOCK_M - 1)) // BLOCK_M
        m_is_it = m_source & (b_first <= i_tile) & (i_tile < b_next)
        i_first_tile += tl.sum(tl.where(m_is_it, b_first, 0), 0)
        row_begin += tl.sum(tl.where(m_is_it, b_begin, 0), 0)
        row_end += tl.sum(tl.where(m_is_it, b_end, 0), 0)
        i_slot += tl.sum(tl.where(m_is_it, b_slot, 0), 0)
    return i_first_tile, row_begin, row_end, i_slot


@triton.jit
def products_of(b_query, b_key, ROWS: tl.constexpr):
    """Products of queries [BLOCK_M, BLOCK_D] and keys [BLOCK_N, BLOCK_D]; queries stand along axis ROWS."""
    if ROWS == 0:
        b_product = tl.dot(b_query, tl.trans(b_key), input_precision="ieee")
    else:
        b_product = tl.dot(b_key, tl.trans(b_query), input_precision="ieee")
    return b_product


@triton.jit
def add_product(b_sum, b_weight, b_value, ROWS: tl.constexpr):
    if ROWS == 0:
        b_sum = tl.dot(b_weight, b_value, b_sum, input_precision="ieee")
    else:
        b_sum = tl.dot(b_value, b_weight, b_sum, input_precision="ieee")
    return b_sum


@triton.jit
def add_weighted(b_sum, b_weight, b_value, ROWS: tl.constexpr):
    """Add values with float32 weights, whatever the dtype of the values; rows stand along axis ROWS."""
    if b_value.dtype == tl.float32:
        b_sum = add_product(b_sum, b_weight, b_value, ROWS)
    else:
        # one 16-bit number would round a weight to 8 or 11 bits, so a second one holds the remainder
        NUM_LOST: tl.constexpr = 16 if b_value.dtype == tl.bfloat16 else 13
        b_bits = b_weight.to(tl.int32, bitcast=True) >> NUM_LOST << NUM_LOST
        b_high = b_bits.to(tl.float32, bitcast=True)
        b_low = b_weight - b_high
        b_sum = add_product(b_sum, b_high.to(b_value.dtype), b_value, ROWS)
        b_sum = add_product(b_sum, b_low.to(b_value.dtype), b_value, ROWS)
    return b_sum


@triton.jit
def merge(p_sum, p_peak, p_total, num_parts, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Merge all parts in their order: weighted sum [BLOCK_M, BLOCK_D] and total weight [BLOCK_M]."""
    o_m, o_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    b_peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    for i in range(0, num_parts):
        # .cg: another multiprocessor wrote this, so it is not in the first-level cache
        b_peak = tl.maximum(b_peak, tl.load(p_peak + i * BLOCK_M + o_m, cache_modifier=".cg"))
    b_shift = finite_or_zero(b_peak)
    b_total = tl.zeros([BLOCK_M], tl.float32)
    b_sum = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for i in range(0, num_parts):
        o_part = i * BLOCK_M + o_m
        b_scale = tl.exp2(tl.load(p_peak + o_part, cache_modifier=".cg") - b_shift)
        b_total += b_scale * tl.load(p_total + o_part, cache_modifier=".cg")
        p_part = p_sum + o_part[:, None] * BLOCK_D + o_d[None, :]
        b_sum += b_scale[:, None] * tl.load(p_part, cache_modifier=".cg")
    return b_sum, b_total
