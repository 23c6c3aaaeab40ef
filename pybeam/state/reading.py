"""Read the beginning of a prefix at once: one call of the model in place of a step for each token.

A beam within its prefix has one row, and each of its tokens is given. So the beam after n tokens is known
before the model has seen any of them, and their keys and values can be computed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pybeam.backends.arrays import RowArrays
from pybeam.backends.transfer import to_device
from pybeam.contracts import Survivors
from pybeam.models.rows import Rows
from pybeam.state.live_arrays import INF, INT, LiveArrays
from pybeam.state.new_beam import NewBeam

# Tokens that one call reads: enough for large matrix products, and few enough for memory.
BLOCK = 1024


def take_tokens(arrays: LiveArrays, beams: Sequence[NewBeam]) -> None:
    """Let beams that have just been opened take the first `num_read` tokens of their prefixes.

    They are then as so many steps would leave them.
    """
    # those that go on stand before those that do not
    beams = sorted(beams, key=lambda beam: -beam.num_read)
    counts = np.array([beam.num_read for beam in beams])
    given = np.zeros((len(beams), counts[0]), dtype=np.int32)
    for line, beam in zip(given, beams, strict=True):
        line[: beam.num_read] = beam.prefix[: beam.num_read]
    token = to_device(given, INT, arrays.device)
    slot = to_device([beam.slot for beam in beams], INT, arrays.device)
    chosen = _only_rows(len(beams), arrays)
    for i in range(int(counts[0])):
        num = int((counts > i).sum())
        own = Survivors(*(field[:num] for field in chosen))
        own.token[:, 0] = token[:num, i]
        arrays.program.take(slot[:num], own)
        arrays.program.commit(slot[:num])


def _only_rows(num_beams: int, arrays: LiveArrays) -> Survivors:
    """Return survivors [A, K] that each continue the one row of a beam, by token 0 and with score 0."""
    shape, device = (num_beams, arrays.width_capacity), arrays.device

    def columns(first: float, others: float, dtype: torch.dtype) -> torch.Tensor:
        values = torch.full(shape, others, dtype=dtype, device=device)
        values[:, 0] = first
        return values

    one = torch.ones(num_beams, dtype=INT, device=device)
    return Survivors(
        token=columns(0, -1, INT),
        parent=columns(0, -1, INT),
        score=columns(0.0, -INF, torch.float32),
        log_prob=columns(0.0, -INF, torch.float32),
        count=one,
        num_finished=torch.zeros_like(one),
        has_nan=torch.zeros_like(one, dtype=torch.bool),
    )


def rows_of(arrays: LiveArrays, beams: Sequence[NewBeam], start_id: int) -> Iterator[Rows]:
    """Yield the rows of the tokens that `take_tokens` has taken, at most `BLOCK` at a time.

    They are no entries of their beams: each continues the one before it. The last token of each beam, which
    is its row, is not among them, but the start token is.
    """
    counts = [beam.num_read for beam in beams]
    owner = np.repeat(np.arange(len(beams)), counts)  # [n]
    position = np.concatenate([np.arange(num) for num in counts])
    token = np.concatenate(
        [
            (start_id if beam.start is None else beam.start, *beam.prefix[: beam.num_read - 1])
            for beam in beams
        ]
    )
    slot = np.array([beam.slot for beam in beams])
    for first in range(0, len(owner), BLOCK):
        part = slice(first, first + BLOCK)
        here, num_rows = np.unique(owner[part], return_counts=True)
        offset = np.concatenate(([0], num_rows.cumsum()))
        columns = (slot[here], offset, token[part], position[part], slot[owner[part]])
        yield _rows(arrays, *columns)


def _rows(arrays: LiveArrays, *columns: np.ndarray) -> Rows:
    longest = int(columns[3].max()) + 1
    slot, offset, token, position, row_slot = (
        to_device(column, INT, arrays.device) for column in columns
    )
    # a beam that has always had one row has lost no node
    cell = arrays.tree.live_cell[row_slot.long(), position.long()]
    entry = torch.zeros_like(token)
    read = RowArrays(offset, token, position, row_slot, entry, node=position, cell=cell)
    return arrays.rows(slot, read, longest)
