"""Nodes that are appended to token trees and trees that are emptied, beside sequences that are copied."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu import expected
from benchmarks.gpu.forecast import ALONE_US, GAP_US, KERNEL_US
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends.arrays import TreeArrays, tree_survivors
from pybeam.contracts import PAGE_CELLS, Survivors
from pybeam.inspect.work import Work
from pybeam.kvcache.token_tree import TokenTree

START, EOS = 0, 2
# the CPU grows the trees: the reference is slow, and gives the same ones
GROWS = ("native", "reference")


def grown(num_beams: int, width: int, length: int, device: torch.device) -> TreeArrays:
    """Trees of so many tokens a hypothesis; each step continues two entries of a beam."""
    backend = backends.load(next(name for name in GROWS if name in backends.available()))
    tree = TokenTree(backend, torch.device("cpu"))
    tree.reserve(num_beams, width, length + 2)
    # as many as there are cells for, should no node go
    tree.reserve_pages(num_beams * (-(-width * (length + 2) // PAGE_CELLS) + 1))
    slot = torch.arange(num_beams, dtype=torch.int32)
    tree.open(slot, START)
    for step in range(length):
        tree.append(slot, survivors_of(num_beams, width, slot.device, is_first=step == 0), EOS)
    return TreeArrays(*[array.to(device) for array in tree.arrays])


def survivors_of(
    num_beams: int, width: int, device: torch.device, is_first: bool = False
) -> Survivors:
    """Each beam's next rows; those of the first step come from one row."""
    entry = torch.arange(width, dtype=torch.int32, device=device)
    parent = entry * 0 if is_first else (entry // 3).clamp(max=width - 1)
    token = (3 + entry).repeat(num_beams, 1)
    return tree_survivors(token, parent.repeat(num_beams, 1), -token.float())


class TreeAppend(Kernel):
    op = "tree_append"
    label = "{}x{}, T={}"
    cases = Cases(
        cpu=cases(["int32"], [(64, 5, 32), (1, 5, 32)]),
        cuda=cases(["int32"], [(64, 5, 32), (1, 5, 32), (64, 50, 32), (4, 200, 8)]),
        tiny=[Case("int32", (2, 3, 4))],
    )
    # what an entry inherits, then the books
    num_kernels = 2

    def __init__(
        self, device: torch.device, dtype: str, num_beams: int, width: int, length: int
    ) -> None:
        tree = grown(num_beams, width, length, device)
        self.changes = list(tree)
        self._kept = [array.clone() for array in tree]
        self.before = self._restore
        slot = torch.arange(num_beams, dtype=torch.int32, device=device)
        self.copies = [(tree, slot, survivors_of(num_beams, width, device), EOS)]
        arange = partial(torch.arange, device=device)
        self._sequences = torch.zeros(
            num_beams * width, length + 2, dtype=torch.int64, device=device
        )
        first = arange(0, num_beams * width, width).repeat_interleave(width)
        self._rows = first + arange(width).repeat(num_beams) // 3
        # the masks or paths of live nodes are read and written, and five numbers of each new one written
        seen = tree.live_mask[:, : width * length] if tree.live_mask.shape[2] else tree.path
        self.work = Work(2 * seen.nbytes + 5 * 4 * num_beams * width, 0)

    def _restore(self) -> None:
        for array, kept in zip(self.changes, self._kept, strict=True):
            array.copy_(kept)

    def expected(self, dtype: str) -> expected.Expected:
        """Each replay is one call alone, because the trees are put back before the next."""
        least = expected.of_work(self.work, dtype)
        us = ALONE_US + self.num_kernels * (KERNEL_US["books"] + GAP_US)
        return expected.Expected(least.limit, us + least.limit)

    def ours(self, backend: backends.Backend, *arguments: object) -> None:
        backend.tree_append(*arguments)  # type: ignore[arg-type]

    def in_torch(self, tree: TreeArrays, slot: Tensor, survivors: Survivors, eos: int) -> None:
        """The sequences of all rows are copied, without keys and values, and their tokens written."""
        self._sequences.copy_(self._sequences.index_select(0, self._rows))
        self._sequences[:, -1] = survivors.token.view(-1)


class TreeRelease(TreeAppend):
    op = "tree_release"
    cases = Cases(
        cpu=cases(["int32"], [(64, 5, 32)]),
        cuda=cases(["int32"], [(64, 5, 32), (1, 5, 32)]),
        tiny=[Case("int32", (2, 3, 4))],
    )
    num_kernels = 1

    def __init__(
        self, device: torch.device, dtype: str, num_beams: int, width: int, length: int
    ) -> None:
        super().__init__(device, dtype, num_beams, width, length)
        [(tree, slot, *_)] = self.copies
        self.copies = [(tree, slot)]
        # pages go back, each read and written
        self.work = Work(2 * tree.page.nbytes, 0)

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        return ()

    def ours(self, backend: backends.Backend, *arguments: object) -> None:
        backend.tree_release(*arguments)  # type: ignore[arg-type]


bench_tree_append = times(TreeAppend)
bench_tree_release = times(TreeRelease)
