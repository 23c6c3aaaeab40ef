"""Top-k, top-p and min-p alone: the kernel looks for the floor of a row, beside torch, which sorts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.backends import Backend
from pybeam.inspect.work import Work
from pybeam.processors.truncation import MinP, TopK, TopP, Truncation

# the processor, what it asks for, and the dtype of that
CUTS: dict[str, tuple[Truncation, float, torch.dtype]] = {
    "top-k": (TopK(), 50, torch.int32),
    "top-p": (TopP(), 0.9, torch.float32),
    "min-p": (MinP(), math.log(0.05), torch.float32),
}
SIZES = [(320, 42000), (5, 42000)]


class Cut(Kernel):
    """Every row asks for the same. Logits are spread as far as those of a language model."""

    op = "cut"
    label = "[{}, {}], {}"
    # a CPU takes torch's
    cases = Cases(
        cuda=cases(["float32"], [(*size, name) for size in SIZES for name in CUTS]),
        tiny=[Case("float32", (3, 50, name)) for name in CUTS],
    )

    def __init__(
        self, device: torch.device, dtype: str, num_rows: int, vocab_size: int, name: str
    ) -> None:
        self._processor, value, given_dtype = CUTS[name]
        self._slot = torch.arange(num_rows, dtype=torch.int32, device=device)
        self._given = torch.full((num_rows,), value, dtype=given_dtype, device=device)
        # nearly all tokens are cut, and so written
        self.work = Work(2 * 4 * num_rows * vocab_size, 0)
        self.copies = [
            (3 * torch.randn(num_rows, vocab_size, device=device),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]
        self.changes = [logits for (logits,) in self.copies]
        self._kept = [logits.clone() for logits in self.changes]
        # a row that is cut already has another nucleus
        self.before = self._restore

    def _restore(self) -> None:
        for logits, kept in zip(self.changes, self._kept, strict=True):
            logits.copy_(kept)

    @classmethod
    def compiled(cls, case: Case) -> tuple[str, ...]:
        """Each of the three once."""
        return ("torch.compile",) if case.size[:2] == SIZES[0] else ()

    def ours(self, backend: Backend, logits: Tensor) -> None:
        if backend.draw is None:
            self.in_torch(logits)
        else:
            backend.draw.cut(logits, self._slot, **{self._processor.asks: self._given})

    def in_torch(self, logits: Tensor) -> None:
        """The reference's way, which overwrites these logits, too."""
        self._processor.cut(logits, self._given)


bench_cut = times(Cut)
