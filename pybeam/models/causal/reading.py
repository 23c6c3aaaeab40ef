"""Read prompts in blocks: the rows of one call, and the cells that each of them sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.models.cells import Cells
from pybeam.models.distances import Distances

# positions of a prompt that one call reads: as many as a mask of two words tells apart
BLOCK = 128


class Span(NamedTuple):
    """The tokens of a prompt that are to be read."""

    tokens: Tensor  # [P] int64 on the host
    cells: list[int]  # of all of them, in the pool
    num_known: int  # these have been read before
    first_row: int  # of rotary tables: of position 0


class Block(NamedTuple):
    """Rows of A prompts, on the host: neighbours in each, of which a row sees all before it."""

    token: Tensor  # [R] int32
    position: Tensor  # [R] int32
    rotary_row: Tensor  # [R] int32, of the tables of cosines and sines
    cell: Tensor  # [R] int32, where keys and values go
    cells: Cells
    distances: Distances
    longest: int  # positions that a row sees at most

    def to(self, device: torch.device) -> Block:
        """Return the same block on this device."""
        mask, entry = self.cells.mask, self.cells.entry
        assert mask is not None and entry is not None
        offset, slot, cell, num_cells, *_ = self.cells
        return Block(
            self.token.to(device),
            self.position.to(device),
            self.rotary_row.to(device),
            self.cell.to(device),
            Cells(
                offset.to(device),
                slot.to(device),
                cell.to(device),
                num_cells.to(device),
                mask.to(device),
                entry.to(device),
            ),
            Distances(*(part.to(device) for part in self.distances)),
            self.longest,
        )


def blocks(spans: Sequence[Span], max_tokens: int) -> Iterator[Block]:
    """Yield blocks in an order in which a token is read after all that come before it in its prompt.

    A block has at most `max_tokens` tokens, or is of one prompt. Prompts may share cells: of these, the one
    that reads them stands before those that know them.
    """
    longest = max((span.tokens.numel() for span in spans), default=0)
    for first in range(0, longest, BLOCK):
        some: list[tuple[Span, int, int]] = []
        total = 0
        for span in spans:
            start, stop = max(first, span.num_known), min(first + BLOCK, span.tokens.numel())
            if start >= stop:
                continue
            if some and total + stop - start > max_tokens:
                yield _block(some)
                some, total = [], 0
            some.append((span, start, stop))
            total += stop - start
        if some:
            yield _block(some)


def _block(parts: Sequence[tuple[Span, int, int]]) -> Block:
    """Make the block of these spans, from a position up to another."""
    longest = max(stop for _, _, stop in parts)
    starts = torch.tensor([start for _, start, _ in parts], dtype=torch.int32)  # [A]
    lengths = torch.tensor([stop - start for _, start, stop in parts])  # [A]
    position = torch.cat(
        [torch.arange(start, stop, dtype=torch.int32) for _, start, stop in parts]
    )  # [R]
    entry = position - starts.repeat_interleave(lengths)  # [R]
    shift = torch.tensor([span.first_row for span, _, _ in parts], dtype=torch.int32)
    place = torch.arange(longest, dtype=torch.int32)  # [U]
    cells = Cells(
        offset=torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))).int(),
        slot=torch.arange(len(parts), dtype=torch.int32),
        cell=torch.tensor(
            [span.cells[:stop] + [0] * (longest - stop) for span, _, stop in parts],
            dtype=torch.int32,
        ),
        num_cells=starts + lengths.int(),
        mask=_mask(place - starts[:, None]),
        entry=entry,
    )
    at = place.expand(len(parts), -1)
    of_row = starts[:, None] + torch.arange(BLOCK, dtype=torch.int32)  # [A, K]
    return Block(
        token=torch.cat([span.tokens[start:stop] for span, start, stop in parts]).int(),
        position=position,
        rotary_row=position + shift.repeat_interleave(lengths),
        cell=torch.tensor(
            [cell for span, start, stop in parts for cell in span.cells[start:stop]],
            dtype=torch.int32,
        ),
        cells=cells,
        distances=Distances(at, of_row),
        longest=longest,
    )


def _mask(place: Tensor) -> Tensor:
    """Return the mask [A, U, W] of cells that stand so many places [A, U] behind the first row.

    Row i sees places up to i.
    """
    words = []
    for word in range(-(-BLOCK // 64)):
        bit = place.long() - 64 * word
        seen_by = torch.full_like(bit, -1) << bit.clamp(0, 63)
        words.append(seen_by.masked_fill(bit > 63, 0))
    return torch.stack(words, 2)
