"""Weights of 8 and 4 bits for `product`, which become wide numbers in the registers of a program.

They lie in memory as `pybeam.backends.narrow` says, so that no number moves: a lane reads 16 bytes at once,
and has in them the numbers that a tensor core wants from that lane.
"""

import triton
import triton.language as tl

# lines that are read at once, and lanes of a line: those of `product`
LINES, LANES = tl.constexpr(8), tl.constexpr(4)
# numbers beside one another
EIGHT = tl.constexpr(8)
# what a weight of 4 bits is more in memory than in a product
OFFSET = tl.constexpr(8)


@triton.jit
def stored_tile(
    p_weight,
    begin,
    num_lines,
    depth,
    GROUPS: tl.constexpr,
    PACKS: tl.constexpr,
    IS_STREAM: tl.constexpr,
):
    """Load [LINES, PACKS, GROUPS, what four lanes read at once] of weights as they lie in memory.

    A stream is the first to leave the L2.
    """
    IS_INT4: tl.constexpr = p_weight.dtype.element_ty == tl.int32
    EIGHTS: tl.constexpr = 4 if IS_INT4 else 2
    SIZE: tl.constexpr = LANES * 16 // p_weight.dtype.element_ty.primitive_bitwidth * 8
    size = tl.cdiv(depth, LANES * EIGHT * EIGHTS) * SIZE  # of a line
    o_line = begin + tl.arange(0, GROUPS)[None, :] * LINES + tl.arange(0, LINES)[:, None]
    o_weight = tl.arange(0, PACKS)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    o_weight = o_weight[None, :, None, :]
    p_line = p_weight + o_line.to(tl.int64)[:, None, :, None] * size
    m_weight = (o_line < num_lines)[:, None, :, None] & (o_weight < size)
    # the order of axes, as in `product.tile_of_lines`
    p_tile = tl.max_contiguous(p_line + o_weight, [4, 2, 1, SIZE])
    if IS_STREAM:
        return tl.load(p_tile, mask=m_weight, other=0, eviction_policy="evict_first")
    return tl.load(p_tile, mask=m_weight, other=0)


@triton.jit
def scales_of_groups(p_scale, begin, num_lines, depth, GROUPS: tl.constexpr, PACKS: tl.constexpr):
    """Load the scales [LINES, PACKS, GROUPS, LANES * 4] of the four groups that each lane has a part of."""
    size = tl.cdiv(depth, LANES * EIGHT * 4) * 4
    o_line = begin + tl.arange(0, GROUPS)[None, :] * LINES + tl.arange(0, LINES)[:, None]
    o_pack = (tl.arange(0, PACKS) * 4)[None, :, None, None]
    o_scale = o_pack + (tl.arange(0, LANES * 4) % 4)[None, None, None, :]
    p_line = p_scale + o_line.to(tl.int64)[:, None, :, None] * size
    m_scale = (o_line < num_lines)[:, None, :, None] & (o_pack < size)
    # lines come behind the four, as above
    p_tile = tl.max_contiguous(p_line + o_scale, [2, 1, 1, 4])
    return tl.load(p_tile, mask=m_scale, other=0.0)


@triton.jit
def widened(b_weight, b_scale, dtype: tl.constexpr):
    """Return the numbers [LINES, PACKS, GROUPS, EIGHTS, 32] of a tile; those of 4 bits times their scales."""
    PACKS: tl.constexpr = b_weight.shape[1]
    GROUPS: tl.constexpr = b_weight.shape[2]
    if b_weight.dtype == tl.int32:
        # a word has eight numbers: pair i is in the bits from 4 i on, and from 4 i + 16 on
        b_scale = b_scale.to(tl.float32)
        b_first = tl.join(_pair(b_weight, b_scale, 0), _pair(b_weight, b_scale, 1))
        b_last = tl.join(_pair(b_weight, b_scale, 2), _pair(b_weight, b_scale, 3))
        b_wide = tl.reshape(tl.join(b_first, b_last), [LINES, PACKS, GROUPS, LANES, 4, 2, 2, 2])
        b_wide = tl.permute(b_wide, 0, 1, 2, 4, 3, 7, 6, 5)
        b_wide = tl.reshape(b_wide, [LINES, PACKS, GROUPS, 4, LANES * EIGHT])
    else:
        if b_weight.dtype == tl.uint8:
            b_weight = b_weight.to(tl.float8e4nv, bitcast=True)
        b_wide = tl.reshape(b_weight.to(dtype), [LINES, PACKS, GROUPS, LANES, 2, EIGHT])
        b_wide = tl.permute(b_wide, 0, 1, 2, 4, 3, 5)
        b_wide = tl.reshape(b_wide, [LINES, PACKS, GROUPS, 2, LANES * EIGHT])
    return b_wide.to(dtype)


@triton.jit
def _pair(b_word, b_scale, PLACE: tl.constexpr):
    """The two numbers [..., 2] of a pair, float32, exact: a mantissa of 128 + n, less 128 + OFFSET."""
    b_pair = (b_word >> (4 * PLACE)) & 0x000F000F | 0x43004300
    b_low = (b_pair << 16).to(tl.float32, bitcast=True)
    b_high = (b_pair & -65536).to(tl.float32, bitcast=True)
    b_least = b_scale * (128 + OFFSET)
    return tl.join(b_low * b_scale - b_least, b_high * b_scale - b_least)
