"""The logits of rows that an automaton shapes, beside a mask over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.forecast import Work
from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends.torch_automata import PoolArrays

EOS, FIRST_TOKEN = 2, 3


class AutomatonLogits(Kernel):
    """Rows in states of a pool, each of which has so many edges and allows nothing else."""

    op = "automaton_logits"
    label = "{} rows, V={}, {} states of {}"
    cases = Cases(
        cpu=cases(["float32"], [(50, 8000, 1000, 64), (5, 32000, 1000, 512)]),
        cuda=cases(["float32"], [(320, 8000, 1000, 64), (512, 32000, 1000, 512)]),
        tiny=[Case("float32", (3, 50, 4, 8))],
    )
    tolerance = 1e-5

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_rows: int,
        vocab_size: int,
        num_states: int,
        num_children: int,
    ) -> None:
        num_edges = num_states * num_children
        steps = torch.arange(num_children, dtype=torch.int32, device=device)
        token = (FIRST_TOKEN + steps * ((vocab_size - FIRST_TOKEN) // num_children)).repeat(
            num_states
        )
        first = torch.arange(0, num_edges + 1, num_children, dtype=torch.int32, device=device)
        # the edges of a state lead to all others in turn
        edge = torch.zeros(2, num_edges, dtype=torch.int32, device=device)
        edge[0] = torch.arange(num_edges, dtype=torch.int32, device=device) % num_states
        # no state looks further, and all may end
        numbers = torch.tensor([-1, -1, 0, 0, 0], dtype=torch.int32, device=device)
        pool = PoolArrays(token, first, edge, numbers.repeat(num_states + 1, 1))
        # every row is the second node of a tree of its own, behind one in state 1
        slot = torch.arange(num_rows, dtype=torch.int32, device=device)
        parent = torch.stack((torch.full_like(slot, -1), torch.zeros_like(slot)), 1)
        one = torch.ones_like(slot)
        places = slot, one, one * FIRST_TOKEN, one, one, 0 * one, 9 * one
        # a row is read where it has edges, and written
        self.work = Work(4 * num_rows * (vocab_size + 2 * num_children), 0)
        self.copies = [
            (logits, pool, parent, torch.ones_like(parent), *places)
            for logits in (
                torch.randn(num_rows, vocab_size, device=device)
                for _ in range(num_copies(device, self.work.num_bytes))
            )
        ]
        allowed = torch.cat((token[:num_children].long(), torch.tensor([EOS], device=device)))
        self._ban = torch.full((vocab_size,), float("-inf"), device=device)
        self._ban[allowed] = 0

    def ours(self, backend: backends.Backend, logits: Tensor, *walk: Any) -> Tensor:
        backend.automaton_logits(logits, *walk, (EOS,))
        return logits

    def in_torch(self, logits: Tensor, *_: object) -> Tensor:
        return logits + self._ban


bench_automaton_logits = times(AutomatonLogits)
