"""Read prompts in blocks: the rows of one call, and the cells that each of them sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.transfer import all_to_device
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

    @classmethod
    def of(cls, *numbers: Tensor) -> Block:
        """Return the block of these numbers on a device; see `on_host`."""
        token, position, place, kept, offset, slot, cell, num_cells = numbers
        return cls(token, position, place, kept, Cells(offset, slot, cell, num_cells))


# the numbers of a block on the host: those of rows, and then of cells
Numbers = tuple[np.ndarray, ...]


def blocks(spans: Sequence[Span], device: torch.device) -> Iterator[Block]:
    """Yield the blocks of `on_host` on a device."""
    for numbers in on_host(spans):
        yield Block.of(*all_to_device(numbers, device))


def on_host(spans: Sequence[Span]) -> Iterator[Numbers]:
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
                yield _block(parts)
                parts, room = [], BLOCK
    if parts:
        yield _block(parts)


def _block(parts: Sequence[Part]) -> Numbers:
    longest = max(part.last for part in parts)
    lengths = np.array([part.last - part.first for part in parts])  # [A]
    position = np.concatenate([np.arange(part.first, part.last) for part in parts])  # [R]
    first_row = np.array([part.span.first_row for part in parts])  # [A]
    return (
        torch.cat([span.tokens[first:last] for span, first, last in parts]).numpy(),
        position,
        position + first_row.repeat(lengths),
        np.array([cell for span, first, last in parts for cell in span.cells[first:last]]),
        np.concatenate(([0], lengths.cumsum())),
        np.arange(len(parts)),
        np.array([span.cells[:last] + [0] * (longest - last) for span, _, last in parts]),
        np.array([part.last for part in parts]),
    )
