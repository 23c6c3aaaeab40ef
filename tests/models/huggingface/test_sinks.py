"""Attention with sinks against its formula, row by row."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from pybeam.models.cells import Cells
from pybeam.models.huggingface.sinks import SinkAttention

NUM_HEADS, NUM_GROUPS, SIZE, WIDTH = 4, 2, 3, 3
SCALE = 0.7
# source and entry of each row; which cells it sees
ROWS = [(0, 0), (0, 2), (1, 1)]
SEEN = [[4, 1, 6], [4, 7], [2, 5]]
EMPTY = 0  # a cell that nobody has written


def a_step() -> tuple[SimpleNamespace, Cells]:
    cell = torch.tensor([[4, 1, 6, 7], [2, 5, EMPTY, EMPTY]], dtype=torch.int32)
    mask = torch.zeros(2, 4, 1, dtype=torch.int64)
    for (source, entry), seen in zip(ROWS, SEEN, strict=True):
        for column in [cell[source].tolist().index(own) for own in seen]:
            mask[source, column] |= 1 << entry
    mask[1, 2:] = -1  # left over from a source that had more cells
    num_cells = torch.tensor([4, 2], dtype=torch.int32)
    slot = torch.arange(2, dtype=torch.int32)
    rows = SimpleNamespace(
        tree=SimpleNamespace(row_cell=torch.zeros(2, WIDTH)),
        slot=slot,
        offset=torch.tensor([0, 2, 3], dtype=torch.int32),
        token=torch.zeros(len(ROWS) + 1, dtype=torch.int32),  # one row of padding
        entry=torch.tensor([entry for _, entry in ROWS] + [0], dtype=torch.int32),
    )
    return rows, Cells(rows.offset, slot, cell, num_cells, mask, rows.entry)


def row_by_row(query, key, value, softcap, sink) -> torch.Tensor:
    out = torch.empty(len(ROWS), NUM_HEADS, SIZE, dtype=query.dtype)
    for r, seen in enumerate(SEEN):
        for h in range(NUM_HEADS):
            group = h * NUM_GROUPS // NUM_HEADS
            scores = SCALE * key[seen, group] @ query[r, h]
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            scores = torch.cat((scores, sink[h, None]))
            out[r, h] = scores.softmax(0)[: len(seen)] @ value[seen, group]
    return out


@pytest.mark.parametrize("softcap", [None, 0.8])
def test_same_as_row_by_row(softcap):
    torch.manual_seed(0)
    rows, cells = a_step()
    query = torch.randn(len(ROWS) + 1, NUM_HEADS, SIZE)
    key, value = torch.randn(2, 8, NUM_GROUPS, SIZE)
    key[EMPTY] = value[EMPTY] = torch.nan
    sink = torch.randn(NUM_HEADS)
    found = SinkAttention(rows, cells)(query, key, value, SCALE, softcap, sink)
    assert found.isfinite().all()  # also where rows are padding
    expected = row_by_row(query, key, value, softcap, sink)
    torch.testing.assert_close(found[: len(ROWS)], expected, rtol=1e-5, atol=1e-6)
