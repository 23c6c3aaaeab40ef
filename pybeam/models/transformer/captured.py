"""Encoders and prompts as captured programs: the numbers of sources are one array, of a size that comes back.

Sources are padded with empty ones, positions with some that belong to no source: no row of another source
sees them, and their keys and values go nowhere. Lines of cells are as long as a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import NULL_SLOT
from pybeam.backends.pinned import Replay, padded, replayed
from pybeam.kvcache.pools import SourceCells
from pybeam.models.cells import Cells
from pybeam.models.transformer.reading import Block, Span, on_host

# the fewest positions that are encoded at once, and the shortest lines of cells where a table has longer ones
LEAST_POSITIONS, LEAST_WIDTH = 16, 128
# beyond so many the device takes longer than the host, and a graph would keep much memory
MOST_POSITIONS = 4096


def encode(
    table: SourceCells,
    sources: Sequence[Tensor],
    slots: Sequence[int],
    compute: Callable[[tuple[Tensor, Tensor], Tensor, Cells, Tensor], None],
    replay: Replay,
) -> None:
    """Give these slots cells, and encode their sources, each a tensor of ids.

    `compute` does it with tokens and positions, both [n] int32, the positions again, the positions that each
    sees, and the cells [n] that keep what a decoder needs.
    """
    lengths = np.array([source.numel() for source in sources])
    table.take(slots, lengths.tolist())
    cells, kept = table.lines(slots, lengths.tolist())
    num_sources, num_positions = _sizes(len(sources), len(kept))
    # those of a long source alone are longer
    width = min(table.cell.shape[1], max(LEAST_WIDTH, 1 << (cells.shape[1] - 1).bit_length()))
    length = padded(lengths, num_sources)
    offset = np.concatenate(([0], length.cumsum()))
    position = np.arange(len(kept)) - offset[: len(sources)].repeat(lengths)
    given = (
        padded(torch.cat(list(sources)).numpy(), num_positions),
        padded(position, num_positions),
        # those of no source are kept nowhere
        padded(kept, num_positions, fill=-1),
        offset,
        np.arange(num_sources),
        offset[:-1, None] + np.arange(width),
        length,
        padded(np.array(slots), num_sources, fill=NULL_SLOT),
        padded(cells, num_sources, width),
    )

    def work(*numbers: Tensor) -> None:
        token, position, kept, offset, line, cell, length, slot, lines = numbers
        table.write(slot, length, lines)
        compute((token, position), position, Cells(offset, line, cell, length), kept)

    replayed(replay, "encode", work, given, table.cell.device)


def read(
    spans: Sequence[Span],
    compute: Callable[[Block], None],
    replay: Replay,
    device: torch.device,
) -> None:
    """Let `compute` read prompts, a block at a time; see `reading.blocks`."""

    def work(*numbers: Tensor) -> None:
        compute(Block.of(*numbers))

    for numbers in on_host(spans):
        replayed(replay, "prompts", work, _padded_block(*numbers), device)


def _padded_block(*numbers: np.ndarray) -> Sequence[np.ndarray]:
    """Return the numbers of a block of a size that comes back."""
    *of_rows, offset, _, cell, length = numbers
    *ids, kept = of_rows
    num_sources, num_rows = _sizes(len(length), len(kept))
    width = max(LEAST_WIDTH, 1 << (cell.shape[1] - 1).bit_length())
    return (
        *(padded(own, num_rows) for own in ids),
        padded(kept, num_rows, fill=-1),
        padded(offset, num_sources + 1, fill=offset[-1]),
        np.arange(num_sources),
        padded(cell, num_sources, width),
        padded(length, num_sources),
    )


def _sizes(num_sources: int, num_positions: int) -> tuple[int, int]:
    """Return how many sources and positions are encoded in their place: powers of two, and halves between."""
    step = max(LEAST_POSITIONS, 1 << max(0, (num_positions - 1).bit_length() - 2))
    return 1 << (num_sources - 1).bit_length(), -(-num_positions // step) * step
