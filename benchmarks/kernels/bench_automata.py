"""Rows that an automaton leads on, and logits that it shapes, beside a mask over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.forecast import Work
from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends import torch_automata
from pybeam.backends.torch_automata import PoolArrays

EOS = 2
# most tokens of a hypothesis
MOST_TOKENS = 9


def pool_of(
    device: torch.device, vocab_size: int, num_states: int, num_children: int
) -> PoolArrays:
    """States of so many edges each, which lead to all others in turn."""
    num_edges = num_states * num_children
    steps = torch.arange(num_children, dtype=torch.int32, device=device)
    token = (3 + steps * ((vocab_size - 3) // num_children)).repeat(num_states)
    first = torch.arange(0, num_edges + 1, num_children, dtype=torch.int32, device=device)
    edge = torch.zeros(2, num_edges, dtype=torch.int32, device=device)
    edge[0] = torch.arange(num_edges, dtype=torch.int32, device=device) % num_states
    # no state looks further, and all may end
    numbers = torch.tensor([-1, -1, 0, 0, 0, 0], dtype=torch.int32, device=device)
    return PoolArrays(token, first, edge, numbers.repeat(num_states + 1, 1))


def walk_of(pool: PoolArrays, num_rows: int) -> tuple[Tensor, ...]:
    """The arguments of a walk: each row is the second node of a tree of its own, behind one in state 1."""
    slot = torch.arange(num_rows, dtype=torch.int32, device=pool.token.device)
    parent = torch.stack((torch.full_like(slot, -1), torch.zeros_like(slot)), 1)
    one = torch.ones_like(slot)
    token = pool.token[:1].expand(num_rows).contiguous()
    places = slot, one, token, one, one, 0 * one, MOST_TOKENS * one
    return parent, torch.ones_like(parent), *places


class AutomatonWalk(Kernel):
    """Rows go on from the states of their parents."""

    op = "automaton_walk"
    label = "{} rows, {} states of {}"
    cases = Cases(
        cpu=cases(["int32"], [(50, 1000, 64), (5, 1000, 512)]),
        cuda=cases(["int32"], [(320, 1000, 64), (512, 1000, 512)]),
        tiny=[Case("int32", (3, 4, 8))],
    )

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_rows: int,
        num_states: int,
        num_children: int,
    ) -> None:
        pool = pool_of(device, 50 * num_children, num_states, num_children)
        walk = walk_of(pool, num_rows)
        self.copies, self.changes = [(pool, *walk)] * 10, [walk[1]]
        # the numbers of a row and of its slot, its parent and its state, and an edge
        self.work = Work(4 * num_rows * 14, 0)

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        # torch's code asks on the way whether a row still looks for an edge, which no graph can
        return ("torch",)

    def in_torch(self, *arguments: Any) -> Tensor:
        return torch_automata.automaton_walk(*arguments)


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
        pool = pool_of(device, vocab_size, num_states, num_children)
        walk = walk_of(pool, num_rows)
        # a row is read where it has edges, and written
        self.work = Work(4 * num_rows * (vocab_size + 2 * num_children), 0)
        self.copies = [
            (logits, pool, *walk)
            for logits in (
                torch.randn(num_rows, vocab_size, device=device)
                for _ in range(num_copies(device, self.work.num_bytes))
            )
        ]
        allowed = torch.cat((pool.token[:num_children].long(), torch.tensor([EOS], device=device)))
        self._ban = torch.full((vocab_size,), float("-inf"), device=device)
        self._ban[allowed] = 0

    def ours(self, backend: backends.Backend, logits: Tensor, *walk: Any) -> Tensor:
        backend.automaton_logits(logits, *walk, (EOS,))
        return logits

    def in_torch(self, logits: Tensor, *_: object) -> Tensor:
        return logits + self._ban


bench_automaton_walk = times(AutomatonWalk)
bench_automaton_logits = times(AutomatonLogits)
