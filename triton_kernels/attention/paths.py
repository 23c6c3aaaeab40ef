"""The part of tree attention that reads paths: every row gathers the few cells of its own."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.new_nodes import lines_of, new_cell_of
from pybeam.triton_kernels.attention.scores import finite_or_zero, logits_of


class Paths(NamedTuple):
    """The paths of rows: pointers, then numbers."""

    place: tl.tensor  # [BLOCK_M]
    cell: tl.tensor  # behind the cells that all rows see
    length: tl.tensor
    num_cells: tl.tensor
    first_new: tl.tensor  # what to add to a place for its row
    row_end: tl.tensor


@triton.jit
def add_paths(
    paths,
    pools,
    query,
    rules,
    state,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Add the cells of the rows' paths to their peak, total weight and weighted sum."""
    b_peak, b_total, b_sum = state
    o_d = tl.arange(0, BLOCK_D)[None, :]
    b_query = query.numbers.to(tl.float32)
    for t in range(0, paths.length):
        b_place = tl.load(paths.place + t)
        m_sees = ((b_place >= 0) & (b_place < paths.num_cells))[:, None]
        b_place = tl.minimum(tl.maximum(b_place, 0), paths.num_cells - 1)
        o_cell = tl.load(paths.cell + b_place).to(tl.int64)[:, None]
        o_new = (paths.first_new + b_place)[:, None]
        b_new_cell = new_cell_of(o_new, pools, paths.row_end)
        p_key, p_value = lines_of(pools, o_cell, b_new_cell, o_new)
        b_key = tl.load(p_key + o_d, mask=m_sees & query.m_d, other=0.0)
        b_product = tl.sum(b_query * b_key.to(tl.float32), 1)[:, None]
        b_back = b_product
        if (rules.bias is not None) or HAS_WINDOW:
            b_back = query.position[:, None] - tl.load(query.cell_position + o_cell)
        b_logit = logits_of(
            b_product, m_sees, b_back, query.head[:, None], rules, HAS_CAP, HAS_WINDOW
        )
        b_new_peak = tl.maximum(b_peak, tl.max(b_logit, 1))
        b_shift = finite_or_zero(b_new_peak)
        b_weight = tl.exp2(b_logit - b_shift[:, None])
        b_scale = tl.exp2(b_peak - b_shift)
        b_value = tl.load(p_value + o_d, mask=m_sees & query.m_d, other=0.0)
        b_sum = b_sum * b_scale[:, None] + b_weight * b_value.to(tl.float32)
        b_total = b_total * b_scale + tl.sum(b_weight, 1)
        b_peak = b_new_peak
    return b_peak, b_total, b_sum
