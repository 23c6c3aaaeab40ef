"""The part of tree attention that reads paths: every row gathers the few cells of its own."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def finite_or_zero(b_peak):
    """Return what to subtract from logits: the peak, or 0 for a row that has seen nothing."""
    return tl.where(b_peak == -float("inf"), 0.0, b_peak)


@triton.jit
def add_paths(
    p_line,  # [BLOCK_M], the paths of the rows
    length,
    p_cell,  # behind the cells that all rows see
    num_own,
    p_key,
    p_value,
    key_cell_stride,
    value_cell_stride,
    b_query,
    scale,
    b_peak,
    b_total,
    b_sum,
    m_d,
    BLOCK_D: tl.constexpr,
):
    """Add the cells of the rows' paths to their peak, total weight and weighted sum."""
    o_d = tl.arange(0, BLOCK_D)[None, :]
    b_query = b_query.to(tl.float32)
    for t in range(0, length):
        b_place = tl.load(p_line + t)
        m_sees = (b_place >= 0) & (b_place < num_own)
        m_row = m_sees[:, None] & m_d
        o_cell = tl.load(p_cell + b_place, mask=m_sees, other=0).to(tl.int64)
        o_key = (o_cell * key_cell_stride)[:, None] + o_d
        b_key = tl.load(p_key + o_key, mask=m_row, other=0.0).to(tl.float32)
        b_logit = tl.sum(b_query * b_key, 1) * (scale * LOG2_E)
        b_logit = tl.where(m_sees, b_logit, -float("inf"))
        b_new_peak = tl.maximum(b_peak, b_logit)
        b_shift = finite_or_zero(b_new_peak)
        b_weight = tl.exp2(b_logit - b_shift)
        b_scale = tl.exp2(b_peak - b_shift)
        o_value = (o_cell * value_cell_stride)[:, None] + o_d
        b_value = tl.load(p_value + o_value, mask=m_row, other=0.0).to(tl.float32)
        b_sum = b_sum * b_scale[:, None] + b_weight[:, None] * b_value
        b_total = b_total * b_scale + b_weight
        b_peak = b_new_peak
    return b_peak, b_total, b_sum
