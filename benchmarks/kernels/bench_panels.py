"""Weights that are packed into panels while a model is loaded, beside torch's transposed copy."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.inspect.work import Work

PANEL = 64


class FillPanels(Kernel):
    op = "fill_panels"
    label = "[{}, {}]"
    cases = Cases(
        cpu=cases(["float32"], [(1024, 256), (4096, 1024)]), tiny=[Case("float32", (128, 24))]
    )

    def __init__(self, device: torch.device, dtype: str, num_columns: int, depth: int) -> None:
        rows = torch.randn(num_columns, depth, device=device).to(getattr(torch, dtype))
        panels = rows.new_empty(num_columns // PANEL, depth, PANEL)
        self.changes, self.copies = [panels], [(panels, rows)]
        self.work = Work(2 * rows.nbytes, 0)

    def in_torch(self, panels: Tensor, rows: Tensor) -> None:
        panels.copy_(rows.view(len(panels), PANEL, -1).transpose(1, 2))


bench_fill_panels = times(FillPanels)
