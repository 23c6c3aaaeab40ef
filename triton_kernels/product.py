"""`product`: rows times a matrix in one launch, with the norm before it and all that stands behind it.

A product of few rows should take as long as its weights take from memory. A program has up to 16 rows and a
few columns of the result over the whole depth, so that no program waits for another. All its weights are on
their way before it looks at a row, and lie in registers as tensor cores want them, so that they pass through
no shared memory. Each warp multiplies a part of the depth, and the parts are added.

The order of a row's sums depends on the shape of the matrix, and on whether rows begin at 16 bytes: a row's
bits depend on no other row, nor on how many there are.

Weights, their scales, the bias and the norm are read before this kernel waits. The kernel that stands right
before this one in its stream must not have written them.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.layers import activated
from pybeam.triton_kernels.narrow import scales_of_groups, stored_tile, widened

# rows and columns of a program are multiples of it
LINES = tl.constexpr(8)
# numbers that four lanes of a warp read at once, eight each
PACK = tl.constexpr(32)


@triton.jit
def tile_of_lines(
    p_x,
    begin,
    num_lines,
    o_depth,
    depth,
    stride,
    GROUPS: tl.constexpr,
    IS_OPERAND: tl.constexpr,
    IS_STREAM: tl.constexpr = False,
):
    """Load [LINES, packs, GROUPS, EIGHTS, PACK] of lines that begin at `begin`; what is not there is 0.

    A stream is the first to leave the L2.
    """
    o_line = begin + tl.arange(0, GROUPS)[None, :] * LINES + tl.arange(0, LINES)[:, None]
    m_line = (o_line < num_lines)[:, None, :, None, None]
    p_line = p_x + o_line.to(tl.int64)[:, None, :, None, None] * stride
    o_depth = o_depth[None, :, None, :, :]
    p_tile = p_line + o_depth
    if IS_OPERAND:
        # Lanes go along lines first, then along packs. Triton takes axes in the order of how many numbers lie
        # side by side, which is 1 for all but the last, and decides such ties forwards, but from 3.8 on
        # backwards. A load goes along the last axis alone, so what is said of others is only their order.
        p_tile = tl.max_contiguous(p_tile, [4, 2, 1, 1, PACK])
    m_tile = m_line & (o_depth < depth)
    if IS_STREAM:
        return tl.load(p_tile, mask=m_tile, other=0.0, eviction_policy="evict_first")
    return tl.load(p_tile, mask=m_tile, other=0.0)


@triton.jit
def operand(b_x, PARTS: tl.constexpr, NEIGHBOURS: tl.constexpr = 2):
    """Return such a tile as [PARTS, lines, depth], in an order of the depth in which no number moves.

    A lane of a tensor core's operand has pairs of numbers at distances of 8, or, as Triton counts where they
    were 8 bits, fours at distances of 16. The eight neighbours that it has read are given to it as those,
    and the other operand is turned alike.
    """
    PACKS: tl.constexpr = b_x.shape[1] // PARTS
    GROUPS: tl.constexpr = b_x.shape[2]
    EIGHTS: tl.constexpr = b_x.shape[3]
    b_x = tl.reshape(b_x, [LINES, PACKS, PARTS, GROUPS, EIGHTS, 4, 8 // NEIGHBOURS, NEIGHBOURS])
    b_x = tl.permute(b_x, 2, 3, 0, 1, 4, 6, 5, 7)
    return tl.reshape(b_x, [PARTS, GROUPS * LINES, PACKS * EIGHTS * PACK])


@triton.jit
def mean_of_rows(b_x, depth, PARTS: tl.constexpr):
    """Return the mean [LINES, 1, GROUPS, 1, 1] of lines of a tile; what one warp has is added first."""
    GROUPS: tl.constexpr = b_x.shape[2]
    EIGHTS: tl.constexpr = b_x.shape[3]
    b_x = tl.reshape(b_x, [LINES, b_x.shape[1] // PARTS, PARTS, GROUPS, EIGHTS, PACK])
    b_sum = tl.sum(tl.sum(tl.sum(tl.sum(b_x, 1), 3), 3), 1)
    return b_sum[:, None, :, None, None] / depth


@triton.jit
def normalised(b_x, b_scale, b_shift, o_depth, depth, epsilon, HAS_SHIFT, PARTS: tl.constexpr):
    """`add_norm`'s norm of a tile of rows."""
    b_wide = b_x.to(tl.float32)
    if HAS_SHIFT:
        b_wide -= mean_of_rows(b_wide, depth, PARTS)
        b_wide = tl.where((o_depth < depth)[None, :, None, :, :], b_wide, 0.0)
    b_wide /= tl.sqrt(mean_of_rows(b_wide * b_wide, depth, PARTS) + epsilon)
    b_wide *= b_scale.to(tl.float32)
    if HAS_SHIFT:
        b_wide += b_shift.to(tl.float32)
    return b_wide.to(b_x.dtype)


@one_variant(layout=["num_columns", "depth", "x_stride"])
def product_kernel(
    p_y,
    p_x,
    p_weight,
    p_weight_scale,
    p_bias,
    p_residual,
    p_scale,
    p_shift,
    num_rows,
    num_columns,
    depth,
    x_stride,
    epsilon,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PACKS: tl.constexpr,
    EIGHTS: tl.constexpr,
    IS_STREAM: tl.constexpr,
):
    first_row, first_column = tl.program_id(1) * ROWS, tl.program_id(0) * COLUMNS
    o_row, o_column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    m_row, m_column = o_row < num_rows, o_column < num_columns
    o_pack = tl.arange(0, PACKS)[:, None] * EIGHTS + tl.arange(0, EIGHTS)[None, :]
    o_depth = o_pack[:, :, None] * PACK + tl.arange(0, PACK)[None, None, :]
    lines = first_column, num_columns
    GROUPS: tl.constexpr = COLUMNS // LINES
    b_weight_scale = 0.0
    if EIGHTS == 1:
        b_weight = tile_of_lines(p_weight, *lines, o_depth, depth, depth, GROUPS, True, IS_STREAM)
    else:
        b_weight = stored_tile(p_weight, *lines, depth, GROUPS, PACKS, IS_STREAM)
    if EIGHTS == 4:
        b_weight_scale = scales_of_groups(p_weight_scale, *lines, depth, GROUPS, PACKS)
    if EIGHTS == 2:
        b_column_scale = tl.load(p_weight_scale + o_column, mask=m_column, other=0.0)
    b_scale = 0.0
    b_shift = 0.0
    if p_scale is not None:
        b_scale = tile_of_lines(p_scale, 0, LINES, o_depth, depth, 0, 1, False)
    if p_shift is not None:
        b_shift = tile_of_lines(p_shift, 0, LINES, o_depth, depth, 0, 1, False)
    if p_bias is not None:
        b_bias = tl.load(p_bias + o_column, mask=m_column, other=0.0)
    await_kernels(IS_FENCE=True)
    b_x = tile_of_lines(p_x, first_row, num_rows, o_depth, depth, x_stride, ROWS // LINES, True)
    o_y = o_row.to(tl.int64)[:, None] * num_columns + o_column[None, :]
    m_y = m_row[:, None] & m_column[None, :]
    if p_residual is not None:
        b_residual = tl.load(p_residual + o_y, mask=m_y, other=0.0)
    # ptxas would mix loads and products, which wait for them: no load moves behind a barrier, and the sums
    # begin with what is only there behind it, though this load is never made
    tl.debug_barrier()
    zero = tl.load(p_x, mask=num_rows < 0, other=0.0).to(tl.float32)
    if p_scale is not None:
        norm = b_scale, b_shift, o_depth, depth, epsilon
        b_x = normalised(b_x, *norm, p_shift is not None, PARTS)
    if EIGHTS > 1:
        b_weight = widened(b_weight, b_weight_scale, b_x.dtype)
    NEIGHBOURS: tl.constexpr = 2 if EIGHTS == 1 else 4
    b_weight = tl.permute(operand(b_weight, PARTS, NEIGHBOURS), 0, 2, 1)
    b_part = tl.full([PARTS, ROWS, COLUMNS], 0.0, tl.float32) + zero
    b_part = tl.dot(operand(b_x, PARTS, NEIGHBOURS), b_weight, b_part, input_precision="ieee")
    b_y = tl.sum(b_part, 0)
    if EIGHTS == 2:
        b_y *= b_column_scale[None, :]
    if p_bias is not None:
        b_y += b_bias.to(tl.float32)[None, :]
    b_y = activated(b_y, ACTIVATION)
    if p_residual is not None:
        b_y += b_residual.to(tl.float32)
    tl.store(p_y + o_y, b_y.to(p_y.dtype.element_ty), mask=m_y)


# numbers of a row whose product, and whose norm before it, fit the registers of a program
MAX_DEPTH = {torch.bfloat16: 4096, torch.float16: 4096, torch.float32: 1024}
MAX_NORMED_DEPTH = 1024
# Microseconds of a kernel in a step of 5 rows in bfloat16, beside cuBLAS's (its sum of parts included) and
# `add_norm`, on an H200 with so many multiprocessors, on 2026-11-26:
#
#   out x in      256 x 256   768 x 256   256 x 1024   1024 x 1024   3072 x 1024   4096 x 1024   1024 x 4096
#   with a sum    1.4                     2.0          2.8                                       5.4
#   with a norm   1.8         2.0                      3.9           6.8           7.1
#   others        2.3 + 1.4   2.7 + 1.4   3.4 + 1.4    5.3 + 1.9     5.0 + 1.9     5.2 + 1.9     6.7 + 1.9
#
# The launch that is saved takes 0.9 more. With 64 rows a first version of this kernel was faster at a depth
# of 256 and slower at 1,024, and it was slower for a vocabulary. float32 was not timed.
PROGRAMS = 132


# Matrices of so many bytes are mostly those of a model that does not fit an L2. Their weights would push out
# of it what is read again: the code of kernels, keys, values and tables.
STREAM_BYTES = 1 << 20

# a matrix [out, in], or what `pybeam.backends.narrow.stored` gives of one in 8 or 4 bits
Weight = Tensor | tuple[Tensor, Tensor]
# numbers of 8 and of 4 bits become wide ones for torch's product, which takes as long as three more of these
MOST_NARROW_ROWS = 64


def takes_product(x: Tensor, weight: Weight, has_norm: bool) -> bool:
    """Whether `product` of x [n, in] and W [out, in] is faster than torch's with kernels around it.

    It is not where a multiprocessor has many programs, because each reads all of its rows again.
    """
    (num_rows, depth), is_narrow = x.shape, isinstance(weight, tuple)
    own, most_rows = weight[0] if isinstance(weight, tuple) else weight, MOST_NARROW_ROWS
    most_columns = len(own)
    if not is_narrow:
        most_rows = 64 if depth <= 256 else 16
        most_columns = PROGRAMS * (32 if depth <= 1024 else 8)
    if x.dtype not in MAX_DEPTH or (not is_narrow and own.dtype != x.dtype):
        return False
    most_depth = MAX_NORMED_DEPTH if has_norm else MAX_DEPTH[x.dtype]
    is_small = num_rows <= most_rows and len(own) <= most_columns and depth <= most_depth
    return is_small and num_rows > 0 and x.stride(1) == 1 and own.is_contiguous()


class Tile(NamedTuple):
    """Rows, columns and warps of a program."""

    rows: int
    columns: int
    num_warps: int


# bytes of weights that four warps hold: so an H100 took 2.4 µs, and with eight warps 2.9, for 1024 x 1024 and
# a norm; 1.5 and 1.7 for 256 x 1024 with a sum. With more, tiles of 16 rows leave their registers.
MOST_BYTES_OF_FOUR = 1 << 14


def tile_of(num_rows: int, num_columns: int, depth: int, num_bytes: int = 2) -> Tile:
    """Choose the tile: programs for all multiprocessors, of few warps, whose sums are to be added.

    Numbers of x have `num_bytes` each.
    """
    columns = 8 if num_columns <= 8 * PROGRAMS else 16
    is_small = columns * depth * num_bytes <= MOST_BYTES_OF_FOUR
    return Tile(8 if num_rows <= 8 else 16, columns, 4 if is_small else 8)


def product(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None,
    activation: int,
    residual: Tensor | None,
    norm: tuple[Tensor, Tensor | None, float] | None,
    *,
    tile: Tile | None = None,
) -> Tensor:
    """Compute ``residual + act(norm(x) W^T + b)`` [n, out], in the memory of the residual if there is one.

    Args:
        x: [n, in], few rows, see `takes_product`.
        weight: W [out, in]. In 8 or 4 bits it is widened in registers, and x stays as it is: sums of 8 bits
            are multiplied by scales of outputs; numbers of 4 bits by scales of groups, rounded to x's dtype.
        bias: [out].
        activation: `pybeam.backends.torch_layers.Activation`.
        residual: [n, out].
        norm: weight, bias and epsilon of a layer norm, or without bias of a root-mean-square norm, as
            `pybeam.backends.torch_layers` computes them; None: rows are multiplied as they are.
        tile: how it is divided among programs; by default what is fast.
    """
    own, weight_scale = weight if isinstance(weight, tuple) else (weight, None)
    (num_rows, depth), num_columns = x.shape, own.shape[0]
    y = x.new_empty(num_rows, num_columns) if residual is None else residual
    if y.numel():
        scale, shift, epsilon = norm or (None, None, 0.0)
        # 8 and 16 rows that are not read in pieces of 16 bytes lie in other lanes, which a norm adds in turn
        is_even = norm is None or not (depth % 16 or x.stride(0) % 16 or x.data_ptr() % 16)
        tile = tile or tile_of(num_rows if is_even else 16, num_columns, depth, x.element_size())
        rows, columns, num_warps = tile
        eights = 1 if weight_scale is None else 2 * weight_scale.ndim
        num_packs = triton.next_power_of_2(triton.cdiv(depth, PACK.value * eights))
        num_packs = max(num_packs, num_warps)
        grid = triton.cdiv(num_columns, columns), triton.cdiv(num_rows, rows)
        product_kernel[grid](
            y,
            x,
            own if own.dtype != torch.float8_e4m3fn else own.view(torch.uint8),
            weight_scale,
            bias,
            residual,
            scale,
            shift,
            num_rows,
            num_columns,
            depth,
            x.stride(0),
            epsilon,
            ACTIVATION=int(activation),
            ROWS=rows,
            COLUMNS=columns,
            PARTS=num_warps,
            PACKS=num_packs,
            EIGHTS=eights,
            IS_STREAM=own.nbytes >= STREAM_BYTES,
            num_warps=num_warps,
        )
    return y
