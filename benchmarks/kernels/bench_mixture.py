"""The logits of an ensemble made one on a CPU, beside torch's logsumexp and logaddexp."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.backends import torch_layers
from pybeam.inspect.work import Work


class Mixture(Kernel):
    op = "mixture"
    label = "{} x [{}, {}]"
    cases = Cases(
        cpu=cases(["float32"], [(5, 50, 8000), (2, 320, 8000), (5, 5, 32000)]),
        tiny=[Case("float32", (2, 3, 50))],
    )
    tolerance = 1e-5

    def __init__(
        self, device: torch.device, dtype: str, num_members: int, num_rows: int, vocab_size: int
    ) -> None:
        logits = [torch.randn(num_rows, vocab_size) for _ in range(num_members)]
        out = torch.empty(num_rows, vocab_size)
        self.copies, self.changes = [(out, logits)], [out]
        self.work = Work(4 * (num_members + 1) * num_rows * vocab_size, 0)

    def in_torch(self, out: Tensor, logits: list[Tensor]) -> None:
        torch_layers.mixture(out, logits)


class SoftCap(Kernel):
    op = "soft_cap"
    label = "[{}, {}]"
    cases = Cases(
        cpu=cases(["float32"], [(50, 8000), (5, 32000)]),
        tiny=[Case("float32", (3, 50))],
    )
    tolerance = 1e-5

    def __init__(self, device: torch.device, dtype: str, num_rows: int, vocab_size: int) -> None:
        x = torch.randn(num_rows, vocab_size)
        self.copies, self.changes = [(x, 30.0)], [x]
        self.work = Work(2 * 4 * num_rows * vocab_size, 0)

    def in_torch(self, x: Tensor, cap: float) -> None:
        torch_layers.soft_cap(x, cap)


bench_mixture = times(Mixture)
bench_soft_cap = times(SoftCap)
