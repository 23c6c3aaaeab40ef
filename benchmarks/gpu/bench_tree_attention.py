"""Attention over token trees and over encoder states, beside copies per beam entry and SDPA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.journal import Journal, same
from benchmarks.gpu.timing import Timer, num_copies
from pybeam import backends
from pybeam.contracts import Cells

NUM_HEADS, HEAD_SIZE = 16, 64
WORD_BITS = 64


@dataclass(frozen=True)
class Case:
    """`num_beams` beams of `width` rows; self-attention over `length` steps of a token tree, or
    cross-attention over `length` encoder states."""

    num_beams: int
    width: int
    length: int
    is_cross: bool
    dtype: torch.dtype = torch.bfloat16

    @property
    def row(self) -> dict:
        name, letter = ("cross", "E") if self.is_cross else ("tree", "T")
        return {
            "op": f"tree_attention, {name}",
            "shape": f"{self.num_beams}x{self.width}, {letter}={self.length}",
            "dtype": str(self.dtype).removeprefix("torch."),
        }


def cases(tiny: bool) -> list[Case]:
    if tiny:
        return [Case(2, 3, 4, is_cross, torch.float32) for is_cross in (False, True)]
    # the last have few programs, so the launcher splits their trees
    beams = ((64, 5), (16, 50), (1, 5), (10, 5))
    tree = [Case(n, k, length, False) for n, k in beams for length in (16, 50, 200)]
    cross = [Case(n, k, length, True) for n, k in beams for length in (40, 200)]
    long = [Case(n, 5, 1000, False) for n in (64, 10, 1)] + [Case(1, 1, 1000, False)]
    long += [Case(n, 5, 1500, True) for n in (16, 1)]
    float32 = [replace(case, dtype=torch.float32) for case in (*tree[:2], *cross[:2], *long[:1])]
    return tree + cross + long + float32


def grown_tree(width: int, num_steps: int) -> tuple[Tensor, Tensor]:
    """Nodes seen by the `width` entries after some steps of a beam whose best entries have most
    children: masks [U] and, for every entry, its path [width, num_steps] as places in the masks."""
    paths = torch.empty(width, 0, dtype=torch.int64)
    num_nodes = 0
    for _ in range(num_steps):
        parent = torch.distributions.Geometric(0.5).sample((width,)).long() % width
        new = torch.arange(num_nodes, num_nodes + width)
        paths = torch.cat([paths[parent], new[:, None]], 1)
        num_nodes += width
    live, places = paths.unique(return_inverse=True)
    masks = torch.zeros(live.numel(), dtype=torch.int64)
    for entry in range(width):
        masks[places[entry]] |= 1 << entry
    return masks, places


class Inputs:
    """One source's tree stands for all: every source has pages of its own in every pool."""

    def __init__(self, case: Case, device: torch.device):
        self.case = case
        num_beams, width, length = case.num_beams, case.width, case.length
        if case.is_cross:
            masks, places = None, torch.arange(length).repeat(width, 1)
            num_live = length
        else:
            masks, places = grown_tree(width, length)
            num_live = masks.numel()
        cells = torch.randperm(num_beams * num_live).view(num_beams, num_live)
        shape = (num_beams * num_live, NUM_HEADS, HEAD_SIZE)
        self.num_bytes = 2 * num_beams * num_live * NUM_HEADS * HEAD_SIZE * case.dtype.itemsize
        copies = range(num_copies(self.num_bytes))
        self.pools = [torch.randn(2, *shape, device=device).to(case.dtype) for _ in copies]
        query = torch.randn(num_beams * width, NUM_HEADS, HEAD_SIZE, device=device)
        self.query = query.to(case.dtype)
        ints = partial(torch.tensor, dtype=torch.int32, device=device)
        self.cells = Cells(
            offset=ints([width * i for i in range(num_beams + 1)]),
            slot=ints(list(range(num_beams))),
            cell=cells.int().to(device),
            num_cells=ints([num_live] * num_beams),
            mask=None if masks is None else masks.repeat(num_beams, 1)[..., None].to(device),
            entry=None if masks is None else ints(list(range(width)) * num_beams),
        )
        # for the peers: the cells of every row, [R, T]
        self.row_cells = cells[:, places].reshape(num_beams * width, length).to(device)

    def calls(self, function: Callable[[Tensor], object]) -> list[Callable[[], object]]:
        return [partial(function, pool) for pool in self.pools]

    def ours(self, backend: str, pool: Tensor) -> object:
        own = backends.load(backend)
        return own.tree_attention(self.query, *pool, self.cells, HEAD_SIZE**-0.5)

    def check(self, backend: str) -> None:
        """Compare with the reference, in float32."""
        ours, pool = self.ours(backend, self.pools[0]), self.pools[0]
        wide = self.query.float(), *pool.float()
        reference = backends.load("reference")
        theirs = reference.tree_attention(*wide, self.cells, HEAD_SIZE**-0.5)
        same(ours, theirs, 2e-5 if self.case.dtype == torch.float32 else 1e-2)

    def gathered(self, pool: Tensor) -> object:
        """A cache of its own for every row: keys and values are gathered, then attended."""
        key, value = (pool[i][self.row_cells].transpose(1, 2) for i in range(2))  # [R, H, T, D]
        return scaled_dot_product_attention(self.query[:, :, None], key, value)

    def repeated(self, states: Tensor) -> object:
        """Attention alone, with the states of every row already copied: [2, R, H, T, D]."""
        return scaled_dot_product_attention(self.query[:, :, None], states[0], states[1])

    def repeated_calls(self) -> list[Callable[[], object]]:
        states = [
            pool[:, self.row_cells].transpose(2, 3).contiguous()
            for pool in self.pools[: 4 if self.case.is_cross else 0]
        ]
        return [partial(self.repeated, state) for state in states]


def measure(timer: Timer, journal: Journal, names: list[str], tiny: bool) -> None:
    for case in cases(tiny):
        if journal.is_over:
            return
        inputs = Inputs(case, timer.device)
        for name in names:
            time_it = partial(timer.graph_of, inputs.calls(partial(inputs.ours, name)))
            check = partial(inputs.check, name)
            journal.measure({**case.row, "backend": name}, time_it, inputs.num_bytes, check=check)
        if case.is_cross:
            row = {**case.row, "backend": "SDPA, states repeated per row"}
            calls = inputs.repeated_calls()
        else:
            row = {**case.row, "backend": "gather + SDPA"}
            calls = inputs.calls(inputs.gathered)
        journal.measure(row, partial(timer.graphed_us, calls), inputs.num_bytes)
