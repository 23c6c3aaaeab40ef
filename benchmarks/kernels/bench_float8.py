"""Rows rounded to E4M3 on a GPU, with a scale each, beside the formula in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.backends import defaults
from pybeam.inspect.work import Work


class RoundedRows(Kernel):
    op = "rounded_rows"
    label = "[{}, {}]"
    cases = Cases(
        cuda=cases(["bfloat16"], [(320, 1024), (320, 4096), (5, 1024)]),
        tiny=[Case("float32", (3, 24))],
    )

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        torch_dtype = getattr(torch, dtype)
        self.work = Work(num_rows * size * (torch_dtype.itemsize + 1), 0)
        self.copies = [
            (torch.randn(num_rows, size, device=device).to(torch_dtype),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def in_torch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return defaults.rounded_rows(x)


bench_rounded_rows = times(RoundedRows)
