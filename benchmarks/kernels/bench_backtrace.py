"""`backtrace`: the tokens of hypotheses, from their last nodes back, beside torch's one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.gpu.forecast import Work
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times

WIDTH = 5


class Backtrace(Kernel):
    op = "backtrace"
    label = "{} of {} tokens"
    cases = Cases(
        cpu=cases(["int32"], [(64, 100), (1, 100)]),
        cuda=cases(["int32"], [(64, 100)]),
        tiny=[Case("int32", (1, 100))],
    )

    def __init__(self, device: torch.device, dtype: str, num_slots: int, num_steps: int) -> None:
        nodes = torch.arange(WIDTH * num_steps, dtype=torch.int32, device=device)
        token = nodes.repeat(num_slots, 1)
        parent = (nodes - WIDTH).clamp(min=-1).repeat(num_slots, 1)
        slot = torch.arange(num_slots, dtype=torch.int32, device=device)
        node = torch.full_like(slot, WIDTH * num_steps - 1)
        self.copies = [(token, parent, slot, node, num_steps + 1)] * 10
        self.work = Work(3 * 4 * num_slots * num_steps, 0)

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        # a graph of so many operators takes a compiler long
        return tuple(name for name in super().peers(kind, case) if "compile" not in name)

    def in_torch(
        self, token: Tensor, parent: Tensor, slot: Tensor, node: Tensor, capacity: int
    ) -> Tensor:
        """A parent is looked up for each token; what begins earlier repeats its first."""
        slot, found = slot.long(), []
        for _ in range(capacity - 1):
            found.append(token[slot, node.long()])
            node = parent[slot, node.long()].clamp(min=0)
        return torch.stack(found[::-1], 1)


bench_backtrace = times(Backtrace)
