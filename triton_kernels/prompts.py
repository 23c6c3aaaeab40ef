"""`prepend_prompts`: what rows see and where they stand, where a prompt comes before the tree of its source.

Some programs write lists of cells, first those of a prompt and then those of the tree, and the others write
tokens and positions of rows. Lists stand by slot, so that paths of a tree need no copy. A slot that is named
twice gets the same numbers twice.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.contracts import Cells
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# cells, or rows, that a program writes at a time
BLOCK_SIZE = 512
# beyond so many programs for lists, each writes several blocks of a long one
MOST_PROGRAMS = 1024


class Part(NamedTuple):
    """A part of a source's list: pointers to where it comes from and goes to, then numbers."""

    cell: tl.tensor
    mask: tl.tensor
    cell_out: tl.tensor
    mask_out: tl.tensor
    is_own: tl.tensor  # whether it comes from the tree
    first: tl.tensor  # place of its first block; a block follows every `stride` places
    stride: tl.tensor
    num_cells: tl.tensor
    max_cells: tl.tensor


@triton.jit
def read_block(part, o_n, count, MASK_WORDS: tl.constexpr):
    """Read cells and masks at these places. All rows see the prompt."""
    m_n = o_n < count
    b_cell = tl.load(part.cell + o_n, mask=m_n, other=0)
    words = ()  # type: tuple
    for w in tl.static_range(MASK_WORDS):
        p_word = part.mask + o_n.to(tl.int64) * MASK_WORDS + w
        words += (tl.load(p_word, mask=m_n & part.is_own, other=-1),)
    return b_cell, words


@triton.jit
def write_part(part, num_pool_cells, MASK_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    o_n = part.first + tl.arange(0, BLOCK)
    # the first block does not wait for the number of cells
    b_cell, words = read_block(part, o_n, part.max_cells, MASK_WORDS)
    for _ in range(part.first, part.num_cells, part.stride):
        m_n = o_n < part.num_cells
        # prompts take the pool from behind
        b_cell = tl.where(part.is_own, b_cell, num_pool_cells - 1 - b_cell)
        tl.store(part.cell_out + o_n, b_cell, mask=m_n)
        for w in tl.static_range(MASK_WORDS):
            tl.store(part.mask_out + o_n.to(tl.int64) * MASK_WORDS + w, words[w], mask=m_n)
        o_n += part.stride
        b_cell, words = read_block(part, o_n, part.num_cells, MASK_WORDS)


@one_variant(
    anywhere=[
        "p_token_out",
        "p_position_out",
        "p_place_out",
        "p_slot",
        "p_num_live",
        "p_length",
        "p_last",
        "p_first_row",
        "p_row_token",
        "p_row_position",
        "p_row_slot",
        "p_row_cell",
    ]
)
def prepend_prompts_kernel(
    p_cell_out,  # [S, max_prompt + max_live]
    p_mask_out,  # the same, and words
    p_num_cells_out,  # [S]
    p_token_out,
    p_position_out,
    p_place_out,
    p_cell_position,
    p_slot,
    p_live_cell,  # [S, max_live]
    p_live_mask,
    p_num_live,
    p_prompt_cell,  # [S, max_prompt]
    p_length,
    p_last,
    p_first_row,
    p_row_token,
    p_row_position,
    p_row_slot,
    p_row_cell,
    num_sources,
    num_rows,
    num_pool_cells,
    max_prompt,
    max_live,
    num_prompt_parts,
    num_live_parts,
    MASK_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    await_kernels()
    num_parts = num_prompt_parts + num_live_parts
    i_list = tl.program_id(0)
    if i_list < num_sources * num_parts:
        i_slot = tl.load(p_slot + i_list // num_parts).to(tl.int64)
        length = tl.minimum(tl.load(p_length + i_slot), max_prompt)
        num_live = tl.minimum(tl.load(p_num_live + i_slot), max_live)
        i_part = i_list % num_parts
        is_own = i_part >= num_prompt_parts
        begin = i_slot * (max_prompt + max_live)
        p_cell, num_cells, max_cells = p_prompt_cell + i_slot * max_prompt, length, max_prompt
        num_own_parts = num_prompt_parts
        if is_own:
            p_cell, num_cells, max_cells = p_live_cell + i_slot * max_live, num_live, max_live
            i_part, num_own_parts = i_part - num_prompt_parts, num_live_parts
            begin += length
        p_mask = p_cell
        p_mask_to = p_cell
        if MASK_WORDS > 0:
            p_mask = p_live_mask + i_slot * max_live * MASK_WORDS
            p_mask_to = p_mask_out + begin * MASK_WORDS
        part = Part(
            p_cell,
            p_mask,
            p_cell_out + begin,
            p_mask_to,
            is_own,
            i_part * BLOCK,
            num_own_parts * BLOCK,
            num_cells,
            max_cells,
        )
        write_part(part, num_pool_cells, MASK_WORDS, BLOCK)
        if i_list % num_parts == num_prompt_parts:
            tl.store(p_num_cells_out + i_slot, length + num_live)
            # some attention reads the first cell, whether there is one or not
            tl.store(p_cell_out + begin, 0, mask=length + num_live == 0)
    else:
        o_row = (i_list - num_sources * num_parts) * BLOCK + tl.arange(0, BLOCK)
        m_row = o_row < num_rows
        # loads come first, so that they wait together
        b_slot = tl.load(p_row_slot + o_row, mask=m_row, other=0).to(tl.int64)
        b_token = tl.load(p_row_token + o_row, mask=m_row)
        b_own = tl.load(p_row_position + o_row, mask=m_row)
        b_cell = tl.load(p_row_cell + o_row, mask=m_row, other=-1)
        b_last = tl.load(p_last + b_slot, mask=m_row)
        b_position = b_own + tl.load(p_length + b_slot, mask=m_row)
        b_place = b_position
        if p_place_out is not None:
            b_place += tl.load(p_first_row + b_slot, mask=m_row)
            tl.store(p_place_out + o_row, b_place, mask=m_row)
        tl.store(p_token_out + o_row, tl.where(b_own == 0, b_last, b_token), mask=m_row)
        tl.store(p_position_out + o_row, b_position, mask=m_row)
        if p_cell_position is not None:
            m_cell = (b_cell >= 0) & (b_cell < num_pool_cells)
            tl.store(p_cell_position + b_cell, b_position, mask=m_cell)


def prepend_prompts(
    rows: Any,
    own: Cells,
    prompts: tuple[Tensor, Tensor, Tensor],
    num_pool_cells: int,
    first_row: Tensor | None,
    cell_position: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Cells]:
    """`pybeam.backends.Backend.prepend_prompts`. A slot that does not move has no list."""
    prompt_cell, length, last = prompts
    num_sources, num_rows = own.slot.numel(), rows.token.numel()
    (num_slots, max_live), max_prompt = own.cell.shape, prompt_cell.shape[1]
    # the first part of a tree's list writes how many cells there are
    assert max_live or not num_sources, "a tree has room for cells"
    empty = partial(torch.empty, dtype=torch.int32, device=own.cell.device)
    num_words = 0 if own.mask is None else own.mask.shape[2]
    found = own._replace(cell=empty(num_slots, max_prompt + max_live), num_cells=empty(num_slots))
    if own.paths is not None:
        found = found._replace(paths=own.paths._replace(num_shared=length))
    if own.mask is not None:
        mask = empty(*found.cell.shape, num_words, dtype=torch.int64)
        found = found._replace(mask=mask)
    token, position = empty(num_rows), empty(num_rows)
    place = position if first_row is None else empty(num_rows)
    most = triton.cdiv(MOST_PROGRAMS, max(num_sources, 1))
    parts = [min(triton.cdiv(cells, BLOCK_SIZE), most) for cells in (max_prompt, max_live)]
    num_programs = num_sources * sum(parts) + triton.cdiv(num_rows, BLOCK_SIZE)
    if num_programs:
        prepend_prompts_kernel[(num_programs,)](
            found.cell,
            found.mask,
            found.num_cells,
            token,
            position,
            None if first_row is None else place,
            cell_position,
            own.slot.contiguous(),
            own.cell,
            own.mask,
            own.num_cells,
            prompt_cell,
            length,
            last,
            first_row,
            rows.token,
            rows.position,
            rows.row_slot,
            rows.cell,
            num_sources,
            num_rows,
            num_pool_cells,
            max_prompt,
            max_live,
            *parts,
            MASK_WORDS=num_words,
            BLOCK=BLOCK_SIZE,
        )
    return token, position, place, found
