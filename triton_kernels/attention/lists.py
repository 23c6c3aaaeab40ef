"""A source's list of nodes: attention reads it before it can read keys and values."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.attention.new_nodes import new_cell_of


class Lists(NamedTuple):
    """The list of one source: pointers, then numbers."""

    cell: tl.tensor  # [max_cells]
    mask: tl.tensor  # [max_cells, words]
    max_cells: tl.tensor
    num_cells: tl.tensor  # that the rows read together
    first_new: tl.tensor  # what to add to a place for its row
    row_end: tl.tensor


class Nodes(NamedTuple):
    """A block of nodes, as the list has them."""

    cell: tl.tensor
    new_cell: tl.tensor  # that of the new node of the row that the place would be
    words: tl.tuple  # of their masks


@triton.jit
def nodes_at(o_n, lists, pools, MASK_WORDS: tl.constexpr):
    """Read the list at these places. Beyond its end cells are anything, and masks are 0."""
    # cells are needed first, so these reads do not wait for the length of the list
    b_cell = tl.load(lists.cell + o_n, mask=o_n < lists.max_cells, other=0)
    words = ()  # type: tuple
    for w in tl.static_range(MASK_WORDS):
        p_word = lists.mask + o_n.to(tl.int64) * MASK_WORDS + w
        words += (tl.load(p_word, mask=o_n < lists.num_cells, other=0),)
    return Nodes(b_cell, new_cell_of(lists.first_new + o_n, pools, lists.row_end), words)


@triton.jit
def bits_of(b_entry, MASK_WORDS: tl.constexpr):
    """The words in which only the bit of each row's entry is set."""
    bits = ()  # type: tuple
    for w in tl.static_range(MASK_WORDS):
        b_bit = tl.full(b_entry.shape, 1, tl.int64) << (b_entry % 64).to(tl.int64)
        bits += (tl.where(b_entry // 64 == w, b_bit, 0),)
    return bits


@triton.jit
def sees(words, bits, m_n, MASK_WORDS: tl.constexpr, ROWS: tl.constexpr):
    """Whether the masks of the nodes have the bits of the rows, which stand along axis ROWS."""
    m_sees = tl.expand_dims(m_n, ROWS)
    if MASK_WORDS > 0:
        b_seen = tl.expand_dims(words[0], ROWS) & tl.expand_dims(bits[0], 1 - ROWS)
        for w in tl.static_range(1, MASK_WORDS):
            b_seen |= tl.expand_dims(words[w], ROWS) & tl.expand_dims(bits[w], 1 - ROWS)
        m_sees = b_seen != 0
    return m_sees
