"""`prompt_attention`: rows of prompts see what stands before them; nothing is read back to the host.

A program has some neighbouring rows and a head. It goes through the sources of its rows, and for each through
the cells that the last of its rows sees, in blocks that begin at position 0. So the sums of a row depend on
no other row, but for how many there are: many rows have taller tiles (`variants.prompt_variant_of`).
"""

import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.attention.scores import Rules, finite_or_zero, logits_of
from pybeam.triton_kernels.attention.variants import are_wide, prompt_variant_of
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# behind all offsets and positions
BEYOND = tl.constexpr(1 << 30)


@one_variant(layout=["query_stride", "key_stride", "value_stride", "size"])
def prompt_attention_kernel(
    p_out,
    p_query,
    p_key,
    p_value,
    p_offset,
    p_slot,
    p_cell,
    p_position,
    p_bias,
    num_rows,
    num_sources,
    num_columns,
    query_stride,
    key_stride,
    value_stride,
    group,
    size,
    bias_size,
    window,
    scale,
    soft_cap,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    ARE_ODD: tl.constexpr,  # heads, whose size is no multiple of 16, though their lines begin at 16 bytes
    ROWS: tl.constexpr,
    SOURCES: tl.constexpr,
    CELLS: tl.constexpr,
    SIZE: tl.constexpr,
):
    await_kernels()
    if ARE_ODD:
        # Triton looks for multiples of 16 numbers alone
        UNIT: tl.constexpr = 128 // p_query.dtype.element_ty.primitive_bitwidth
        query_stride = query_stride // UNIT * UNIT
        key_stride = key_stride // UNIT * UNIT
        value_stride = value_stride // UNIT * UNIT
        size = size // UNIT * UNIT
    head, num_heads = tl.program_id(1), tl.num_programs(1)
    o_row, o_d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    o_source = tl.arange(0, SOURCES)
    b_end = tl.load(p_offset + 1 + o_source, mask=o_source < num_sources, other=BEYOND)
    b_source = tl.sum((b_end[None, :] <= o_row[:, None]).to(tl.int32), 1)
    m_row = (o_row < num_rows) & (b_source < num_sources)
    b_position = tl.load(p_position + o_row, mask=m_row, other=0)
    p_own = p_query + o_row.to(tl.int64)[:, None] * query_stride + head * size
    m_d = o_d < size
    b_query = tl.load(p_own + o_d[None, :], mask=m_row[:, None] & m_d[None, :], other=0.0)
    rules = Rules(scale, soft_cap, p_bias, bias_size, 0, window)
    b_peak = tl.full([ROWS], -float("inf"), tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    b_out = tl.zeros([ROWS, SIZE], tl.float32)
    last = tl.max(tl.where(m_row, b_source, -1), 0)
    for source in range(tl.min(tl.where(m_row, b_source, BEYOND), 0), last + 1):
        m_own = m_row & (b_source == source)
        num_seen = tl.max(tl.where(m_own, b_position, -1), 0) + 1
        first = 0
        if HAS_WINDOW:
            first = tl.min(tl.where(m_own, b_position, BEYOND), 0) + 1 - window
            first = tl.maximum(first, 0) // CELLS * CELLS
        p_line = p_cell + tl.load(p_slot + source).to(tl.int64) * num_columns
        for start in range(first, num_seen, CELLS):
            o_cell = start + tl.arange(0, CELLS)
            m_cell = o_cell < num_seen
            b_cell = tl.load(p_line + o_cell, mask=m_cell, other=0).to(tl.int64)
            m_kept = m_cell[:, None] & m_d[None, :]
            o_kept = head // group * size + o_d[None, :]
            b_key = tl.load(p_key + b_cell[:, None] * key_stride + o_kept, mask=m_kept, other=0.0)
            b_value = tl.load(
                p_value + b_cell[:, None] * value_stride + o_kept, mask=m_kept, other=0.0
            )
            b_product = tl.dot(b_query, tl.trans(b_key.to(b_query.dtype)), input_precision="ieee")
            b_back = b_position[:, None] - o_cell[None, :]
            m_sees = m_own[:, None] & (b_back >= 0)
            b_logit = logits_of(b_product, m_sees, b_back, head, rules, HAS_CAP, HAS_WINDOW)
            b_most = tl.maximum(b_peak, tl.max(b_logit, 1))
            b_shift = finite_or_zero(b_most)
            b_weight = tl.exp2(b_logit - b_shift[:, None])
            b_left = tl.exp2(b_peak - b_shift)
            b_peak, b_sum = b_most, b_sum * b_left + tl.sum(b_weight, 1)
            b_mixed = tl.dot(
                b_weight.to(b_query.dtype), b_value.to(b_query.dtype), input_precision="ieee"
            )
            b_out = b_out * b_left[:, None] + b_mixed
    b_out /= tl.where(m_row, b_sum, 1.0)[:, None]
    o_out = (o_row.to(tl.int64) * num_heads + head)[:, None] * size + o_d[None, :]
    m_out = (o_row < num_rows)[:, None] & m_d[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_out)


def prompt_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offset: Tensor,
    slot: Tensor,
    cell: Tensor,
    num_cells: Tensor,
    position: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    bias: Tensor | None = None,
) -> Tensor:
    """`pybeam.backends.torch_layers.prompt_attention`, but for float64."""
    num_rows, num_heads, size = query.shape
    out = query.new_empty(query.shape)
    if not out.numel():
        return out
    query, key, value = (_with_heads_together(one) for one in (query, key, value))
    variant = prompt_variant_of(num_rows, num_heads, size, query.itemsize, query.device)
    num_sources = slot.numel()
    prompt_attention_kernel[triton.cdiv(num_rows, variant.ROWS), num_heads](
        out,
        query,
        key,
        value,
        offset,
        slot,
        cell.contiguous(),
        position,
        None if bias is None else bias.contiguous(),
        num_rows,
        num_sources,
        cell.shape[1],
        query.stride(0),
        key.stride(0),
        value.stride(0),
        num_heads // key.shape[1],
        size,
        0 if bias is None else bias.shape[1],
        window,
        scale,
        soft_cap,
        HAS_CAP=soft_cap != 0,
        HAS_WINDOW=window != 0,
        ARE_ODD=size % 16 != 0 and key.dtype == query.dtype and are_wide(query, key, value),
        SOURCES=triton.next_power_of_2(max(1, num_sources)),
        **variant._asdict(),
    )
    return out


def _with_heads_together(x: Tensor) -> Tensor:
    """Return x [n, heads, D] whose heads stand one behind another in each line."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
