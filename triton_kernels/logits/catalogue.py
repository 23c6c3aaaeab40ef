"""`catalogue_child` and `catalogue_columns`: a catalogue's tree, read for every row of a step."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.contracts import ColumnRules, Normalise
from pybeam.triton_kernels.arithmetic import exp_shifted
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# halvings after which a search among any number of edges has ended
HALVINGS = tl.constexpr(32)
ROWS = 64
MAX_BLOCK = 1024


@triton.jit
def edges_of(p_first, b_node, num_inner):
    """Load the first edge of nodes and the one behind the last."""
    m_inner = (b_node >= 0) & (b_node < num_inner)
    b_begin = tl.load(p_first + b_node, mask=m_inner, other=0)
    return b_begin, tl.load(p_first + b_node + 1, mask=m_inner, other=0)


@one_variant()
def child_kernel(
    p_out, p_token, p_first, p_node, p_given, num_rows, num_inner, BLOCK_ROWS: tl.constexpr
):
    await_kernels()
    o_row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    m_row = o_row < num_rows
    b_given = tl.load(p_given + o_row, mask=m_row, other=-1)
    b_low, b_end = edges_of(p_first, tl.load(p_node + o_row, mask=m_row, other=-1), num_inner)
    b_high = b_end
    for _ in range(HALVINGS):
        m_open = b_low < b_high
        b_middle = b_low + (b_high - b_low) // 2
        m_smaller = tl.load(p_token + b_middle, mask=m_open, other=0) < b_given
        b_high = tl.where(m_open & (m_smaller == 0), b_middle, b_high)
        b_low = tl.where(m_open & m_smaller, b_middle + 1, b_low)
    m_there = b_low < b_end
    m_there = m_there & (tl.load(p_token + b_low, mask=m_there, other=-1) == b_given)
    tl.store(p_out + o_row, tl.where(m_there, b_low + 1, -1), mask=m_row)


@triton.jit
def has_bit(p_words, b_node, m_node):
    return ((tl.load(p_words + b_node // 32, mask=m_node, other=0) >> (b_node % 32)) & 1) != 0


@triton.jit
def allowed_logits(p_row, p_token, p_alive, begin, end, start, BLOCK: tl.constexpr):
    """Load the logits of edges from begin + start on, -inf where a filter enters no such node."""
    b_edge = begin + start + tl.arange(0, BLOCK)
    m_edge = b_edge < end
    m_edge = m_edge & has_bit(p_alive, b_edge + 1, m_edge)
    b_token = tl.load(p_token + b_edge, mask=m_edge, other=0)
    return tl.load(p_row + b_token, mask=m_edge, other=-float("inf")).to(tl.float32)


@triton.jit
def add_exp(b_x, b_peak, b_sum):
    """Update peaks and sums of exp(x - peak), lane by lane."""
    b_new = tl.maximum(b_peak, b_x)
    return b_new, b_sum * exp_shifted(b_peak, b_new) + exp_shifted(b_x, b_new)


@one_variant(layout=["vocab_size", "row_stride"])
def columns_kernel(
    p_out,
    p_logits,
    p_token,
    p_first,
    p_words,
    p_node,
    p_line,
    num_inner,
    num_words,
    num_columns,
    vocab_size,
    row_stride,
    eos_id,
    EOS_FIRST: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: log-probabilities of EOS and of the tokens that may follow."""
    await_kernels()
    row = tl.program_id(0).to(tl.int64)
    node = tl.load(p_node + row)
    begin, end = edges_of(p_first, node, num_inner)
    p_alive = p_words + tl.load(p_line + row).to(tl.int64) * 2 * num_words
    p_row = p_logits + row * row_stride
    m_end = (node >= 0) & has_bit(p_alive + num_words, node, node >= 0)
    eos = tl.load(p_row + eos_id, mask=m_end, other=-float("inf")).to(tl.float32)
    b_lane = tl.arange(0, BLOCK)
    b_peak = tl.full([BLOCK], -float("inf"), tl.float32)
    b_sum = tl.zeros([BLOCK], tl.float32)
    if NORMALISE == 1:
        for start in range(0, vocab_size, BLOCK):
            m_token = start + b_lane < vocab_size
            b_x = tl.load(p_row + start + b_lane, mask=m_token, other=-float("inf"))
            b_peak, b_sum = add_exp(b_x.to(tl.float32), b_peak, b_sum)
    if NORMALISE == 2:
        b_peak, b_sum = add_exp(tl.where(b_lane == 0, eos, -float("inf")), b_peak, b_sum)
        for start in range(0, num_columns, BLOCK):
            b_x = allowed_logits(p_row, p_token, p_alive, begin, end, start, BLOCK)
            b_peak, b_sum = add_exp(b_x, b_peak, b_sum)
    peak = tl.max(b_peak, 0)
    total = tl.sum(b_sum * exp_shifted(b_peak, peak), 0)
    # a row that allows nothing stays -inf, and one that is not normalised as it is
    is_empty = peak == -float("inf")
    peak = tl.where(is_empty, 0.0, peak)
    log_sum = tl.log(tl.where(is_empty, 1.0, total))
    p_own = p_out + row * (num_columns + 1)
    tl.store(p_own + (0 if EOS_FIRST else num_columns), (eos - peak) - log_sum)
    p_own += 1 if EOS_FIRST else 0
    for start in range(0, num_columns, BLOCK):
        b_x = allowed_logits(p_row, p_token, p_alive, begin, end, start, BLOCK)
        m_column = start + b_lane < num_columns
        tl.store(p_own + start + b_lane, (b_x - peak) - log_sum, mask=m_column)


def catalogue_child(arrays: tuple[Tensor, ...], node: Tensor, token: Tensor) -> Tensor:
    """See `pybeam.backends.torch_catalogue.catalogue_child`."""
    edge_token, first, _ = arrays
    out = torch.empty_like(node)
    if node.numel():
        child_kernel[(triton.cdiv(node.numel(), ROWS),)](
            out,
            edge_token,
            first,
            node.contiguous(),
            token.contiguous(),
            node.numel(),
            first.numel() - 1,
            BLOCK_ROWS=ROWS,
        )
    return out


def catalogue_columns(
    arrays: tuple[Tensor, ...], logits: Tensor, node: Tensor, line: Tensor, rules: ColumnRules
) -> Tensor:
    """See `pybeam.backends.Backend.catalogue_columns`."""
    token, first, words = arrays
    eos_id, eos_first, num_columns, normalise = rules
    if num_columns == 0:
        inner = node.long().clamp(-1, first.numel() - 2)
        count = torch.where(inner == node, first[inner + 1] - first[inner.clamp(min=0)], 0)
        num_columns = max(1, int(count.clamp(min=0).max()) if node.numel() else 0)
    out = torch.empty(node.numel(), num_columns + 1, device=node.device)
    # a sum over columns goes by lanes, whose number must not change when a longer list comes
    num_lanes = max(64, triton.next_power_of_2(num_columns))
    block = MAX_BLOCK if normalise == Normalise.COLUMNS else min(MAX_BLOCK, num_lanes)
    if node.numel():
        columns_kernel[(node.numel(),)](
            out,
            logits,
            token,
            first,
            words,
            node.contiguous(),
            line.contiguous(),
            first.numel() - 1,
            words.shape[1] // 2,
            num_columns,
            logits.shape[1],
            logits.stride(0),
            eos_id,
            EOS_FIRST=eos_first,
            NORMALISE=normalise,
            BLOCK=block,
        )
    return out
