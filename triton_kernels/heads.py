"""`turn_heads`: a program has a row and some heads of it, of queries and of keys alike.

A head's two halves are read once and written where they were. The arithmetic is float32, whatever the dtype
of the numbers, but a norm is rounded to that before it is turned, as if it had been written and read again.
"""

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# of halves of heads: what a program has, and a warp, whose threads take 16 bytes of bfloat16 at once
PROGRAM_NUMBERS, WARP_NUMBERS = 1024, 256


@one_variant(layout=["row_stride"])
def turn_heads_kernel(
    p_x,
    p_query_weight,
    p_key_weight,
    p_position,
    p_cos,
    p_sin,
    num_heads,
    num_all,
    num_positions,
    row_stride,
    query_epsilon,
    key_epsilon,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
):
    await_kernels()
    i_row, o_head = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    o_x, is_query = tl.arange(0, BLOCK), o_head < num_heads
    m_x = (o_head < num_all)[:, None] & (o_x < HALF)[None, :]
    p_head = p_x + i_row * row_stride + o_head[:, None] * SIZE
    p_a = p_head + o_x[None, :]
    p_b = p_a + HALF
    b_a = tl.load(p_a, mask=m_x, other=0.0).to(tl.float32)
    b_b = tl.load(p_b, mask=m_x, other=0.0).to(tl.float32)
    if p_cos is not None:
        # on their way while the norm is computed
        position = tl.load(p_position + i_row).to(tl.int64)
        m_angle = m_x & (position >= 0) & (position < num_positions)
        # each thread takes those of its numbers
        o_angle = position * HALF + 0 * o_head[:, None] + o_x[None, :]
        b_cos = tl.load(p_cos + o_angle, mask=m_angle, other=0.0)
        b_sin = tl.load(p_sin + o_angle, mask=m_angle, other=0.0)
    if p_query_weight is not None:
        dtype = p_x.dtype.element_ty
        p_weight = tl.where(is_query[:, None], p_query_weight, p_key_weight) + o_x[None, :]
        b_sum = tl.sum(b_a * b_a + b_b * b_b, 1)
        if REST > 0:
            o_rest = tl.arange(0, REST) + 2 * HALF
            m_rest = (o_head < num_all)[:, None] & (o_rest < SIZE)[None, :]
            b_rest = tl.load(p_head + o_rest[None, :], mask=m_rest, other=0.0).to(tl.float32)
            b_sum += tl.sum(b_rest * b_rest, 1)
        epsilon = tl.where(is_query, query_epsilon, key_epsilon)
        b_scale = (1.0 / tl.sqrt(b_sum / SIZE + epsilon))[:, None]
        b_weight = tl.load(p_weight, mask=m_x, other=0.0).to(tl.float32)
        b_a = (b_a * b_scale * b_weight).to(dtype).to(tl.float32)
        b_weight = tl.load(p_weight + HALF, mask=m_x, other=0.0).to(tl.float32)
        b_b = (b_b * b_scale * b_weight).to(dtype).to(tl.float32)
        if REST > 0:
            p_weight = tl.where(is_query[:, None], p_query_weight, p_key_weight) + o_rest[None, :]
            b_weight = tl.load(p_weight, mask=m_rest, other=0.0).to(tl.float32)
            tl.store(p_head + o_rest[None, :], b_rest * b_scale * b_weight, mask=m_rest)
    if p_cos is not None:
        b_turned = b_a * b_cos - b_b * b_sin
        b_b = b_b * b_cos + b_a * b_sin
        b_a = b_turned
    tl.store(p_a, b_a, mask=m_x)
    tl.store(p_b, b_b, mask=m_x)


def turn_heads(
    heads: Tensor,
    num_heads: int,
    norms: Sequence[Any] | None,
    angles: tuple[Tensor, Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """`pybeam.backends.torch_heads.turn_heads`, without layer norms. The results lie where the heads lay."""
    num_rows, num_all, size = heads.shape
    assert heads.stride()[1:] == (size, 1), "heads of a row lie one behind another"
    found = heads[:, :num_heads], heads[:, num_heads:]
    if not num_rows:
        return found
    position, cos, sin = angles or (None, None, None)
    half = size // 2 if cos is None else cos.shape[1]
    query_norm, key_norm = norms or [(None, None, 0.0)] * 2
    block, rest = triton.next_power_of_2(max(half, 1)), 0
    if norms is not None and size > 2 * half:
        rest = triton.next_power_of_2(size - 2 * half)
    own = min(triton.next_power_of_2(num_all), max(1, PROGRAM_NUMBERS // max(block, rest)))
    turn_heads_kernel[num_rows, triton.cdiv(num_all, own)](
        *(heads, query_norm[0], key_norm[0], position, cos, sin),
        *(num_heads, num_all, 0 if cos is None else len(cos), heads.stride(0)),
        *(query_norm[2], key_norm[2]),
        SIZE=size,
        HALF=half,
        HEADS=own,
        BLOCK=block,
        REST=rest,
        num_warps=min(4, max(1, own * max(block, rest) // WARP_NUMBERS)),
    )
    return found
