"""The product of a phase: a program has some columns of all rows, and asks for weights before rows."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.layers import activated
from pybeam.triton_kernels.persistent.barrier import await_count
from pybeam.triton_kernels.product import LINES, PACK, normalised, operand, tile_of_lines

# of a product among the addresses of a layer: its norm, then its weights
SCALE, SHIFT, WEIGHT, BIAS, NUM_PARTS = (tl.constexpr(i) for i in range(5))


class Product(NamedTuple):
    """Where the parts of a product lie, and which columns are those of this program."""

    address: tl.tensor  # its `NUM_PARTS` addresses
    first: tl.tensor  # column
    apart: tl.tensor  # columns from a group to the next one


class Rows(NamedTuple):
    """Rows before a product and behind it."""

    y: tl.tensor
    x: tl.tensor
    residual: tl.tensor
    normed: tl.tensor  # where normalised rows are left, for a later residual
    num: tl.tensor
    epsilon: tl.tensor


@triton.jit
def part_of(product, i, dtype: tl.constexpr):
    """A part of a product; all begin at a multiple of 16 bytes."""
    address = tl.multiple_of(tl.load(product.address + i), 16)
    return tl.multiple_of(address.to(tl.pointer_type(dtype)), 16)


@triton.jit
def multiply(
    rows,
    product,
    before,
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
    await_count(before)
    b_x = tile_of_lines(rows.x, 0, rows.num, o_depth, DEPTH, DEPTH, ROWS // LINES)
    if rows.residual is not None:
        b_residual = tl.load(rows.residual + o_y, mask=m_y, other=0.0)
    if HAS_NORM:
        norm = b_scale, b_shift, o_depth, DEPTH, rows.epsilon
        if rows.normed is None:
            b_x = normalised(b_x, *norm, True, PARTS)
        else:
            if num_lines > 0:
                b_x = normalised(b_x, *norm, True, PARTS)
            if product.first == 0:
                store_rows(rows.normed, b_x, rows.num, o_depth, DEPTH, ROWS // LINES)
    b_part = tl.full([PARTS, ROWS, GROUPS * LINES], 0.0, tl.float32)
    b_weight = tl.permute(operand(b_weight, PARTS), 0, 2, 1)
    b_part = tl.dot(operand(b_x, PARTS), b_weight, b_part, input_precision="ieee")
    b_y = activated(tl.sum(b_part, 0) + b_bias.to(tl.float32)[None, :], ACTIVATION)
    if rows.residual is not None:
        b_y += b_residual.to(tl.float32)
    tl.store(rows.y + o_y, b_y.to(dtype), mask=m_y)


@triton.jit
def store_rows(p_x, b_x, num_rows, o_depth, DEPTH: tl.constexpr, GROUPS: tl.constexpr):
    o_row = tl.arange(0, GROUPS)[None, :] * LINES + tl.arange(0, LINES)[:, None]
    m_row = (o_row < num_rows)[:, None, :, None, None]
    p_line = p_x + o_row[:, None, :, None, None] * DEPTH
    o_depth = o_depth[None, :, None, :, :]
    tl.store(p_line + o_depth, b_x, mask=m_row & (o_depth < DEPTH))
