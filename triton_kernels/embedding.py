"""`embed_norm`: a program looks up a row's token and position, and normalises their sum.

The arithmetic is float32. A number is rounded where it would be written if each step were a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.layers import normed, num_warps_of

# weight, shift and epsilon; a norm without a shift is a root-mean-square norm
NormParts = tuple[Tensor, Tensor | None, float]


@triton.jit
def row_of(p_table, row, num_rows, size, o_x, m_x):
    """Load a row of a table [num_rows, size]; one that there is not is zero."""
    m_row = m_x & (row >= 0) & (row < num_rows)
    return tl.load(p_table + row.to(tl.int64) * size + o_x, mask=m_row, other=0.0).to(tl.float32)


@one_variant(layout=["size"], anywhere=["p_token", "p_place"])
def embed_norm_kernel(
    p_states,
    p_out,
    p_token,
    p_place,
    p_table,
    p_positions,
    p_own_weight,
    p_own_shift,
    p_weight,
    p_shift,
    num_tokens,
    num_positions,
    size,
    scale,
    skipped_token,
    own_epsilon,
    epsilon,
    BLOCK: tl.constexpr,
):
    """The own norm is that of embeddings, the other one is that before the first layer."""
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    o_x = tl.arange(0, BLOCK)
    m_x = o_x < size
    token, place = tl.load(p_token + i_row), tl.load(p_place + i_row)
    dtype = p_states.dtype.element_ty
    b_x = scale * row_of(p_table, token, num_tokens, size, o_x, m_x)
    if p_positions is not None:
        # a skipped token's positions are the second half of the table
        is_skipped = (token == skipped_token) & (token >= 0)
        place += tl.where(is_skipped, num_positions // 2, 0)
        b_x += row_of(p_positions, place, num_positions, size, o_x, m_x)
    b_x = b_x.to(dtype)
    if p_own_weight is not None:
        b_wide = b_x.to(tl.float32)
        b_x = normed(b_wide, o_x, m_x, p_own_weight, p_own_shift, size, own_epsilon).to(dtype)
    tl.store(p_states + i_row * size + o_x, b_x, mask=m_x)
    if p_weight is not None:
        b_out = normed(b_x.to(tl.float32), o_x, m_x, p_weight, p_shift, size, epsilon)
        tl.store(p_out + i_row * size + o_x, b_out, mask=m_x)


# the parameters are those of `Backend.embed_norm`
def embed_norm(
    token: Tensor,
    place: Tensor,
    table: Tensor,
    position_table: Tensor,
    scale: float,
    skipped_id: int,
    norms: Sequence[NormParts | None],
) -> tuple[Tensor, Tensor]:
    """`pybeam.backends.Backend.embed_norm`."""
    assert table.is_contiguous() and position_table.is_contiguous()
    (own_weight, own_shift, own_epsilon), (weight, shift, epsilon) = (
        (None, None, 0.0) if norm is None else norm for norm in norms
    )
    num_rows, size = token.shape[0], table.shape[1]
    states = position_table.new_empty(num_rows, size)
    out = states if weight is None else states.new_empty(num_rows, size)
    if states.numel():
        block = triton.next_power_of_2(size)
        embed_norm_kernel[(num_rows,)](
            states,
            out,
            token.contiguous(),
            place.contiguous(),
            table,
            position_table if len(position_table) else None,
            own_weight,
            own_shift,
            weight,
            shift,
            table.shape[0],
            position_table.shape[0],
            size,
            scale,
            skipped_id,
            own_epsilon,
            epsilon,
            BLOCK=block,
            num_warps=num_warps_of(block),
        )
    return states, out
