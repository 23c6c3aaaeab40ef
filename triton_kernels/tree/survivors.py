"""Parts that the kernels of `tree_append` share: survivors, and the room that their nodes need."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam import contracts

PAGE_CELLS = tl.constexpr(contracts.PAGE_CELLS)


class Numbers(NamedTuple):
    """The token that ends hypotheses, the length of lists of survivors, and the sizes of arrays of a tree."""

    eos_id: tl.tensor
    capacity: tl.tensor
    num_slots: tl.tensor
    max_nodes: tl.tensor
    max_rows: tl.tensor
    max_live: tl.tensor
    max_free: tl.tensor
    max_pages: tl.tensor
    max_path: tl.tensor


# where survivors stand: anywhere in the memory of others
LISTS = ["p_slot", *(f"p_{name}" for name in contracts.Survivors._fields)]


@triton.jit
def ranks_of(survivors, numbers):
    """Return how many survivors of a source have finished, and how many there are."""
    i_source = tl.program_id(0)
    first = tl.load(survivors.num_finished + i_source)
    return first, tl.minimum(tl.load(survivors.count + i_source), numbers.capacity)


@triton.jit
def span_of(numbers, ranks):
    """Return where the survivors of a source that become rows begin, and how many there are."""
    first, count = tl.maximum(ranks[0], 0), ranks[1]
    p_first = tl.program_id(0).to(tl.int64) * numbers.capacity + first
    return p_first, tl.minimum(count - first, numbers.max_rows)


@triton.jit
def survivors_at(survivors, numbers, span, o_row):
    """Return the columns of the survivors of a span that become these rows, or this one.

    Behind them come which of them exist, which go on, and their parents or -1.
    """
    first, num_rows = span
    m_row = o_row < num_rows
    o_survivor = first + o_row
    b_parent = tl.load(survivors.parent + o_survivor, mask=m_row, other=-1)
    b_parent = tl.where((b_parent >= 0) & (b_parent < numbers.max_rows), b_parent, -1)
    m_live = m_row & (tl.load(survivors.token + o_survivor, mask=m_row, other=0) != numbers.eos_id)
    return o_survivor, m_row, m_live, b_parent


@triton.jit
def survivors_anew(survivors, numbers, o_row):
    """Load what `survivors_at` has returned once more, so that no register holds it meanwhile.

    The span is loaded, too: else the compiler would keep all that follows from it.
    """
    span = span_of(numbers, ranks_of(survivors, numbers))
    return survivors_at(survivors, numbers, span, o_row)


@triton.jit
def counts_of(tree, i_slot):
    """Return how many nodes, live nodes, free cells and pages a slot has."""
    return (
        tl.load(tree.num_nodes + i_slot),
        tl.load(tree.num_live + i_slot),
        tl.load(tree.num_free + i_slot),
        tl.load(tree.num_pages + i_slot),
    )
