"""Read prompts in blocks: the rows of one call, and the cells that each of them sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends.transfer import to_device
from pybeam.models.cells import Cells

# Tokens that one call reads: enough for large matrix products, and few enough for memory.
BLOCK = 1024


class Span(NamedTuple):
    """The tokens of a prompt that are to be read."""

    tokens: Tensor  # [P] int64 on the host
    cells: list[int]  # of all of them, in the pool
    num_known: int  # these have been read before
    first_row: int  # of tables of positions: of position 0


class Part(NamedTuple):
    """Neighbouring tokens of a prompt."""

    span: Span
    first: int
    last: int  # behind them


class Block(NamedTuple):
    """R rows of A prompts. A row sees its prompt up to itself."""

    token: Tensor  # [R] int32
    position: Tensor  # [R] int32
    place: Tensor  # [R] int32, the row of its position in tables of positions
    cell: Tensor  # [R] int32, where keys and values go
    cells: Cells  # a line for every prompt, in the order of positions


def blocks(spans: Sequence[Span], device: torch.device) -> Iterator[Block]:
    """Yield blocks of at most `BLOCK` rows: the prompts, one after another.

    So a token is read in the block of those before it, or later. Prompts may share cells: of these, the one
    that reads them must stand before those that know them.
    """
    parts: list[Part] = []
    room = BLOCK
    for span in spans:
        first = span.num_known
        while first < span.tokens.numel():
            last = min(first + room, span.tokens.numel())
            parts.append(Part(span, first, last))
            room, first = room - (last - first), last
            if not room:
                yield _block(parts, device)
                parts, room = [], BLOCK
    if parts:
        yield _block(parts, device)


def _block(parts: Sequence[Part], device: torch.device) -> Block:
    longest = max(part.last for part in parts)
    lengths = torch.tensor([part.last - part.first for part in parts])  # [A]
    position = torch.cat([torch.arange(part.first, part.last) for part in parts])  # [R]
    first_row = torch.tensor([part.span.first_row for part in parts])  # [A]

    def ints(values: Tensor | list) -> Tensor:
        return to_device(values, torch.int32, device)

    return Block(
        token=ints(torch.cat([span.tokens[first:last] for span, first, last in parts])),
        position=ints(position),
        place=ints(position + first_row.repeat_interleave(lengths)),
        cell=ints([cell for span, first, last in parts for cell in span.cells[first:last]]),
        cells=Cells(
            offset=ints([0, *lengths.cumsum(0).tolist()]),
            slot=ints(torch.arange(len(parts))),
            cell=ints([span.cells[:last] + [0] * (longest - last) for span, _, last in parts]),
            num_cells=ints([part.last for part in parts]),
        ),
    )
