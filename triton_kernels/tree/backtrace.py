"""`backtrace`: one program per hypothesis walks from its node to the root."""

import triton
import triton.language as tl

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant


@triton.jit
def parent_of(p_parent, node):
    """Load a node's parent, or -1 if the parent does not come before the node, so that every walk ends."""
    parent = tl.load(p_parent + node)
    return tl.where(parent < node, parent, -1)


@one_variant(anywhere=["p_slot", "p_node", "p_length_out"])
def backtrace_kernel(
    p_token,
    p_parent,
    p_slot,
    p_node,
    p_tokens_out,
    p_length_out,
    num_slots,
    num_nodes,
    capacity,
    BLOCK: tl.constexpr,
):
    await_kernels()
    i_hypothesis = tl.program_id(0).to(tl.int64)
    i_slot = tl.load(p_slot + i_hypothesis).to(tl.int64)
    node = tl.load(p_node + i_hypothesis)
    is_inside = (i_slot >= 0) & (i_slot < num_slots) & (node < num_nodes)
    node = tl.where(is_inside, node, -1)
    p_token += i_slot * num_nodes
    p_parent += i_slot * num_nodes
    p_tokens_out += i_hypothesis * capacity

    length = 0
    ancestor = node
    while ancestor >= 0:
        length += 1
        ancestor = parent_of(p_parent, ancestor)
    tl.store(p_length_out + i_hypothesis, length)
    column = length - 1
    while node >= 0:
        tl.store(p_tokens_out + column, tl.load(p_token + node), mask=column < capacity)
        node = parent_of(p_parent, node)
        column -= 1
    for start in range(0, capacity, BLOCK):
        o_column = start + tl.arange(0, BLOCK)
        m_column = (o_column >= length) & (o_column < capacity)
        tl.store(p_tokens_out + o_column, -1, mask=m_column)
