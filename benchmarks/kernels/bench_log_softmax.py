"""`log_softmax` on a GPU, beside torch's in the dtype of the logits and of the result."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.inspect.work import Work


class LogSoftmax(Kernel):
    op = "log_softmax"
    label = "[{}, {}]"
    # a CPU takes torch's
    cases = Cases(
        cuda=cases(["bfloat16", "float32"], [(320, 42000), (5, 42000), (320, 8000)]),
        tiny=[Case("float32", (3, 50))],
    )
    tolerance = 1e-5
    tolerance_of_halves = 1e-5

    def __init__(self, device: torch.device, dtype: str, num_rows: int, vocab_size: int) -> None:
        torch_dtype = getattr(torch, dtype)
        # the results are float32
        self.work = Work(num_rows * vocab_size * (torch_dtype.itemsize + 4), 0)
        self.copies = [
            ((2 * torch.randn(num_rows, vocab_size, device=device)).to(torch_dtype),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def in_torch(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, 1, dtype=torch.float32)


bench_log_softmax = times(LogSoftmax)
