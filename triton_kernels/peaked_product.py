"""`peaked_product`: rows times a matrix, and what `select` wants of the result, in one kernel.

The logits of a step are written once and read once, to find a few of them. Here the program that makes them
leaves the largest of every `GROUP` columns beside them, and what the sum of their exponentials needs. So who
selects reads these few numbers, and only the groups that may have a survivor (`csrc/cuda/select_peaked.cu`).

A program has a tile of rows and columns, and goes through the depth. Programs of all rows of some columns
stand side by side, so that their weights come from memory once.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, can_begin_early, one_variant

# neighbouring columns whose largest number is a peak
GROUP = tl.constexpr(64)
# the peaks of a row are padded to a multiple of it
PEAKS = tl.constexpr(128)


class Peaked(NamedTuple):
    """Logits, and what their product has left of them.

    Attributes:
        logits: [n, out], whose rows are padded to whole groups.
        peaks: [n, groups, padded] float32, the largest of each group; -inf behind the last one.
        totals: [n, tiles, 2] float32, the largest of a tile of columns, and the sum of exp(logit - largest).
    """

    logits: Tensor
    peaks: Tensor
    totals: Tensor


@triton.jit
def leave_peaks(
    b_y,
    p_peaks,
    p_totals,
    o_row,
    o_column,
    m_row,
    num_columns,
    num_peaks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the peaks and totals of a tile of logits."""
    GROUPS: tl.constexpr = COLUMNS // GROUP
    i_tile, num_tiles = tl.program_id(1), tl.num_programs(1)
    b_y = tl.where((o_column < num_columns)[None, :], b_y.to(tl.float32), float("-inf"))
    b_peak = tl.max(tl.reshape(b_y, [ROWS, GROUPS, GROUP]), 2)
    p_row = p_peaks + o_row.to(tl.int64)[:, None] * num_peaks
    o_group = i_tile * GROUPS + tl.arange(0, GROUPS)
    tl.store(p_row + o_group[None, :], b_peak, mask=m_row[:, None])
    b_largest = tl.max(b_peak, 1)
    b_least = tl.where(b_largest == float("-inf"), 0.0, b_largest)
    b_sum = tl.sum(tl.exp(b_y - b_least[:, None]), 1)
    p_total = p_totals + (o_row.to(tl.int64) * num_tiles + i_tile) * 2
    tl.store(p_total, b_largest, mask=m_row)
    tl.store(p_total + 1, b_sum, mask=m_row)
    if i_tile == num_tiles - 1:
        o_behind = num_tiles * GROUPS + tl.arange(0, PEAKS)
        m_behind = m_row[:, None] & (o_behind < num_peaks)[None, :]
        tl.store(p_row + o_behind[None, :], float("-inf"), mask=m_behind)


@one_variant(layout=["depth", "x_stride", "y_stride"])
def peaked_product_kernel(
    p_y,
    p_peaks,
    p_totals,
    p_x,
    p_weight,
    p_bias,
    num_rows,
    num_columns,
    num_peaks,
    depth,
    x_stride,
    y_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    await_kernels()
    o_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o_column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    o_depth = tl.arange(0, DEPTH)
    m_row, m_column = o_row < num_rows, o_column < num_columns
    p_x += o_row.to(tl.int64)[:, None] * x_stride + o_depth[None, :]
    p_weight += o_column.to(tl.int64)[:, None] * depth + o_depth[None, :]
    b_y = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in tl.range(0, depth, DEPTH, num_stages=STAGES):
        m_depth = (o_depth < depth - begin)[None, :]
        b_x = tl.load(p_x + begin, mask=m_row[:, None] & m_depth, other=0.0)
        b_weight = tl.load(p_weight + begin, mask=m_column[:, None] & m_depth, other=0.0)
        b_y = tl.dot(b_x, tl.trans(b_weight), b_y)
    if p_bias is not None:
        b_y += tl.load(p_bias + o_column, mask=m_column, other=0.0).to(tl.float32)[None, :]
    b_y = b_y.to(p_y.dtype.element_ty)
    # rows are padded, so that many columns are written at once
    p_y += o_row.to(tl.int64)[:, None] * y_stride + o_column[None, :]
    tl.store(p_y, b_y, mask=m_row[:, None] & (o_column < y_stride)[None, :])
    places = o_row, o_column, m_row, num_columns, num_peaks
    leave_peaks(b_y, p_peaks, p_totals, *places, ROWS, COLUMNS)


class Tile(NamedTuple):
    """Rows, columns and numbers of the depth that a program multiplies at once, how many of these are on
    their way, and warps."""

    rows: int
    columns: int
    depth: int
    num_stages: int
    num_warps: int


def tile_of(num_rows: int, num_columns: int, is_hopper: bool = True) -> Tile:
    """Choose the tile: with few rows many bytes of weights on their way, with many rows large tiles.

    Before compute capability 9.0 the largest ones do not fit the registers.
    """
    if num_rows <= 64:
        columns = 64 if num_columns < 132 * 128 else 128
        return Tile(max(16, triton.next_power_of_2(num_rows)), columns, 64, 4, 4)
    return Tile(128, 256 if num_rows > 128 and is_hopper else 128, 64, 3, 8)


def peaked_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, tile: Tile | None = None
) -> Peaked:
    """Compute ``x W^T + b`` [n, out] with the peaks of its groups and the totals of its tiles.

    Args:
        x: [n, in] in bfloat16 or float16, at least one row, whose numbers lie side by side.
        weight: W [out, in], which lies in one piece.
        bias: [out].
        tile: how it is divided among programs; by default what is expected to be fast.
    """
    assert x.stride(1) == 1 and weight.is_contiguous() and weight.dtype == x.dtype
    (num_rows, depth), num_columns = x.shape, len(weight)
    tile = tile or tile_of(num_rows, num_columns, can_begin_early())
    num_tiles = triton.cdiv(num_columns, tile.columns)
    num_groups = num_tiles * (tile.columns // GROUP.value)
    num_peaks = triton.cdiv(num_groups, PEAKS.value) * PEAKS.value
    y = x.new_empty(num_rows, triton.cdiv(num_columns, GROUP.value) * GROUP.value)
    peaks = x.new_empty(num_rows, num_peaks, dtype=torch.float32)
    totals = x.new_empty(num_rows, num_tiles, 2, dtype=torch.float32)
    peaked_product_kernel[triton.cdiv(num_rows, tile.rows), num_tiles](
        y,
        peaks,
        totals,
        x,
        weight,
        bias,
        num_rows,
        num_columns,
        num_peaks,
        depth,
        x.stride(0),
        y.stride(0),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        STAGES=tile.num_stages,
        num_warps=tile.num_warps,
    )
    return Peaked(y[:, :num_columns], peaks, totals)
