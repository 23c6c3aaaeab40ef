"""`automaton_places` in one launch: programs forbid parts of a beam's rows, and the last one divides places.

A program reads some columns of all rows of a beam, notes the best token of each row among them, and leaves
nothing but NaN and +inf. The last program of a beam lists the continuations that compete, finds their places
by counting those before them, and writes those that get one. Results do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam import arguments
from pybeam.triton_kernels.counters import counters
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.logits.automata import NEEDED, NEVER, NUMBERS, OTHER, Automata, edges_of
from pybeam.triton_kernels.select.kernel import arrives_last
from pybeam.triton_kernels.select.keys import EMPTY, index_of, key_of
from pybeam.triton_kernels.select.options import MAX_EOS, ends

BLOCK = tl.constexpr(1024)  # columns that are read at once
OWN = tl.constexpr(128)  # continuations that are handled at once
OTHERS = tl.constexpr(16)  # that they are compared with at once
MOST_PARTS = 32
# numbers of a continuation, in lists of their own: two are floats
ROW, TOKEN, MISSING, TURN, SCORE, GAIN = (tl.constexpr(i) for i in range(6))
LISTS = tl.constexpr(6)
FORBIDDEN = tl.constexpr(-float("inf"))


class Beam(NamedTuple):
    """A beam: numbers, then pointers to what is known of its rows and of its slot."""

    begin: tl.tensor
    end: tl.tensor
    places: tl.tensor
    state: tl.tensor  # of nodes
    child: tl.tensor
    score: tl.tensor  # of entries
    node: tl.tensor
    entry: tl.tensor
    log_probs: tl.tensor
    row_stride: tl.tensor
    first: tl.tensor  # [R, parts] int64
    num_parts: tl.tensor
    num_children: tl.tensor


@triton.jit
def needed_by(automata, b_state, m_state):
    """The fewest tokens from these states to an end."""
    p_needed = automata.state + b_state.to(tl.int64) * NUMBERS + NEEDED
    return tl.load(p_needed, mask=m_state & (b_state >= 0), other=NEVER)


@triton.jit
def states_of(beam, b_row, m_row):
    b_node = tl.load(beam.node + b_row, mask=m_row, other=0)
    return tl.load(beam.state + b_node, mask=m_row, other=-1)


@triton.jit
def edge_of(automata, beam, b_state, i_child, m_row):
    """Return the tokens and targets of the edges with this number; -1: there is none."""
    m_inner = m_row & (b_state >= 0)
    b_begin = tl.load(automata.first + b_state, mask=m_inner, other=0)
    b_end = tl.load(automata.first + b_state + 1, mask=m_inner, other=0)
    b_number = tl.load(beam.child + i_child, mask=m_inner, other=-1)
    b_edge = b_begin + b_number
    m_edge = m_inner & (b_number >= 0) & (b_edge < b_end)
    b_token = tl.load(automata.token + b_edge, mask=m_edge, other=-1)
    return b_token, tl.load(automata.edge + b_edge, mask=m_edge, other=-1)


@triton.jit
def list_continuations(automata, beam, p_list, size, o_place, b_row, b_token, m_token):
    """Write these continuations to their places in the lists; a turn of -1 says that there is none."""
    b_state = states_of(beam, b_row, m_token)
    p_logit = beam.log_probs + b_row.to(tl.int64) * beam.row_stride + b_token
    b_gain = tl.load(p_logit, mask=m_token, other=FORBIDDEN)
    b_entry = tl.load(beam.entry + b_row, mask=m_token, other=0)
    b_score = tl.load(beam.score + b_entry, mask=m_token, other=0.0) + b_gain
    m_token = m_token & (b_score > FORBIDDEN)
    p_other = automata.state + b_state.to(tl.int64) * NUMBERS + OTHER
    b_target = tl.load(p_other, mask=m_token & (b_state >= 0), other=-1)
    for i_child in range(beam.num_children):
        b_own, b_next = edge_of(automata, beam, b_state, i_child + o_place * 0, m_token)
        b_target = tl.where(m_token & (b_own == b_token), b_next, b_target)
    p_own = p_list + o_place
    tl.store(p_own + ROW * size, b_row, mask=o_place < size)
    tl.store(p_own + TOKEN * size, b_token, mask=o_place < size)
    b_missing = needed_by(automata, b_target, m_token)
    tl.store(p_own + MISSING * size, b_missing, mask=o_place < size)
    tl.store(p_own + TURN * size, tl.where(m_token, 0, -1), mask=o_place < size)
    tl.store(p_own + SCORE * size, b_score.to(tl.int32, bitcast=True), mask=o_place < size)
    tl.store(p_own + GAIN * size, b_gain.to(tl.int32, bitcast=True), mask=o_place < size)


@triton.jit
def list_best(automata, beam, p_list, size, p_token, p_parent, num_best):
    """List the best continuations of all rows, of which those of held hypotheses are none."""
    num_before = num_best * 0
    for start in range(0, num_best, OWN):
        o_place = start + tl.arange(0, OWN)
        m_best = o_place < num_best
        b_token = tl.load(p_token + o_place, mask=m_best, other=-1)
        b_parent = tl.load(p_parent + o_place, mask=m_best, other=-1)
        b_row = o_place * 0 - 1
        for row in range(beam.begin, beam.end):
            b_row = tl.where(tl.load(beam.entry + row) == b_parent, row, b_row)
        m_there = m_best & (b_token >= 0) & (b_row >= 0)
        b_number = num_before + tl.cumsum(m_there.to(tl.int32), 0)
        num_before += tl.sum(m_there.to(tl.int32), 0)
        m_there = m_there & (b_number <= beam.places)
        o_list = tl.where(m_best, o_place, size)
        list_continuations(automata, beam, p_list, size, o_list, b_row, b_token, m_there)


@triton.jit
def list_own(automata, beam, p_list, size, num_best, num_eos, eos):
    """List the best of each row, all that are nearer to what is missing, and every end, each once."""
    num_own = beam.num_children + 1 + num_eos
    num_all = (beam.end - beam.begin) * num_own
    for start in range(0, num_all, OWN):
        o_place = start + tl.arange(0, OWN)
        m_there = o_place < num_all
        b_row = beam.begin + tl.where(m_there, o_place // num_own, 0)
        b_kind = o_place % num_own
        b_state = states_of(beam, b_row, m_there)
        b_before = needed_by(automata, b_state, m_there)
        b_key = tl.full([OWN], EMPTY, tl.int64)
        for part in range(beam.num_parts):
            p_first = beam.first + b_row.to(tl.int64) * beam.num_parts + part
            b_key = tl.maximum(b_key, tl.load(p_first, mask=m_there, other=EMPTY))
        b_first = tl.where(b_key > EMPTY, index_of(b_key), -1)
        m_first = b_kind == beam.num_children
        b_token = tl.where(m_first, b_first, -1)
        for i_child in range(beam.num_children):
            b_own, b_target = edge_of(automata, beam, b_state, i_child + o_place * 0, m_there)
            m_nearer = (b_own >= 0) & (ends(b_own, eos) == 0)
            m_nearer = m_nearer & (needed_by(automata, b_target, m_there) < b_before)
            b_token = tl.where(m_nearer & (b_kind == i_child), b_own, b_token)
            b_token = tl.where(m_nearer & m_first & (b_own == b_first), -1, b_token)
        for i in tl.static_range(MAX_EOS):
            m_eos = (b_kind == beam.num_children + 1 + i) & (i < num_eos)
            b_token = tl.where(m_eos, eos[i], b_token)
        for i in range(num_best):
            is_there = tl.load(p_list + TURN * size + i) >= 0
            row, token = tl.load(p_list + ROW * size + i), tl.load(p_list + TOKEN * size + i)
            b_token = tl.where(is_there & (b_row == row) & (b_token == token), -1, b_token)
        o_list = tl.where(m_there, num_best + o_place, size)
        m_there = m_there & (b_token >= 0)
        list_continuations(automata, beam, p_list, size, o_list, b_row, b_token, m_there)
    return num_best + num_all


@triton.jit
def numbers_of(p_list, size, o_place, m_place, LIST: tl.constexpr):
    return tl.load(p_list + LIST * size + o_place, mask=m_place, other=-1)


@triton.jit
def floats_of(p_list, size, o_place, m_place, LIST: tl.constexpr):
    return numbers_of(p_list, size, o_place, m_place, LIST).to(tl.float32, bitcast=True)


@triton.jit
def find_turns(p_list, size, num_all):
    """Note how many better continuations miss as many tokens as each does."""
    for start in range(0, num_all, OWN):
        o_own = start + tl.arange(0, OWN)
        m_own = o_own < num_all
        b_missing = numbers_of(p_list, size, o_own, m_own, MISSING)
        b_row = numbers_of(p_list, size, o_own, m_own, ROW)
        b_token = numbers_of(p_list, size, o_own, m_own, TOKEN)
        b_score = floats_of(p_list, size, o_own, m_own, SCORE)
        b_gain = floats_of(p_list, size, o_own, m_own, GAIN)
        b_turn = tl.zeros([OWN], tl.int32)
        for begin in range(0, num_all, OTHERS):
            o_other = (begin + tl.arange(0, OTHERS))[:, None]
            m_other = o_other < num_all
            row = numbers_of(p_list, size, o_other, m_other, ROW)
            score = floats_of(p_list, size, o_other, m_other, SCORE)
            gain = floats_of(p_list, size, o_other, m_other, GAIN)
            m_tie = gain > b_gain[None, :]
            m_last = numbers_of(p_list, size, o_other, m_other, TOKEN) < b_token[None, :]
            m_tie = m_tie | ((gain == b_gain[None, :]) & m_last)
            m_tie = (row < b_row[None, :]) | ((row == b_row[None, :]) & m_tie)
            m_before = (score > b_score[None, :]) | ((score == b_score[None, :]) & m_tie)
            m_before = m_before & (numbers_of(p_list, size, o_other, m_other, TURN) >= 0)
            missing = numbers_of(p_list, size, o_other, m_other, MISSING)
            m_before = m_before & (missing == b_missing[None, :])
            b_turn += tl.sum(m_before.to(tl.int32), 0)
        m_own = m_own & (numbers_of(p_list, size, o_own, m_own, TURN) >= 0)
        # nobody reads more of a turn than whether it is negative, before all are there
        tl.store(p_list + TURN * size + o_own, b_turn, mask=m_own)


@triton.jit
def write_kept(beam, p_list, size, num_all, eos, p_out):
    """Write the continuations that get a place."""
    for start in range(0, num_all, OWN):
        o_own = start + tl.arange(0, OWN)
        m_own = o_own < num_all
        b_turn = numbers_of(p_list, size, o_own, m_own, TURN)
        b_missing = numbers_of(p_list, size, o_own, m_own, MISSING)
        b_token = numbers_of(p_list, size, o_own, m_own, TOKEN)
        b_ends = ends(b_token, eos)
        b_place = tl.zeros([OWN], tl.int32)
        for begin in range(0, num_all, OTHERS):
            o_other = (begin + tl.arange(0, OTHERS))[:, None]
            m_other = o_other < num_all
            turn = numbers_of(p_list, size, o_other, m_other, TURN)
            m_sooner = numbers_of(p_list, size, o_other, m_other, MISSING) < b_missing[None, :]
            m_before = (turn < b_turn[None, :]) | ((turn == b_turn[None, :]) & m_sooner)
            # what ends takes no place of what goes on
            other_ends = ends(numbers_of(p_list, size, o_other, m_other, TOKEN), eos)
            m_before = m_before & (turn >= 0) & (b_ends[None, :] | (other_ends == 0))
            b_place += tl.sum(m_before.to(tl.int32), 0)
        m_kept = m_own & (b_turn >= 0) & (b_place < beam.places)
        b_row = numbers_of(p_list, size, o_own, m_kept, ROW)
        p_own = p_out + b_row.to(tl.int64) * beam.row_stride + b_token
        tl.store(p_own, floats_of(p_list, size, o_own, m_own, GAIN), mask=m_kept)


@triton.jit
def forbid(automata, beam, row, part, vocab_size, is_behind_prefix, eos, p_out):
    """Write a part of a row, and note its best token; returns whether places are divided in it."""
    state = tl.load(beam.state + tl.load(beam.node + row))
    begin, end = edges_of(automata, state)
    has_edge = state < 0
    for i_child in range(beam.num_children):
        number = tl.load(beam.child + i_child)
        has_edge = has_edge | ((number >= 0) & (begin + number < end))
    is_divided = has_edge & (state >= 0) & is_behind_prefix & (beam.places > 1)
    line = row.to(tl.int64) * beam.row_stride
    key = line * 0 + EMPTY
    for start in range(part * BLOCK, vocab_size, beam.num_parts * BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        m_token = o_token < vocab_size
        b_x = tl.load(beam.log_probs + line + o_token, mask=m_token, other=FORBIDDEN)
        m_first = m_token & (ends(o_token, eos) == 0) & (b_x > FORBIDDEN)
        key = tl.maximum(key, tl.max(tl.where(m_first, key_of(b_x, o_token), EMPTY), 0))
        b_left = tl.where(is_divided & (b_x < float("inf")), FORBIDDEN, b_x)
        tl.store(p_out + line + o_token, b_left, mask=m_token)
    tl.store(beam.first + row.to(tl.int64) * beam.num_parts + part, key)
    return is_divided


@one_variant(layout=["vocab_size"])
def places_kernel(
    p_out,
    p_log_probs,
    p_token,
    p_first,
    p_edge,
    p_numbers,
    p_state,
    p_child,
    p_row_slot,
    p_node,
    p_entry,
    p_position,
    p_offset,
    p_prefix_length,
    p_score,
    p_entries,
    p_width,
    p_best_token,
    p_best_parent,
    p_keys,
    p_lists,
    p_counters,
    num_edges,
    num_inner,
    vocab_size,
    max_nodes,
    num_children,
    limit_stride,
    max_entries,
    num_best,
    num_parts,
    size,
    num_eos,
    eos_0,
    eos_1,
    eos_2,
    eos_3,
    eos_4,
    eos_5,
    eos_6,
    eos_7,
):
    await_kernels()
    eos = (eos_0, eos_1, eos_2, eos_3, eos_4, eos_5, eos_6, eos_7)
    automata = Automata(p_token, p_first, p_edge, p_numbers, num_edges, num_inner)
    i_beam, part = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(p_offset + i_beam), tl.load(p_offset + i_beam + 1)
    entries = tl.load(p_entries + i_beam + 1) - tl.load(p_entries + i_beam)
    places = tl.load(p_width + i_beam) - (entries - (end - begin))
    has_rows = begin < end
    slot = tl.load(p_row_slot + begin, mask=has_rows, other=0).to(tl.int64)
    beam = Beam(
        begin,
        end,
        places,
        p_state + slot * max_nodes,
        p_child + slot * num_children,
        p_score + slot * max_entries,
        p_node,
        p_entry,
        p_log_probs,
        vocab_size,
        p_keys,
        num_parts,
        num_children,
    )
    done = tl.load(p_position + begin, mask=has_rows, other=0)
    is_behind = done >= tl.load(p_prefix_length + slot * limit_stride)
    is_any = has_rows & (begin > end)
    for i_row in range(0, end - begin):
        row = begin + i_row
        is_any = is_any | forbid(automata, beam, row, part, vocab_size, is_behind, eos, p_out)
    if arrives_last(p_counters + i_beam, num_parts):
        if is_any:
            p_list = p_lists + i_beam.to(tl.int64) * size * LISTS
            line = i_beam.to(tl.int64) * num_best
            own = p_best_token + line, p_best_parent + line
            list_best(automata, beam, p_list, size, own[0], own[1], num_best)
            tl.debug_barrier()
            num_all = list_own(automata, beam, p_list, size, num_best, num_eos, eos)
            tl.debug_barrier()
            find_turns(p_list, size, num_all)
            tl.debug_barrier()
            write_kept(beam, p_list, size, num_all, eos, p_out)


def automaton_places(
    log_probs: Tensor,
    arrays: Sequence[Tensor],
    inputs: Any,
    token: Tensor,
    parent: Tensor,
    eos_ids: Sequence[int],
) -> Tensor:
    """See `pybeam.backends.torch_places.automaton_places`; `inputs` are its `PlacesInputs`."""
    num_rows, vocab_size = log_probs.shape
    arguments.eos_ids(eos_ids, vocab_size)
    num_beams, device = inputs.width.numel(), log_probs.device
    out = torch.empty(num_rows, vocab_size, device=device)
    if not (out.numel() and num_beams):
        return out
    num_children, max_entries = inputs.child.shape[1], inputs.score.shape[1]
    num_parts = min(MOST_PARTS, triton.cdiv(vocab_size, BLOCK.value))
    size = token.shape[1] + max_entries * (num_children + 1 + len(eos_ids))
    keys = torch.empty(num_rows, num_parts, dtype=torch.int64, device=device)
    lists = torch.empty(num_beams, LISTS.value, size, dtype=torch.int32, device=device)
    places_kernel[(num_beams, num_parts)](
        out,
        log_probs.contiguous(),
        *arrays,
        *(
            one if name == "prefix_length" else one.contiguous()
            for name, one in zip(inputs._fields, inputs, strict=True)
        ),
        token,
        parent,
        keys,
        lists,
        counters(num_beams, device),
        arrays[0].numel(),
        arrays[1].numel() - 1,
        vocab_size,
        inputs.state.shape[1],
        num_children,
        inputs.prefix_length.stride(0),
        max_entries,
        token.shape[1],
        num_parts,
        size,
        len(eos_ids),
        *eos_ids,
        *[eos_ids[0]] * (MAX_EOS.value - len(eos_ids)),
    )
    return out
