"""Rows as E4M3 numbers and a scale each, in one launch: the formula of `pybeam.models.float8`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

LARGEST = tl.constexpr(448.0)  # number of this dtype
NAN = tl.constexpr(0x7F)
# the least number with a full mantissa; below it numbers are multiples of 2**-9
LEAST_NORMAL = tl.constexpr(0.015625)
# float32 numbers from this one on are multiples of 2**-9
STEPS = tl.constexpr(16384.0)
MOST_COLUMNS = 4096  # that a program holds at once


@triton.jit
def e4m3_of(b_x):
    """The bits of float32 numbers as E4M3, to nearest, ties to even. Numbers are LARGEST at most."""
    b_bits = b_x.to(tl.int32, bitcast=True)
    b_sign = (b_bits >> 24) & 0x80
    b_size = tl.abs(b_x)
    b_bits = b_bits & 0x7FFFFFFF
    # three of 23 bits of the mantissa stay, and the exponent counts from -7 on, not from -127
    b_normal = ((b_bits + 0x7FFFF + ((b_bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # the sum is rounded to such a multiple
    b_steps = (b_size + STEPS).to(tl.int32, bitcast=True) & 0xFF
    b_code = tl.where(b_size < LEAST_NORMAL, b_steps, b_normal)
    return b_sign | tl.where(b_x == b_x, b_code, NAN)


@one_variant()
def round_kernel(p_out, p_scale, p_x, row_stride, num_columns, BLOCK: tl.constexpr):
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    b_largest = tl.zeros([BLOCK], tl.float32)
    b_has_nan = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_columns, BLOCK):
        o_column = start + tl.arange(0, BLOCK)
        m_column = o_column < num_columns
        b_x = tl.load(p_x + i_row * row_stride + o_column, mask=m_column, other=0.0).to(tl.float32)
        b_has_nan |= (b_x != b_x).to(tl.int32)
        b_largest = tl.maximum(b_largest, tl.abs(b_x))
    scale = tl.div_rn(tl.max(b_largest, 0), LARGEST)
    scale = tl.where(scale == 0.0, 1.0, scale)
    # a maximum may pass over a NaN
    scale = tl.where(tl.max(b_has_nan, 0) > 0, float("nan"), scale)
    tl.store(p_scale + i_row, scale)
    for start in range(0, num_columns, BLOCK):
        o_column = start + tl.arange(0, BLOCK)
        m_column = o_column < num_columns
        b_x = tl.load(p_x + i_row * row_stride + o_column, mask=m_column, other=0.0).to(tl.float32)
        b_code = e4m3_of(tl.div_rn(b_x, tl.zeros([BLOCK], tl.float32) + scale))
        tl.store(p_out + i_row * num_columns + o_column, b_code.to(tl.uint8), mask=m_column)


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [n, in] as E4M3 p and a scale [n] float32, ``x ~ p * scale``."""
    if x.stride(1) != 1:
        x = x.contiguous()
    num_rows, num_columns = x.shape
    out = torch.empty(num_rows, num_columns, dtype=torch.uint8, device=x.device)
    scale = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        block = min(MOST_COLUMNS, triton.next_power_of_2(max(num_columns, 128)))
        round_kernel[(num_rows,)](
            out,
            scale,
            x,
            x.stride(0),
            num_columns,
            BLOCK=block,
            num_warps=max(1, min(8, block // 256)),
        )
    return out.view(torch.float8_e4m3fn), scale
