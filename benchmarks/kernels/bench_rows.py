"""Rows that are moved within and between tensors, beside the indexing that this replaces."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.inspect.work import Work

CALLS = 10
TINY = [Case("float32", (8, 1024))]


class GatherRows(Kernel):
    op = "gather_rows"
    label = "4 x [{}, {}]"
    cases = Cases(
        cpu=cases(["float32"], [(320, 256), (5, 256)]),
        cuda=cases(["float32"], [(320, 1024)]),
        tiny=TINY,
    )

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        torch_dtype = getattr(torch, dtype)
        self.changes = [
            torch.randn(num_rows, size, device=device).to(torch_dtype) for _ in range(4)
        ]
        target = torch.arange(num_rows, dtype=torch.int32, device=device)
        # every entry continues the first of its beam
        source = target // 5 * 5
        self._wanted = source.long()
        self.copies = [(self.changes, source, target)] * CALLS
        # one row of a beam is read, and the four others are written
        self.work = Work(4 * num_rows * size * torch_dtype.itemsize, 0)

    def in_torch(self, states: list[Tensor], source: Tensor, target: Tensor) -> None:
        for state in states:
            state.copy_(state.index_select(0, self._wanted))


class ScatterRows(Kernel):
    op = "scatter_rows"
    label = "[{}, {}]"
    cases = Cases(
        cpu=cases(["float32"], [(320, 256), (5, 256)]),
        cuda=cases(["bfloat16"], [(320, 1024)]),
        tiny=TINY,
    )

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        torch_dtype = getattr(torch, dtype)
        pool = torch.randn(64 * num_rows, size, device=device).to(torch_dtype)
        rows = torch.randn(num_rows, size, device=device).to(torch_dtype)
        index = torch.randperm(64 * num_rows, device=device)[:num_rows].int()
        self._wide = index.long()
        self.changes, self.copies = [pool], [(pool, index, rows)] * CALLS
        self.work = Work(2 * num_rows * size * torch_dtype.itemsize, 0)

    def in_torch(self, pool: Tensor, index: Tensor, rows: Tensor) -> None:
        pool.index_copy_(0, self._wide, rows)


bench_gather_rows = times(GatherRows)
bench_scatter_rows = times(ScatterRows)
