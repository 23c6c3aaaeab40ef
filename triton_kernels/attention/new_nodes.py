"""Keys and values that attention reads, of new nodes too, which the same launch writes to their cells.

Rows of a source may see each other's nodes. So every program takes a new node's key and value from where the
model has left them, and none from a cell that another program is writing.
"""

from typing import NamedTuple

import triton
import triton.language as tl


class Pools(NamedTuple):
    """Keys and values of one head: pointers and strides. Those of new nodes stand in lines of their own."""

    key: tl.tensor
    value: tl.tensor
    key_stride: tl.tensor
    value_stride: tl.tensor
    new_key: tl.tensor
    new_value: tl.tensor
    new_key_stride: tl.tensor
    new_value_stride: tl.tensor
    new_cell: tl.tensor  # where new nodes go
    are_wide: tl.constexpr  # whether each line of keys or values begins at a multiple of 16 bytes


@triton.jit
def new_cell_of(o_new, pools, row_end):
    """The cells of these rows' new nodes, -1 for rows that there are not."""
    if pools.new_key is not None:
        b_cell = tl.load(pools.new_cell + o_new, mask=(o_new >= 0) & (o_new < row_end), other=-1)
    else:
        b_cell = o_new
    return b_cell


@triton.jit
def lines_of(pools, b_cell, b_new_cell, o_new):
    """Where the keys and the values of nodes lie: with row `o_new` if that is the node, else in the cell."""
    o_cell = b_cell.to(tl.int64)
    p_key = pools.key + o_cell * pools.key_stride
    p_value = pools.value + o_cell * pools.value_stride
    if pools.new_key is not None:
        m_new = b_new_cell == b_cell
        o_new = o_new.to(tl.int64)
        p_key = tl.where(m_new, pools.new_key + o_new * pools.new_key_stride, p_key)
        p_value = tl.where(m_new, pools.new_value + o_new * pools.new_value_stride, p_value)
        if pools.are_wide:
            # from 3.8 on Triton forgets that of two pointers when it takes one of them
            p_key = tl.multiple_of(p_key, [16] * len(p_key.shape))
            p_value = tl.multiple_of(p_value, [16] * len(p_value.shape))
    return p_key, p_value


@triton.jit
def write_nodes(pools, o_row, m_row, m_d, num_pool_cells, BLOCK_D: tl.constexpr):
    """Write keys and values of these rows to their cells, for one head; a row without a cell is dropped."""
    o_d = tl.arange(0, BLOCK_D)[None, :]
    b_cell = tl.load(pools.new_cell + o_row, mask=m_row, other=-1).to(tl.int64)
    m_write = (m_row & (b_cell >= 0) & (b_cell < num_pool_cells))[:, None] & m_d
    b_cell, o_row = b_cell[:, None], o_row.to(tl.int64)[:, None]
    # the three reads wait for memory together
    m_line = m_row[:, None] & m_d
    b_key = tl.load(pools.new_key + o_row * pools.new_key_stride + o_d, mask=m_line)
    b_value = tl.load(pools.new_value + o_row * pools.new_value_stride + o_d, mask=m_line)
    tl.store(pools.key + b_cell * pools.key_stride + o_d, b_key, mask=m_write)
    tl.store(pools.value + b_cell * pools.value_stride + o_d, b_value, mask=m_write)
