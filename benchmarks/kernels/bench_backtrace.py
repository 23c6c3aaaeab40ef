"""`backtrace`: the tokens of hypotheses, from their last nodes back, beside torch's one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam.inspect.work import Work

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

    def in_torch(
        self, token: Tensor, parent: Tensor, slot: Tensor, node: Tensor, capacity: int
    ) -> Tensor:
        """A parent is looked up for each token; what begins earlier repeats its first."""
        slot, found = slot.long(), []
        for _ in range(capacity - 1):
            found.append(token[slot, node.long()])
            node = parent[slot, node.long()].clamp(min=0)
        return torch.stack(found[::-1], 1)

    def in_compiled(
        self, token: Tensor, parent: Tensor, slot: Tensor, node: Tensor, capacity: int
    ) -> Tensor:
        """Known nodes double, because a graph of one token at a time takes a compiler long."""
        slot, num = slot.long(), 1
        # where so many tokens back lead from each node
        back = parent.index_select(0, slot).clamp(min=0).long()
        nodes = node.long()[:, None]
        while num < capacity - 1:
            nodes = torch.cat((back.gather(1, nodes), nodes), 1)
            back, num = back.gather(1, back), 2 * num
        return token.index_select(0, slot).gather(1, nodes[:, -(capacity - 1) :])


bench_backtrace = times(Backtrace)
