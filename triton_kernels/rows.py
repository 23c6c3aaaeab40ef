"""`gather_rows` and `scatter_rows`: rows of any dtype, copied as words of 1, 2 or 4 bytes."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

WORDS = {4: tl.int32, 2: tl.int16, 1: tl.int8}
TILE_WORDS = 4096
# with more rows, the registers of one program cannot hold a sector of every row
MAX_TILE_ROWS = 512


@triton.jit
def place_of(p_index, o_row, m_row, num_rows):
    """Load numbers of an index, as int64, and say which of them are rows."""
    b_row = tl.load(p_index + o_row, mask=m_row, other=-1)
    return b_row.to(tl.int64), (b_row >= 0) & (b_row < num_rows)


@one_variant(layout=["num_words", "stride"], anywhere=["p_source", "p_target"])
def gather_rows_kernel(
    p_tensor,
    p_source,
    p_target,
    num_moves,
    num_rows,
    num_words,
    stride,
    WORD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    """Each program owns some columns of all moves: it reads them all before it writes any."""
    await_kernels()
    p_word = p_tensor.to(tl.pointer_type(WORD), bitcast=True)
    o_move = tl.arange(0, BLOCK_ROWS)
    o_word = tl.program_id(0).to(tl.int64) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    m_word = o_word < num_words
    b_source, m_source = place_of(p_source, o_move, o_move < num_moves, num_rows)
    b_target, m_target = place_of(p_target, o_move, o_move < num_moves, num_rows)
    m_move = (m_source & m_target)[:, None] & m_word[None, :]
    b_row = tl.load(p_word + b_source[:, None] * stride + o_word[None, :], mask=m_move)
    tl.debug_barrier()
    tl.store(p_word + b_target[:, None] * stride + o_word[None, :], b_row, mask=m_move)


@one_variant(layout=["num_words", "out_stride", "in_stride"], anywhere=["p_index"])
def copy_rows_kernel(
    p_out,
    p_in,
    p_index,
    num_copies,
    num_rows,
    num_words,
    out_stride,
    in_stride,
    WORD: tl.constexpr,
    IS_GATHER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    """``out[i] = in[index[i]]`` (gather) or ``out[index[i]] = in[i]``; `num_rows` bounds the index."""
    await_kernels()
    p_out = p_out.to(tl.pointer_type(WORD), bitcast=True)
    p_in = p_in.to(tl.pointer_type(WORD), bitcast=True)
    o_copy = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    o_word = tl.program_id(1).to(tl.int64) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    b_indexed, m_copy = place_of(p_index, o_copy, o_copy < num_copies, num_rows)
    b_in = b_indexed if IS_GATHER else o_copy.to(tl.int64)
    b_out = o_copy.to(tl.int64) if IS_GATHER else b_indexed
    m_word = m_copy[:, None] & (o_word < num_words)[None, :]
    b_row = tl.load(p_in + b_in[:, None] * in_stride + o_word[None, :], mask=m_word)
    tl.store(p_out + b_out[:, None] * out_stride + o_word[None, :], b_row, mask=m_word)


class Words(NamedTuple):
    """How rows divide into words: words per row, distance between rows, and the dtype of a word."""

    num: int
    stride: int
    size: int


def words_of(tensor: Tensor, other: Tensor | None = None) -> Words:
    """Describe rows in the widest words that fit them and the rows of `other`."""
    row_bytes = tensor[0].numel() * tensor.itemsize
    strides = [t.stride(0) * t.itemsize for t in (tensor, other) if t is not None]
    starts = [t.data_ptr() for t in (tensor, other) if t is not None]
    size = next(n for n in WORDS if not any(x % n for x in (row_bytes, *strides, *starts)))
    return Words(row_bytes // size, strides[0] // size, size)


def tile_of(num_rows: int) -> tuple[int, int]:
    """Choose how many rows and words a tile has: at least 32 bytes of each row."""
    block_rows = min(MAX_TILE_ROWS, max(16, triton.next_power_of_2(num_rows)))
    return block_rows, min(64, TILE_WORDS // block_rows)


def copy_rows(out: Tensor, rows: Tensor, index: Tensor, is_gather: bool) -> None:
    """``out[i] = rows[index[i]]`` (gather) or ``out[index[i]] = rows[i]``."""
    words = words_of(out, rows)
    if index.numel() == 0 or words.num == 0:
        return
    block_rows, block_words = 16, min(128, max(16, triton.next_power_of_2(words.num)))
    grid = (triton.cdiv(index.numel(), block_rows), triton.cdiv(words.num, block_words))
    copy_rows_kernel[grid](
        out,
        rows,
        index.contiguous(),
        index.numel(),
        (rows if is_gather else out).shape[0],
        words.num,
        words.stride,
        rows.stride(0) * rows.itemsize // words.size,
        WORD=WORDS[words.size],
        IS_GATHER=is_gather,
        BLOCK_ROWS=block_rows,
        BLOCK_WORDS=block_words,
    )


def gather_rows(tensors: list[Tensor], source: Tensor, target: Tensor) -> None:
    """`pybeam.ops.gather_rows`."""
    for tensor in tensors:
        if source.numel() == 0 or tensor.numel() == 0:
            continue
        if source.numel() > MAX_TILE_ROWS:
            held = tensor.new_empty(source.numel(), *tensor.shape[1:])
            copy_rows(held, tensor, source, is_gather=True)
            copy_rows(tensor, held, target, is_gather=False)
            continue
        words = words_of(tensor)
        block_rows, block_words = tile_of(source.numel())
        gather_rows_kernel[(triton.cdiv(words.num, block_words),)](
            tensor,
            source.contiguous(),
            target.contiguous(),
            source.numel(),
            tensor.shape[0],
            words.num,
            words.stride,
            WORD=WORDS[words.size],
            BLOCK_ROWS=block_rows,
            BLOCK_WORDS=block_words,
        )


def scatter_rows(pool: Tensor, index: Tensor, rows: Tensor) -> None:
    """`pybeam.ops.scatter_rows`."""
    if rows.numel():
        copy_rows(pool, rows, index, is_gather=False)
