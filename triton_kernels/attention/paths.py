"""The part of tree attention that reads paths: every row gathers the few cells of its own."""

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.new_nodes import is_new, lines_of
from pybeam.triton_kernels.attention.scores import finite_or_zero, logits_of


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
    p_new_key,
    p_new_value,
    p_new_cell,
    new_key_row_stride,
    new_value_row_stride,
    first_new,
    p_cell_position,
    b_query,
    b_position,
    o_head,
    scale,
    soft_cap,
    p_bias,
    bias_size,
    bias_origin,
    window,
    b_peak,
    b_total,
    b_sum,
    m_d,
    HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_NEW: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Add the cells of the rows' paths to their peak, total weight and weighted sum."""
    o_d = tl.arange(0, BLOCK_D)[None, :]
    b_query = b_query.to(tl.float32)
    for t in range(0, length):
        b_place = tl.load(p_line + t)
        m_sees = ((b_place >= 0) & (b_place < num_own))[:, None]
        b_place = tl.minimum(tl.maximum(b_place, 0), num_own - 1)
        o_cell = tl.load(p_cell + b_place).to(tl.int64)[:, None]
        p_key_line = p_key + o_cell * key_cell_stride
        p_value_line = p_value + o_cell * value_cell_stride
        if HAS_NEW:
            o_new = (first_new + b_place)[:, None]
            m_new = is_new(p_new_cell, o_new, o_cell)
            p_key_line = lines_of(
                p_key, p_new_key, o_cell, o_new, m_new, key_cell_stride, new_key_row_stride
            )
            p_value_line = lines_of(
                p_value, p_new_value, o_cell, o_new, m_new, value_cell_stride, new_value_row_stride
            )
        b_key = tl.load(p_key_line + o_d, mask=m_sees & m_d, other=0.0)
        b_product = tl.sum(b_query * b_key.to(tl.float32), 1)[:, None]
        b_back = b_product
        if HAS_BIAS or HAS_WINDOW:
            b_back = b_position[:, None] - tl.load(p_cell_position + o_cell)
        b_logit = logits_of(
            b_product,
            m_sees,
            b_back,
            o_head,
            scale,
            soft_cap,
            p_bias,
            bias_size,
            bias_origin,
            window,
            HAS_CAP,
            HAS_BIAS,
            HAS_WINDOW,
        )
        b_new_peak = tl.maximum(b_peak, tl.max(b_logit, 1))
        b_shift = finite_or_zero(b_new_peak)
        b_weight = tl.exp2(b_logit - b_shift[:, None])
        b_scale = tl.exp2(b_peak - b_shift)
        b_value = tl.load(p_value_line + o_d, mask=m_sees & m_d, other=0.0)
        b_sum = b_sum * b_scale[:, None] + b_weight * b_value.to(tl.float32)
        b_total = b_total * b_scale + tl.sum(b_weight, 1)
        b_peak = b_new_peak
    return b_peak, b_total, b_sum
