"""`automaton_walk`: where the rows of a step are in automata, and how those are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# the columns of `PoolArrays.state`, and how many there are
FAILURE, OTHER, OTHER_WEIGHT, FINAL, NEEDED = (tl.constexpr(i) for i in range(5))
NUMBERS = tl.constexpr(6)
NEVER = tl.constexpr(2**31 - 1)


class Automata(NamedTuple):
    """The arrays of a pool, or of a catalogue's tree: pointers, then numbers."""

    token: tl.tensor
    first: tl.tensor
    # targets and weights of a pool; the words of a tree
    edge: tl.tensor
    state: tl.tensor  # of a pool
    num_edges: tl.tensor
    num_inner: tl.tensor


@triton.jit
def edges_of(automata, state):
    """Load the first edge of a state and the one behind the last."""
    is_inner = (state >= 0) & (state < automata.num_inner)
    begin = tl.load(automata.first + state, mask=is_inner, other=0)
    return begin, tl.load(automata.first + state + 1, mask=is_inner, other=0)


@triton.jit
def number_of(automata, state, COLUMN: tl.constexpr):
    return tl.load(automata.state + state.to(tl.int64) * NUMBERS + COLUMN)


@triton.jit
def weight_of(automata, state, COLUMN: tl.constexpr):
    return number_of(automata, state, COLUMN).to(tl.float32, bitcast=True)


@triton.jit
def fits(automata, b_target, room, m_target):
    """Whether outputs may go on to these states, and end within so many tokens."""
    m_there = m_target & (b_target >= 0)
    b_place = b_target.to(tl.int64) * NUMBERS + NEEDED
    return m_there & (tl.load(automata.state + b_place, mask=m_there, other=NEVER) < room)


@triton.jit
def lower_bounds(automata, begin, end, b_token):
    """Find the first of a state's edges whose token is not smaller, for each of these tokens."""
    b_low = begin + b_token * 0
    b_high = end + b_token * 0
    width = end - begin
    lowest = tl.load(automata.token + begin, mask=width > 0, other=0)
    # the edges of a run are found by their number
    is_run = tl.load(automata.token + end - 1, mask=width > 0, other=0) - lowest == width - 1
    b_number = tl.minimum(tl.maximum(b_token - lowest, 0), width)
    b_low = tl.where(is_run, begin + b_number, b_low)
    width = tl.where(is_run, 0, width)
    while width > 0:
        m_open = b_low < b_high
        b_middle = b_low + (b_high - b_low) // 2
        m_smaller = tl.load(automata.token + b_middle, mask=m_open, other=0) < b_token
        b_high = tl.where(m_open & (m_smaller == 0), b_middle, b_high)
        b_low = tl.where(m_open & m_smaller, b_middle + 1, b_low)
        width = width // 2
    return b_low


@triton.jit
def step(automata, state, token, IS_TREE: tl.constexpr):
    """Return the state that a token leads to, -1: nowhere."""
    target = token * 0 - 1
    while state >= 0:
        begin, end = edges_of(automata, state)
        edge = lower_bounds(automata, begin, end, token)
        is_there = edge < end
        is_there = is_there & (tl.load(automata.token + edge, mask=is_there, other=-1) == token)
        if IS_TREE:
            target = tl.where(is_there, edge + 1, -1)
            state = token * 0 - 1
        else:
            own = tl.load(automata.edge + edge, mask=is_there, other=-1)
            failure = number_of(automata, state, FAILURE)
            other = number_of(automata, state, OTHER)
            target = tl.where(is_there, own, other)
            state = tl.where(is_there, -1, failure)
    return target


class Places(NamedTuple):
    """Where rows stand in token trees, which have a state for every node: pointers, then numbers."""

    parent: tl.tensor
    state: tl.tensor
    row_slot: tl.tensor
    node: tl.tensor
    token: tl.tensor
    position: tl.tensor
    line: tl.tensor
    prefix_length: tl.tensor
    max_length: tl.tensor
    max_nodes: tl.tensor
    limit_stride: tl.tensor


@triton.jit
def walk(automata, places, row, is_noted, IS_TREE: tl.constexpr):
    """Return the state of a row and its line, and note the state if asked to."""
    slot = tl.load(places.row_slot + row).to(tl.int64)
    node = tl.load(places.node + row)
    line = tl.load(places.line + slot)
    limit = slot * places.limit_stride
    done = tl.load(places.position + row) - tl.load(places.prefix_length + limit)
    p_own = places.state + slot * places.max_nodes
    parent = tl.maximum(tl.load(places.parent + slot * places.max_nodes + node), 0)
    moves = (done > 0) if IS_TREE else (done > 0) & (line > 0)
    before = tl.load(p_own + parent, mask=moves, other=-1)
    here = step(automata, before, tl.load(places.token + row), IS_TREE)
    here = tl.where(moves, here, line * 0 if IS_TREE else line)
    tl.store(p_own + node, here, mask=is_noted)
    if not IS_TREE:
        # within the prefix everything is allowed
        here = tl.where(done < 0, 0, here)
        line = tl.load(places.max_length + limit) - done - 1
    return here, line


@one_variant()
def walk_kernel(
    p_out,
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
    num_rows,
    num_edges,
    num_inner,
    max_nodes,
    limit_stride,
    IS_TREE: tl.constexpr,
):
    await_kernels()
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
    row = tl.program_id(0)
    here, line = walk(automata, places, row, row >= 0, IS_TREE)
    tl.store(p_out + row, here)
    tl.store(p_out + num_rows + row, line)


def given(arrays: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], bool]:
    """Return the four arrays that kernels take, and whether they are a tree's, which has three."""
    is_tree = len(arrays) == 3
    return ((*arrays, arrays[2]) if is_tree else (*arrays,)), is_tree


# the parameters are the arrays of a step, which kernels take one by one
def automaton_walk(
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
) -> Tensor:
    """See `pybeam.backends.torch_automata.automaton_walk`."""
    own, is_tree = given(arrays)
    num_rows = node.numel()
    out = node.new_empty(2, num_rows)
    assert prefix_length.stride() == max_length.stride(), "limits are columns of one array"
    if num_rows:
        walk_kernel[(num_rows,)](
            out,
            *own,
            parent,
            state,
            row_slot.contiguous(),
            node.contiguous(),
            token.contiguous(),
            position.contiguous(),
            line,
            prefix_length,
            max_length,
            num_rows,
            own[0].numel(),
            own[1].numel() - 1,
            state.shape[1],
            prefix_length.stride(0),
            IS_TREE=is_tree,
            num_warps=1,
        )
    return out
