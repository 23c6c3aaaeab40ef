"""Keys and values of new nodes in tree attention, which one launch reads and writes to their cells.

Rows of a source may see each other's nodes. So every program takes a new node's key and value from where the
model has left them, and none from a cell that another program is writing.
"""

import triton
import triton.language as tl


@triton.jit
def is_new(p_new_cell, o_row, b_cell):
    """Whether these cells hold the nodes of these rows; rows before the first are none."""
    return tl.load(p_new_cell + o_row, mask=o_row >= 0, other=-1) == b_cell


@triton.jit
def lines_of(p_pool, p_new, b_cell, o_row, m_new, cell_stride, row_stride):
    """Where the key or value of each node lies: with the rows if it is new, else in its cell."""
    o_row = o_row.to(tl.int64)
    return tl.where(m_new, p_new + o_row * row_stride, p_pool + b_cell * cell_stride)


@triton.jit
def write_nodes(
    p_key,
    p_value,
    p_new_key,
    p_new_value,
    p_new_cell,
    o_row,
    m_row,
    m_d,
    key_cell_stride,
    value_cell_stride,
    new_key_row_stride,
    new_value_row_stride,
    num_pool_cells,
    BLOCK_D: tl.constexpr,
):
    """Write keys and values of these rows to their cells, for one head; a row without a cell is dropped."""
    o_d = tl.arange(0, BLOCK_D)[None, :]
    b_cell = tl.load(p_new_cell + o_row, mask=m_row, other=-1).to(tl.int64)
    m_write = (m_row & (b_cell >= 0) & (b_cell < num_pool_cells))[:, None] & m_d
    b_cell, o_row = b_cell[:, None], o_row.to(tl.int64)[:, None]
    b_key = tl.load(p_new_key + o_row * new_key_row_stride + o_d, mask=m_write)
    tl.store(p_key + b_cell * key_cell_stride + o_d, b_key, mask=m_write)
    b_value = tl.load(p_new_value + o_row * new_value_row_stride + o_d, mask=m_write)
    tl.store(p_value + b_cell * value_cell_stride + o_d, b_value, mask=m_write)
