"""Make arguments of `tree_attention`: random trees in pools whose unused cells hold NaN, and distances."""

from __future__ import annotations

import math
from itertools import accumulate

import torch

from pybeam.contracts import Distances


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def random_case(
    rows, cells, heads=4, key_heads=4, size=64, dtype=torch.float32, words=1, masked=True, seed=0
) -> dict:
    """Make sources of `rows[a]` rows and `cells[a]` cells in shuffled slots of a strided pool."""
    torch.manual_seed(seed)
    num_sources, num_slots, max_cells = len(rows), len(rows) + 2, max(cells, default=0) + 3
    slot = torch.randperm(num_slots)[:num_sources].int()
    total = num_slots * max_cells
    # unused cells hold NaN: nobody may read them
    pool = torch.full((2, 2, total, key_heads, size), math.nan, dtype=dtype)
    cell = torch.full((num_slots, max_cells), 2**30, dtype=torch.int32)
    num_cells = torch.zeros(num_slots, dtype=torch.int32)
    free = torch.randperm(total).int()
    for a, p in enumerate(slot.tolist()):
        used, free = free[: cells[a]], free[cells[a] :]
        cell[p, : cells[a]], num_cells[p] = used, cells[a]
        pool[1, :, used.long()] = torch.randn(2, cells[a], key_heads, size).to(dtype)
    num_rows = sum(rows)
    wide = torch.randn(num_rows, 3 * heads * size).to(dtype)
    case = dict(
        query=wide[:, heads * size : 2 * heads * size].view(num_rows, heads, size),
        key=pool[1, 0],
        value=pool[1, 1],
        offset=ints([0, *accumulate(rows)]),
        slot=slot,
        cell=cell,
        num_cells=num_cells,
    )
    if masked:
        case["mask"] = torch.randint(-(2**63), 2**63 - 1, (num_slots, max_cells, words))
        case["entry"] = torch.randint(0, 64 * words, (num_rows,), dtype=torch.int32)
    return case


def random_distances(case: dict, which: str, columns=9, origin=0, window=5, seed=0) -> Distances:
    """Make distances with those of "bias", "window" and "cap" that `which` names, for this case.

    Rows stand behind most cells of theirs, and beside others. Cells that nobody reads have no position.
    """
    torch.manual_seed(seed)
    num_rows, num_heads, _ = case["query"].shape
    used = torch.zeros(len(case["key"]), dtype=torch.bool)
    for p in case["slot"].tolist():
        used[case["cell"][p, : int(case["num_cells"][p])].long()] = True
    cell_position = torch.randint(0, 14, used.shape).masked_fill(~used, 2**31 - 1)
    return Distances(
        position=torch.randint(6, 16, (num_rows,), dtype=torch.int32),
        cell_position=cell_position.int(),
        bias=torch.randn(num_heads, columns) if "bias" in which else None,
        origin=origin,
        window=window if "window" in which else None,
        soft_cap=1.5 if "cap" in which else None,
    )
