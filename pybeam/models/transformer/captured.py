"""Encoders and prompts as captured programs: the numbers of sources are one array, of a size that comes back.

Sources are padded with empty ones, positions with some that belong to no source: no row of another source
sees them, and their keys and values go nowhere. Lines of cells are as long as a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import NULL_SLOT
from pybeam.backends.pinned import Replay, padded, replayed
from pybeam.kvcache.pools import SourceCells
from pybeam.models.cells import Cells
from pybeam.models.transformer.reading import Block, Span, on_host
from pybeam.models.transformer.running import Inputs
from pybeam.models.transformer.sources import SharedFeatures

# the fewest positions that are encoded at once, and the shortest lines of cells where a table has longer ones
LEAST_POSITIONS, LEAST_WIDTH = 16, 128
# beyond so many the device takes longer than the host, and a graph would keep much memory
MOST_POSITIONS = 4096

# of positions [n] and the numbers of sources, all on the device
InputsOf = Callable[..., Inputs]


def encode(
    model: Any,
    table: SourceCells,
    sources: Sequence[Any],
    slots: Sequence[int],
    compute: Callable[[Inputs, Tensor, Cells, Tensor], Tensor],
    replay: Replay,
) -> tuple[Sequence[Any], Sequence[int]]:
    """Give cells to these slots, and encode their sources. Returns those that are left out, and their slots.

    These have states already, or they are too many. `compute` returns the states of inputs, their positions
    [n], and the positions that each sees, and keeps in cells [n] what a decoder needs.
    """
    new = _without_states(sources)
    own, own_slots = [sources[i] for i in new], [slots[i] for i in new]
    lengths = np.array([model.source_length(source) for source in own], dtype=np.int64)
    if not 0 < lengths.sum() <= MOST_POSITIONS:
        return sources, slots
    num_sources, num_positions = _sizes(len(own), int(lengths.sum()))
    made = (model.encoder_numbers if model.takes_features else _ids)(
        own, num_sources, num_positions
    )
    if made is None:
        return sources, slots
    contents, inputs_of = made
    table.take(own_slots, lengths.tolist())
    cells, kept = table.lines(own_slots, lengths.tolist())
    # those of a long source alone are longer
    width = min(table.cell.shape[1], max(LEAST_WIDTH, 1 << (cells.shape[1] - 1).bit_length()))
    length = padded(lengths, num_sources)
    offset = np.concatenate(([0], length.cumsum()))
    position = np.arange(len(kept)) - offset[: len(own)].repeat(lengths)
    given = (
        padded(position, num_positions),
        # those of no source are kept nowhere
        padded(kept, num_positions, fill=-1),
        offset,
        np.arange(num_sources),
        offset[:-1, None] + np.arange(width),
        length,
        padded(np.array(own_slots), num_sources, fill=NULL_SLOT),
        padded(cells, num_sources, width),
        *contents,
    )

    def work(*numbers: Tensor) -> Tensor | None:
        position, kept, offset, line, cell, length, slot, lines, *contents = numbers
        table.write(slot, length, lines)
        inputs = inputs_of(position, *contents)
        states = compute(inputs, position, Cells(offset, line, cell, length), kept)
        # requests may share those of sound
        return states if model.takes_features else None

    states = replayed(replay, "encode", work, given, table.cell.device)
    for i, source in enumerate(own):
        if isinstance(source, SharedFeatures):
            source.states = states[offset[i] : offset[i + 1]].clone()
    others = sorted({*range(len(sources))} - {*new})
    return [sources[i] for i in others], [slots[i] for i in others]


def _without_states(sources: Sequence[Any]) -> list[int]:
    """Return which sources have no states yet; of those that share features, the first."""
    new, known = [], set()
    for i, source in enumerate(sources):
        is_shared = isinstance(source, SharedFeatures)
        if is_shared and (source.states is not None or id(source) in known):
            continue
        known.add(id(source))
        new.append(i)
    return new


def _ids(
    sources: Sequence[Tensor], num_sources: int, num_positions: int
) -> tuple[list[np.ndarray], InputsOf]:
    """Return the ids of texts, and what makes inputs of them."""
    ids = padded(torch.cat(list(sources)).numpy(), num_positions)
    return [ids], lambda position, token: (token, position)


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
    """Return how many sources and positions are encoded in their place."""
    return 1 << (num_sources - 1).bit_length(), rounded(num_positions)


def rounded(num_positions: int) -> int:
    """Return how many positions are computed in place of so many: powers of two, and halves between."""
    step = max(LEAST_POSITIONS, 1 << max(0, (num_positions - 1).bit_length() - 2))
    return -(-num_positions // step) * step
