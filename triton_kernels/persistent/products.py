"""The product of a phase: a program has some columns of all rows, and asks for weights before rows."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.layers import activated
from pybeam.triton_kernels.persistent.exchange import awaited
from pybeam.triton_kernels.product import LINES, PACK, operand, tile_of_lines

# of a product among the addresses of a layer: its norm, then its weights
SCALE, SHIFT, WEIGHT, BIAS, NUM_PARTS = (tl.constexpr(i) for i in range(5))


class Product(NamedTuple):
    """Where the parts of a product lie, and which columns are those of this program."""

    address: tl.tensor  # its `NUM_PARTS` addresses
    first: tl.tensor  # column
    apart: tl.tensor  # columns from a group to the next one


class Rows(NamedTuple):
    """Rows before a product and behind it. No other program reads the last three."""

    x: tl.tensor  # which other programs leave
    y: tl.tensor  # for other programs
    residual: tl.tensor
    kept: tl.tensor  # the same as y
    normed: tl.tensor  # the residual of a later product: normalised rows
    num: tl.tensor
    epsilon: tl.tensor


@triton.jit
def part_of(product, i, dtype: tl.constexpr):
    """A part of a product; all begin at a multiple of 16 bytes."""
    address = tl.multiple_of(tl.load(product.address + i), 16)
    return tl.multiple_of(address.to(tl.pointer_type(dtype)), 16)


@triton.jit
def added(x_0, y_0, z_0, x_1, y_1, z_1):
    return x_0 + x_1, y_0 + y_1, z_0 + z_1


@triton.jit
def normalised(b_x, b_scale, b_shift, o_depth, epsilon, DEPTH: tl.constexpr, PARTS: tl.constexpr):
    """The layer norm of a tile of rows, whose warps wait for one another once.

    Each warp has the sum of its numbers, and that of the squares of their distances to its own mean.
    """
    PACKS: tl.constexpr = b_x.shape[1] // PARTS
    GROUPS: tl.constexpr = b_x.shape[2]
    b_wide = b_x.to(tl.float32)
    b_parts = tl.reshape(b_wide, [LINES, PACKS, PARTS, GROUPS, PACK])
    # of a part of the depth, [lines, parts, groups]
    b_sum = tl.sum(tl.sum(b_parts, 1), 3)
    if DEPTH == PACKS * PARTS * PACK:
        b_mean = b_sum * (1.0 / (PACKS * PACK))
        b_far = b_parts - b_mean[:, None, :, :, None]
    else:
        m_depth = tl.reshape(o_depth < DEPTH, [1, PACKS, PARTS, 1, PACK])
        b_count = tl.sum(tl.sum(m_depth.to(tl.float32), 1), 3)
        b_mean = b_sum / tl.maximum(b_count, 1.0)
        b_far = tl.where(m_depth, b_parts - b_mean[:, None, :, :, None], 0.0)
    b_square = tl.sum(tl.sum(b_far * b_far, 1), 3)
    b_sum, b_square, b_between = tl.reduce((b_sum, b_square, b_sum * b_mean), 1, added)
    b_mean = b_sum * (1.0 / DEPTH)
    b_square += tl.maximum(b_between - b_sum * b_mean, 0.0)
    b_factor = 1.0 / tl.sqrt(b_square * (1.0 / DEPTH) + epsilon)
    b_wide = (b_wide - b_mean[:, None, :, None, None]) * b_factor[:, None, :, None, None]
    return (b_wide * b_scale.to(tl.float32) + b_shift.to(tl.float32)).to(b_x.dtype)


@triton.jit
def multiply(
    rows,
    product,
    NUM_COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    PACKS: tl.constexpr,
):
    """``residual + act(norm(x) W^T + b)`` in this program's columns, with the sums of `product_kernel`."""
    dtype: tl.constexpr = rows.x.dtype.element_ty
    o_depth = tl.arange(0, PACKS)[:, None] * PACK + tl.arange(0, PACK)[None, :]
    o_depth = o_depth[:, None, :]
    weights = part_of(product, WEIGHT, dtype), product.first, NUM_COLUMNS, o_depth, DEPTH, DEPTH
    b_weight = tile_of_lines(*weights, GROUPS, product.apart)
    if HAS_NORM:
        p_scale, p_shift = part_of(product, SCALE, dtype), part_of(product, SHIFT, dtype)
        # the first layer may have no norm before it
        num_lines = tl.where(p_scale.to(tl.int64) != 0, LINES, 0)
        b_scale = tile_of_lines(p_scale, 0, num_lines, o_depth, DEPTH, 0, 1)
        b_shift = tile_of_lines(p_shift, 0, num_lines, o_depth, DEPTH, 0, 1)
    o_line = tl.arange(0, GROUPS * LINES)
    o_column = product.first + o_line // LINES * product.apart + o_line % LINES
    b_bias = tl.load(
        part_of(product, BIAS, dtype) + o_column, mask=o_column < NUM_COLUMNS, other=0.0
    )
    o_row = tl.arange(0, ROWS)
    o_y = o_row[:, None] * NUM_COLUMNS + o_column[None, :]
    m_y = (o_row < rows.num)[:, None] & (o_column < NUM_COLUMNS)[None, :]
    if rows.residual is not None:
        b_residual = tl.load(rows.residual + o_y, mask=m_y, other=0.0)
    o_line = tl.arange(0, ROWS // LINES)[None, :] * LINES + tl.arange(0, LINES)[:, None]
    m_x = (o_line < rows.num)[:, None, :, None, None] & (o_depth < DEPTH)[None, :, None, :, :]
    o_x = o_line[:, None, :, None, None] * DEPTH + o_depth[None, :, None, :, :]
    b_x = awaited(rows.x + o_x, m_x)
    if HAS_NORM:
        norm = b_scale, b_shift, o_depth, rows.epsilon
        if rows.normed is None:
            b_x = normalised(b_x, *norm, DEPTH, PARTS)
        else:
            if num_lines > 0:
                b_x = normalised(b_x, *norm, DEPTH, PARTS)
            # of the columns that this program has in the product of the sum
            m_own = o_depth // LINES % tl.num_programs(0) == tl.program_id(0)
            tl.store(rows.normed + o_x, b_x, mask=m_x & m_own[None, :, None, :, :])
    b_part = tl.full([PARTS, ROWS, GROUPS * LINES], 0.0, tl.float32)
    b_weight = tl.permute(operand(b_weight, PARTS), 0, 2, 1)
    b_part = tl.dot(operand(b_x, PARTS), b_weight, b_part, input_precision="ieee")
    b_y = activated(tl.sum(b_part, 0) + b_bias.to(tl.float32)[None, :], ACTIVATION)
    if rows.residual is not None:
        b_y += b_residual.to(tl.float32)
    tl.store(rows.y + o_y, b_y.to(dtype), mask=m_y)
    if rows.kept is not None:
        tl.store(rows.kept + o_y, b_y.to(dtype), mask=m_y)
