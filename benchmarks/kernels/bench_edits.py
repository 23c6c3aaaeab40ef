"""The edits of processors alone, on logits that they change in place, beside the same edits in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.forecast import Work
from benchmarks.kernels.bench_processors import BANNED, CHAINS, PENALTY, SIZE_OF_NGRAM, Chain
from benchmarks.kernels.kernel import Cases, cases, times
from pybeam import backends

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
        known: dict[str, Any] = {
            "repetition": self._repetition,
            "n-gram": self._ngram,
            "suppress": self._suppress,
        }
        for name in self._names:
            known[name](logits)

    def _repetition(self, logits: Tensor) -> None:
        index = self._history.long()
        own = logits.gather(1, index)
        logits.scatter_(1, index, torch.where(own < 0, own * PENALTY, own / PENALTY))

    def _ngram(self, logits: Tensor) -> None:
        """Ban the last token of each n-gram that begins as the hypothesis ends."""
        grams = self._history.unfold(1, SIZE_OF_NGRAM, 1)  # [R, T - n + 1, n]
        end = self._history[:, None, -(SIZE_OF_NGRAM - 1) :]
        is_same = (grams[..., :-1] == end).all(2)
        token = grams[..., -1].long()
        logits.scatter_reduce_(1, token, torch.where(is_same, -torch.inf, torch.inf), "amin")

    def _suppress(self, logits: Tensor) -> None:
        for *before, token in BANNED:
            is_hit = torch.ones_like(self._history[:, 0], dtype=torch.bool)
            for i, one in enumerate(reversed(before)):
                is_hit &= self._history[:, -1 - i] == one
            logits[:, token].masked_fill_(is_hit, -torch.inf)


bench_edit_logits = times(EditLogits)
