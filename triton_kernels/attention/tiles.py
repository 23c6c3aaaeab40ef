"""Parts of tree attention: the tiles of sources, masks, sums with weights, and parts that are merged."""

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.scores import finite_or_zero

BLOCK_SOURCES = tl.constexpr(128)


@triton.jit
def first_tile(offset, i_source, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Number the first tile of a source, without a scan: each source gets at least the tiles it needs."""
    return offset * GROUP // BLOCK_M + i_source


@triton.jit
def source_of(i_tile, p_offset, num_sources, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The source that a tile belongs to."""
    num_before = 0
    for start in range(0, num_sources, BLOCK_SOURCES):
        o_source = start + tl.arange(0, BLOCK_SOURCES)
        m_source = o_source < num_sources
        b_offset = tl.load(p_offset + o_source, mask=m_source, other=0)
        b_begins = m_source & (first_tile(b_offset, o_source, GROUP, BLOCK_M) <= i_tile)
        num_before += tl.sum(b_begins.to(tl.int32), 0)
    return num_before - 1


@triton.jit
def sees(p_mask, o_n, m_n, b_bit, MASK_WORDS: tl.constexpr):
    """[BLOCK_M, BLOCK_N]: bit ``bit % 64`` of word ``bit // 64`` of each cell's mask is set."""
    p_word = p_mask + o_n.to(tl.int64) * MASK_WORDS
    b_word = tl.load(p_word, mask=m_n, other=0)[None, :]
    for w in tl.static_range(1, MASK_WORDS):
        b_next = tl.load(p_word + w, mask=m_n, other=0)[None, :]
        b_word = tl.where((b_bit // 64 == w)[:, None], b_next, b_word)
    return (b_word >> (b_bit % 64).to(tl.int64)[:, None]) & 1 != 0


@triton.jit
def add_weighted(b_sum, b_weight, b_value):
    """``b_sum + b_weight @ b_value`` with float32 weights, whatever the dtype of the values."""
    if b_value.dtype == tl.float32:
        b_sum = tl.dot(b_weight, b_value, b_sum, input_precision="ieee")
    else:
        # one 16-bit number would round a weight to 8 or 11 bits, so a second one holds the remainder
        b_high = b_weight.to(b_value.dtype)
        b_low = (b_weight - b_high.to(tl.float32)).to(b_value.dtype)
        b_sum = tl.dot(b_low, b_value, tl.dot(b_high, b_value, b_sum))
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
