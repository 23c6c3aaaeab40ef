"""Who moves, and their rows: the one kernel against torch, on random beams."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import pybeam
from pybeam.backends import torch_beams, triton
from pybeam.backends.arrays import FLOAT_COLUMNS, INT_COLUMNS, NULL_SLOT, RUNNING, Beams, TreeArrays
from pybeam.kvcache.token_tree import TokenTree

SCHEDULES = {
    "batch": pybeam.Batch(9),
    "batch, budget": pybeam.Batch(9, row_budget=12),
    "streaming": pybeam.Streaming(9),
    "streaming, impatient": pybeam.Streaming(9, max_wait=2),
    "streaming, budget": pybeam.Streaming(9, row_budget=12, max_wait=2),
    "fifo": pybeam.Fifo(9),
    "fifo, budget": pybeam.Fifo(9, row_budget=7, max_wait=1),
}
CASES = [(num, *rest) for num in (1, 20) for rest in product(SCHEDULES, (None, 0, 9, 400))]
# more sources than the smallest block
CASES += [(70, "batch", None), (70, "fifo, budget", 9), (70, "streaming, impatient", 400)]
CASES += [(20, "batch", "all but one"), (20, "batch", "all")]
WIDTH, PREFIX = 5, 3


def random_beams(num_slots: int, generator: torch.Generator) -> tuple[TreeArrays, Beams]:
    """Beams of which some are done, and their trees; slot 0 is empty."""

    def random(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, (num_slots, *shape), generator=generator, dtype=torch.int32)

    device = torch.device("cpu")
    tree = TokenTree(triton, device)
    tree.reserve(num_slots, WIDTH, 20)
    beams = Beams.empty(device).reserved(num_slots, WIDTH, prefix=PREFIX, num_early=2)
    for array in (beams.ints, beams.prefix, beams.early_width):
        array.copy_(random(6, array.shape[1]))
    beams.floats.copy_(random(99, len(FLOAT_COLUMNS)) / 7)
    beams.score.copy_(-random(99, WIDTH) / 7)
    beams.is_alive.copy_(random(2, WIDTH) > 0)
    num_entries = random(WIDTH + 1)
    beams.is_alive.logical_and_(torch.arange(WIDTH) < num_entries[:, None])
    columns = dict(reason=random(4) // 3, depth=random(4), waited=random(4))
    columns |= dict(num_rows=beams.is_alive.sum(1), num_entries=num_entries)
    columns["num_early_widths"] = random(3)
    for name, values in columns.items():
        beams.ints[:, INT_COLUMNS.index(name)] = values
    arrays = tree.arrays
    arrays.row_node.copy_(random(arrays.token.shape[1], WIDTH))
    arrays.row_cell.copy_(random(99, WIDTH))
    arrays.token.copy_(random(99, arrays.token.shape[1]))
    for array in (beams.ints, beams.floats, beams.is_alive, beams.prefix, beams.early_width):
        array[NULL_SLOT] = 0
    return arrays, beams


def on(arrays, device):
    return type(arrays)(*[array.to(device, copy=True) for array in arrays])


@pytest.mark.parametrize(("num_sources", "name", "limit"), CASES)
def test_as_torch(num_sources, name, limit, device):
    generator = torch.Generator().manual_seed(num_sources)
    tree, beams = random_beams(num_sources + 1, generator)
    # in any order, and with padding, except that one source stands alone
    live = 1 + torch.randperm(num_sources, generator=generator)
    slot = torch.cat((live, torch.zeros(3 * (num_sources > 1)))).to(device, torch.int32)
    tree, beams, other = on(tree, device), on(beams, device), on(beams, device)
    if isinstance(limit, str):
        running = beams.num_rows[beams.reason == RUNNING]
        limit = int(running.sum()) - (limit == "all but one")
    rules, refills = SCHEDULES[name].rules(limit), num_sources % 2 == 0
    num_rows = int(beams.num_rows.sum()) + 2 if limit is None else limit
    given = slot, refills, num_rows, len(slot) * WIDTH, rules
    expected = torch_beams.beam_read(tree, beams, *given)
    found = triton.beam_read(tree, other, *given)
    for ours, theirs in zip(found, expected, strict=True):
        for own, right in zip(ours, theirs, strict=True):
            assert own.dtype == right.dtype and torch.equal(own, right)
    assert torch.equal(other.ints, beams.ints)
