"""The edits of processors alone, on logits that they change in place, beside the same edits in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.bench_processors import CHAINS, Chain
from benchmarks.kernels.kernel import Cases, cases, times
from pybeam import backends
from pybeam.inspect.work import Work

VOCABULARY, BEAMS, WIDTH, LENGTH = 42000, 64, 5, 32
CALLS = 10


class EditLogits(Chain):
    """A chain of processors whose neighbours share a launch; hypotheses are known."""

    op = "edit_logits"
    cases = Cases(
        cpu=cases(["float32"], [(chain, 8000, BEAMS, WIDTH, LENGTH) for chain in CHAINS]),
        cuda=cases(["float32"], [(chain, VOCABULARY, BEAMS, WIDTH, LENGTH) for chain in CHAINS]),
        tiny=cases(["float32"], [(chain, 500, 2, 3, 8) for chain in CHAINS]),
    )
    tolerance = 1e-6

    def __init__(self, device: torch.device, dtype: str, *size: Any) -> None:
        super().__init__(device, dtype, *size)
        self.changes = [*self.copies[0]]
        self.copies *= 1 if device.type == "cpu" else CALLS
        # tokens are read, and as many logits are read and written
        self.work = Work(self._history.numel() * (4 + 8), 0)

    def ours(self, backend: backends.Backend, logits: Tensor) -> None:
        chain, rows = self._chain(backend, logits.device)
        # known before anything is timed
        vars(rows)["history"] = self._history
        edited = chain(logits, rows)
        # the reference makes new ones
        if edited is not logits:
            logits.copy_(edited)

    def in_torch(self, logits: Tensor) -> None:
        self.edit(logits)


bench_edit_logits = times(EditLogits)
