"""`pybeam serve` on a machine in trouble: its model fails for some sources, and its wall clock jumps.

python -m support.faulty_server serve ...
"""

from __future__ import annotations

import itertools
import sys
import time

import torch

from pybeam.cli import main
from pybeam.models.transformer import model

# sources that begin with these ids
FAULTS = {"raises": [11, 11, 11], "no memory": [12, 12, 12], "not a number": [13, 13, 13]}
JUMPS = (0.0, 3600.0, -86400.0)


class FaultySession(model.TransformerSession):
    """A session whose steps fail while it has such a source."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._faults: dict[int, str] = {}

    def encode(self, sources, indices, slots) -> None:
        for source, slot in zip(sources, slots, strict=True):
            for fault, ids in FAULTS.items():
                if source.tolist()[:3] == ids:
                    self._faults[int(slot)] = fault
        super().encode(sources, indices, slots)

    def release(self, slots) -> None:
        for slot in slots:
            self._faults.pop(int(slot), None)
        super().release(slots)

    def step(self, rows) -> torch.Tensor:
        logits = super().step(rows)
        present = set(rows.row_slot.tolist())
        for slot, fault in self._faults.items():
            if slot not in present:
                continue
            if fault == "raises":
                raise IndexError("a model that is broken")
            if fault == "no memory":
                raise MemoryError("DefaultCPUAllocator: can't allocate memory")
            logits[rows.row_slot == slot] = torch.nan
        return logits


def break_everything() -> None:
    """Do to this process what this module is for."""
    kind = model.Transformer
    kind.session = lambda model, backend: FaultySession(model.with_backend(backend), backend)
    real, jumps = time.time, itertools.cycle(JUMPS)
    time.time = lambda: real() + next(jumps)


if __name__ == "__main__":
    break_everything()
    sys.exit(main())
