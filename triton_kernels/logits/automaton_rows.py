"""`automaton_columns` and `automaton_logits`: what may follow rows, in columns or in all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.contracts import ColumnRules, Normalise
from pybeam.triton_kernels.arithmetic import exp_shifted
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.logits.automata import (
    FAILURE,
    FINAL,
    OTHER,
    OTHER_WEIGHT,
    Automata,
    Places,
    edges_of,
    fits,
    given,
    lower_bounds,
    number_of,
    walk,
    weight_of,
)
from pybeam.triton_kernels.logits.parts import part_of
from pybeam.triton_kernels.select.options import MAX_EOS, ends

MAX_BLOCK = 1024
FORBIDDEN = tl.constexpr(-float("inf"))


@triton.jit
def has_bit(p_words, b_node, m_node):
    return ((tl.load(p_words + b_node // 32, mask=m_node, other=0) >> (b_node % 32)) & 1) != 0


@triton.jit
def allowed_logits(
    p_row, automata, p_alive, line, begin, end, start, IS_TREE: tl.constexpr, BLOCK: tl.constexpr
):
    """Load the logits of edges from begin + start on, -inf where they may not follow."""
    b_edge = begin + start + tl.arange(0, BLOCK)
    m_edge = b_edge < end
    if IS_TREE:
        m_edge = m_edge & has_bit(p_alive, b_edge + 1, m_edge)
    else:
        b_target = tl.load(automata.edge + b_edge, mask=m_edge, other=-1)
        m_edge = fits(automata, b_target, line, m_edge)
    b_token = tl.load(automata.token + b_edge, mask=m_edge, other=0)
    return tl.load(p_row + b_token, mask=m_edge, other=FORBIDDEN).to(tl.float32)


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
    p_edge,
    p_numbers,
    p_node,
    p_line,
    num_edges,
    num_inner,
    num_words,
    num_columns,
    vocab_size,
    row_stride,
    eos_id,
    IS_TREE: tl.constexpr,
    EOS_FIRST: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: log-probabilities of EOS and of the tokens that may follow."""
    await_kernels()
    automata = Automata(p_token, p_first, p_edge, p_numbers, num_edges, num_inner)
    row = tl.program_id(0).to(tl.int64)
    node = tl.load(p_node + row)
    line = tl.load(p_line + row)
    begin, end = edges_of(automata, node)
    p_row = p_logits + row * row_stride
    eos_weight = 0.0
    p_alive = p_edge
    if IS_TREE:
        p_alive = p_edge + line.to(tl.int64) * 2 * num_words
        m_end = (node >= 0) & has_bit(p_alive + num_words, node, node >= 0)
    else:
        eos_weight = weight_of(automata, tl.maximum(node, 0), FINAL)
        m_end = (node >= 0) & (eos_weight > FORBIDDEN)
    eos = tl.load(p_row + eos_id, mask=m_end, other=FORBIDDEN).to(tl.float32)
    b_lane = tl.arange(0, BLOCK)
    b_peak = tl.full([BLOCK], FORBIDDEN, tl.float32)
    b_sum = tl.zeros([BLOCK], tl.float32)
    if NORMALISE == 1:
        for start in range(0, vocab_size, BLOCK):
            m_token = start + b_lane < vocab_size
            b_x = tl.load(p_row + start + b_lane, mask=m_token, other=FORBIDDEN)
            b_peak, b_sum = add_exp(b_x.to(tl.float32), b_peak, b_sum)
    if NORMALISE == 2:
        b_peak, b_sum = add_exp(tl.where(b_lane == 0, eos, FORBIDDEN), b_peak, b_sum)
        for start in range(0, num_columns, BLOCK):
            b_x = allowed_logits(p_row, automata, p_alive, line, begin, end, start, IS_TREE, BLOCK)
            b_peak, b_sum = add_exp(b_x, b_peak, b_sum)
    peak = tl.max(b_peak, 0)
    total = tl.sum(b_sum * exp_shifted(b_peak, peak), 0)
    # a row that allows nothing stays -inf, and one that is not normalised as it is
    is_empty = peak == FORBIDDEN
    peak = tl.where(is_empty, 0.0, peak)
    log_sum = tl.log(tl.where(is_empty, 1.0, total))
    p_own = p_out + row * (num_columns + 1)
    eos = (eos - peak) - log_sum
    tl.store(p_own + (0 if EOS_FIRST else num_columns), eos if IS_TREE else eos + eos_weight)
    p_own += 1 if EOS_FIRST else 0
    for start in range(0, num_columns, BLOCK):
        b_x = allowed_logits(p_row, automata, p_alive, line, begin, end, start, IS_TREE, BLOCK)
        b_x = (b_x - peak) - log_sum
        m_column = start + b_lane < num_columns
        if not IS_TREE:
            b_edge = begin + start + b_lane
            p_weight = automata.edge + num_edges + b_edge
            b_weight = tl.load(p_weight, mask=m_column & (b_edge < end), other=0)
            b_x = b_x + b_weight.to(tl.float32, bitcast=True)
        tl.store(p_own + start + b_lane, b_x, mask=m_column)


@triton.jit
def shape_few(p_row, automata, state, room, final, first, last, eos, BLOCK: tl.constexpr):
    """Forbid tokens from `first` up to `last` but the edges of a state that has no more than a block holds.

    The logits of edges are read before anything is written: no token is looked up.
    """
    begin, end = edges_of(automata, state)
    b_edge = begin + tl.arange(0, BLOCK)
    m_edge = b_edge < end
    b_own = tl.load(automata.token + b_edge, mask=m_edge, other=0)
    m_edge = m_edge & (b_own >= first) & (b_own < last) & (ends(b_own, eos) == 0)
    b_target = tl.load(automata.edge + b_edge, mask=m_edge, other=-1)
    m_edge = fits(automata, b_target, room, m_edge)
    p_weight = automata.edge + automata.num_edges + b_edge
    b_weight = tl.load(p_weight, mask=m_edge, other=0).to(tl.float32, bitcast=True)
    m_edge = m_edge & (b_weight > FORBIDDEN)
    b_logit = tl.load(p_row + b_own, mask=m_edge, other=0.0) + b_weight
    tl.debug_barrier()
    for start in range(first, last, BLOCK):
        b_token = start + tl.arange(0, BLOCK)
        m_token = b_token < last
        b_final = tl.where(ends(b_token, eos), final, FORBIDDEN)
        m_end = m_token & (b_final > FORBIDDEN)
        b_rest = tl.load(p_row + b_token, mask=m_end, other=0.0) + b_final
        tl.store(p_row + b_token, b_rest, mask=m_token)
    tl.debug_barrier()
    tl.store(p_row + b_own, b_logit, mask=m_edge)


@triton.jit
def shape_any(p_row, automata, state, room, final, b_token, m_token, eos, BLOCK: tl.constexpr):
    """Look tokens up in a state, and in those to look further in."""
    b_target = b_token * 0 - 1
    b_weight = tl.zeros([BLOCK], tl.float32)
    m_open = m_token
    added = 0.0
    while state >= 0:
        begin, end = edges_of(automata, state)
        b_edge = lower_bounds(automata, begin, end, b_token)
        m_there = m_open & (b_edge < end)
        m_there = m_there & (tl.load(automata.token + b_edge, mask=m_there, other=-1) == b_token)
        b_target = tl.load(automata.edge + b_edge, mask=m_there, other=b_target)
        p_weight = automata.edge + automata.num_edges + b_edge
        b_own = tl.load(p_weight, mask=m_there, other=0).to(tl.float32, bitcast=True)
        b_weight = tl.where(m_there, added + b_own, b_weight)
        m_open = m_open & (m_there == 0)
        added += weight_of(automata, state, OTHER_WEIGHT)
        other = number_of(automata, state, OTHER)
        state = number_of(automata, state, FAILURE)
        m_other = m_open & (state < 0)
        b_target = tl.where(m_other, other, b_target)
        b_weight = tl.where(m_other, added, b_weight)
    m_allowed = fits(automata, b_target, room, m_token)
    b_weight = tl.where(m_allowed, b_weight, FORBIDDEN)
    b_weight = tl.where(ends(b_token, eos), final, b_weight)
    b_logit = tl.load(p_row + b_token, mask=m_token, other=0.0)
    # a token that is forbidden is so whatever its logit is
    b_logit = tl.where(b_weight == FORBIDDEN, FORBIDDEN, b_logit + b_weight)
    tl.store(p_row + b_token, b_logit, mask=m_token)


@one_variant(layout=["vocab_size", "row_stride"])
def logits_kernel(
    p_logits,
    p_token,
    p_first,
    p_edge,
    p_numbers,
    p_parent,
    p_state,
    p_row_slot,
    p_node,
    p_row_token,
    p_position,
    p_line,
    p_prefix_length,
    p_max_length,
    num_edges,
    num_inner,
    max_nodes,
    limit_stride,
    vocab_size,
    part_size,
    row_stride,
    eos_0,
    eos_1,
    eos_2,
    eos_3,
    eos_4,
    eos_5,
    eos_6,
    eos_7,
    BLOCK: tl.constexpr,
):
    """A part of the tokens of one row, as its state says.

    Every program of a row finds its state, and the first one notes it.
    """
    await_kernels()
    eos = (eos_0, eos_1, eos_2, eos_3, eos_4, eos_5, eos_6, eos_7)
    automata = Automata(p_token, p_first, p_edge, p_numbers, num_edges, num_inner)
    places = Places(
        p_parent,
        p_state,
        p_row_slot,
        p_node,
        p_row_token,
        p_position,
        p_line,
        p_prefix_length,
        p_max_length,
        max_nodes,
        limit_stride,
    )
    row = tl.program_id(0).to(tl.int64)
    state, room = walk(automata, places, row, tl.program_id(1) == 0, False)
    first = tl.program_id(1) * part_size
    last = tl.minimum(first + part_size, vocab_size)
    p_row = p_logits + row * row_stride
    final = weight_of(automata, tl.maximum(state, 0), FINAL)
    final = tl.where(state < 0, FORBIDDEN, final)
    inner = tl.maximum(state, 0)
    begin, end = edges_of(automata, inner)
    others = tl.maximum(number_of(automata, inner, FAILURE), number_of(automata, inner, OTHER))
    if (state >= 0) & (others < 0) & (end - begin <= BLOCK):
        shape_few(p_row, automata, state, room, final, first, last, eos, BLOCK)
    else:
        for start in range(first, last, BLOCK):
            b_token = start + tl.arange(0, BLOCK)
            shape_any(p_row, automata, state, room, final, b_token, b_token < last, eos, BLOCK)


def automaton_columns(
    arrays: Sequence[Tensor], logits: Tensor, node: Tensor, line: Tensor, rules: ColumnRules
) -> Tensor:
    """See `pybeam.backends.torch_automata.automaton_columns`."""
    own, is_tree = given(arrays)
    token, first, edge, _ = own
    eos_id, eos_first, num_columns, normalise = rules
    if num_columns == 0:
        inner = node.long().clamp(-1, first.numel() - 2)
        count = torch.where(inner == node, first[inner + 1] - first[inner.clamp(min=0)], 0)
        num_columns = max(1, int(count.clamp(min=0).max()) if node.numel() else 0)
    out = torch.empty(node.numel(), num_columns + 1, device=node.device)
    # sums go by lanes, whose number must not change when a longer list comes
    num_lanes = max(64, triton.next_power_of_2(num_columns))
    block = min(MAX_BLOCK, num_lanes) if normalise == Normalise.NOTHING else MAX_BLOCK
    if node.numel():
        columns_kernel[(node.numel(),)](
            out,
            logits,
            *own,
            node.contiguous(),
            line.contiguous(),
            token.numel(),
            first.numel() - 1,
            edge.shape[1] // 2,
            num_columns,
            logits.shape[1],
            logits.stride(0),
            eos_id,
            IS_TREE=is_tree,
            EOS_FIRST=eos_first,
            NORMALISE=normalise,
            BLOCK=block,
        )
    return out


# the parameters are the arrays of a step, which kernels take one by one
def automaton_logits(
    logits: Tensor,
    arrays: Sequence[Tensor],
    parent: Tensor,
    state: Tensor,
    row_slot: Tensor,
    node: Tensor,
    token: Tensor,
    position: Tensor,
    line: Tensor,
    prefix_length: Tensor,
    max_length: Tensor,
    eos_ids: Sequence[int],
) -> None:
    """See `pybeam.backends.torch_automata.automaton_logits`."""
    num_rows, vocab_size = logits.shape
    if not logits.numel():
        return
    rows = [one.contiguous() for one in (row_slot, node, token, position)]
    part_size = part_of(num_rows, vocab_size, MAX_BLOCK)
    logits_kernel[(num_rows, triton.cdiv(vocab_size, part_size))](
        logits,
        *arrays,
        parent,
        state,
        *rows,
        line,
        prefix_length,
        max_length,
        arrays[0].numel(),
        arrays[1].numel() - 1,
        state.shape[1],
        prefix_length.stride(0),
        vocab_size,
        part_size,
        logits.stride(0),
        *eos_ids,
        *[eos_ids[0]] * (MAX_EOS.value - len(eos_ids)),
        BLOCK=MAX_BLOCK,
        num_warps=8,
    )
