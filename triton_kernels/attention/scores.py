"""How attention turns products of queries and keys into scores."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import LOG2_E


class Rules(NamedTuple):
    """How products become scores; see `Distances`. A bias is a pointer, the rest are numbers."""

    scale: tl.tensor
    soft_cap: tl.tensor
    bias: tl.tensor
    bias_size: tl.tensor
    bias_origin: tl.tensor
    window: tl.tensor


class Query(NamedTuple):
    """The rows of a tile: blocks, and a pointer."""

    numbers: tl.tensor
    m_d: tl.tensor  # which of a line's numbers there are
    head: tl.tensor
    position: tl.tensor
    cell_position: tl.tensor  # of all cells of the pool


@triton.jit
def capped(b_score, cap):
    """``cap * tanh(score / cap)``; a score far beyond the cap becomes the cap."""
    return cap - 2 * cap / (1 + tl.exp2(b_score * (2 * LOG2_E / cap)))


@triton.jit
def logits_of(
    b_product,
    m_sees,
    b_back,  # positions from each cell to its row; without bias and window anything
    o_head,  # with an axis for cells
    rules,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Logits to base 2 of products [rows, cells], -inf where a row does not see a cell."""
    if HAS_CAP:
        b_logit = capped(b_product * rules.scale, rules.soft_cap) * LOG2_E
    else:
        b_logit = b_product * (rules.scale * LOG2_E)
    if rules.bias is not None:
        o_column = tl.minimum(tl.maximum(b_back + rules.bias_origin, 0), rules.bias_size - 1)
        b_logit += tl.load(rules.bias + o_head * rules.bias_size + o_column) * LOG2_E
    if HAS_WINDOW:
        m_sees = m_sees & (b_back >= 0) & (b_back < rules.window)
    return tl.where(m_sees, b_logit, -float("inf"))


@triton.jit
def finite_or_zero(b_peak):
    """Return what to subtract from logits: the peak, or 0 for a row that has seen nothing."""
    return tl.where(b_peak == -float("inf"), 0.0, b_peak)
