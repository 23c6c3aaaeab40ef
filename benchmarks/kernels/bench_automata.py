"""Rows that an automaton leads on, and logits that it or a catalogue shapes, beside a mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends import torch_automata
from pybeam.backends.torch_automata import CatalogueArrays, PoolArrays
from pybeam.contracts import ColumnRules, Normalise
from pybeam.inspect.work import Work

EOS = 2
# most tokens of a hypothesis
MOST_TOKENS = 9
# of a vocabulary, for each edge of a state
TOKENS_PER_EDGE = 50


def edges_of(
    device: torch.device, vocab_size: int, num_states: int, num_children: int
) -> tuple[Tensor, Tensor]:
    """The tokens of so many edges of each state, and where those of each begin."""
    steps = torch.arange(num_children, dtype=torch.int32, device=device)
    token = (3 + steps * ((vocab_size - 3) // num_children)).repeat(num_states)
    end = num_states * num_children + 1
    return token, torch.arange(0, end, num_children, dtype=torch.int32, device=device)


def pool_of(
    device: torch.device, vocab_size: int, num_states: int, num_children: int
) -> PoolArrays:
    """States of so many edges each, which lead to all others in turn."""
    token, first = edges_of(device, vocab_size, num_states, num_children)
    edge = torch.zeros(2, token.numel(), dtype=torch.int32, device=device)
    edge[0] = torch.arange(token.numel(), dtype=torch.int32, device=device) % num_states
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
        self._size = num_rows, num_states, num_children
        pool = pool_of(device, TOKENS_PER_EDGE * num_children, num_states, num_children)
        walk = walk_of(pool, num_rows)
        self.copies, self.changes = [(pool, *walk)] * 10, [walk[1]]
        # the numbers of a row and of its slot, its parent and its state, and an edge
        self.work = Work(4 * num_rows * 14, 0)

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        # torch's code asks on the way whether a row still looks for an edge, which no graph can
        return ("torch", *cls.compiled(case)) if kind == "cuda" else ("torch",)

    def peer(self, name: str) -> Callable[..., object]:
        if "compile" in name:
            # made before it is timed
            _ = self._next
        return super().peer(name)

    @cached_property
    def _next(self) -> Tensor:
        """The state that each token leads to from each state, -1 where it has no such edge."""
        (pool, *_), *_ = self.copies
        _, num_states, num_children = self._size
        table = pool.edge.new_full((num_states, TOKENS_PER_EDGE * num_children), -1)
        # all states have edges of the same tokens
        token = pool.token[:num_children].long()
        return table.index_copy_(1, token, pool.edge[0].view(num_states, num_children))

    def in_torch(self, *arguments: Any) -> Tensor:
        return torch_automata.automaton_walk(*arguments)

    def in_compiled(
        self,
        pool: PoolArrays,
        parent: Tensor,
        state: Tensor,
        row_slot: Tensor,
        node: Tensor,
        token: Tensor,
        position: Tensor,
        line: Tensor,
        prefix_length: Tensor,
        max_length: Tensor,
    ) -> Tensor:
        """A table of all states and tokens, for which a large automaton has no room, in place of a search."""
        slot, own = row_slot.long(), node.long()
        before = state[slot, parent[slot, own].long()]
        here = self._next[before.long(), token.long()]
        state[slot, own] = here
        room = max_length[slot] - position + prefix_length[slot] - 1
        return torch.stack((here, room))


class ShapedRows(Kernel):
    """Rows in states that have so many edges each and allow nothing else."""

    label = "{} rows, V={}, {} states of {}"
    cases = Cases(
        cpu=cases(["float32"], [(50, 8000, 1000, 64), (5, 32000, 1000, 512)]),
        cuda=cases(["float32"], [(320, 8000, 1000, 64), (512, 32000, 1000, 512)]),
        tiny=[Case("float32", (3, 50, 4, 8))],
    )
    tolerance = 1e-5

    def _hold(self, num_rows: int, vocab_size: int, allowed: Tensor, *others: Any) -> None:
        """Keep logits for all calls, before the other arguments, and a mask of tokens."""
        device = allowed.device
        num = num_copies(device, self.work.num_bytes)
        logits = (torch.randn(num_rows, vocab_size, device=device) for _ in range(num))
        self.copies = [(one, *others) for one in logits]
        self._ban = torch.full((vocab_size,), float("-inf"), device=device)
        self._ban[allowed.long()] = self._ban[EOS] = 0


class AutomatonLogits(ShapedRows):
    """Rows in states of a pool."""

    op = "automaton_logits"

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
        # a row is read where it has edges, and written
        self.work = Work(4 * num_rows * (vocab_size + 2 * num_children), 0)
        walk = walk_of(pool, num_rows)
        self._hold(num_rows, vocab_size, pool.token[:num_children], pool, *walk)

    def ours(self, backend: backends.Backend, logits: Tensor, *walk: Any) -> Tensor:
        backend.automaton_logits(logits, *walk, (EOS,))
        return logits

    def in_torch(self, logits: Tensor, *_: object) -> Tensor:
        return logits + self._ban


class CatalogueColumns(ShapedRows):
    """Rows at nodes of a tree, of whose tokens that are allowed the log-probabilities are wanted."""

    op = "automaton_columns"
    label = "{} rows, V={}, {} nodes of {}"

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_rows: int,
        vocab_size: int,
        num_nodes: int,
        num_children: int,
    ) -> None:
        token, first = edges_of(device, vocab_size, num_nodes, num_children)
        size = (1, 2 * (token.numel() // 32 + 1))
        arrays = CatalogueArrays(token, first, torch.full(size, -1).to(token))
        node = torch.arange(num_rows, dtype=torch.int32, device=device) % num_nodes
        rules = ColumnRules(EOS, False, num_children, int(Normalise.VOCABULARY))
        # a row is read for its norm
        self.work = Work(4 * num_rows * (vocab_size + num_children + 1), 0)
        line = torch.zeros_like(node)
        self._hold(num_rows, vocab_size, token[:num_children], arrays, node, line, rules)

    def ours(self, backend: backends.Backend, logits: Tensor, arrays, node, line, rules) -> Tensor:
        return backend.automaton_columns(arrays, logits, node, line, rules)

    def in_torch(self, logits: Tensor, *_: object) -> Tensor:
        return torch.log_softmax(logits, 1) + self._ban


bench_automaton_walk = times(AutomatonWalk)
bench_automaton_logits = times(AutomatonLogits)
bench_automaton_columns = times(CatalogueColumns)
