"""The ops that move rows and walk trees, beside the indexing that they replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.journal import Journal, same
from benchmarks.gpu.timing import Timer
from pybeam import backends

CALLS = 10


@dataclass(frozen=True)
class Comparison:
    """An op beside torch's, if torch has one. `changes` are what both change, and their result."""

    row: dict
    num_bytes: int
    ours: Callable[[Any], object]
    theirs: Callable[[], object] | None = None
    changes: Sequence[torch.Tensor] = ()

    def check(self, name: str) -> None:
        """Rows are moved and numbers are not changed, so all must be equal."""
        before = [tensor.clone() for tensor in self.changes]

        def result(backend: str) -> object:
            for tensor, old in zip(self.changes, before, strict=True):
                tensor.copy_(old)
            returned = self.ours(backends.load(backend))
            return [tensor.clone() for tensor in self.changes] or returned

        same(result(name), result("reference"))


def measure(timer: Timer, journal: Journal, names: list[str], tiny: bool) -> None:
    for op in (_gather_rows, _scatter_rows, _backtrace):
        one = op(timer.device, 8 if tiny else 320)
        for name in names:
            backend = backends.load(name)
            if not hasattr(backend, one.row["op"]):
                continue
            time_it = partial(timer.graph_of, [partial(one.ours, backend)] * CALLS)
            check = partial(one.check, name)
            journal.measure({**one.row, "backend": name}, time_it, one.num_bytes, check=check)
        if one.theirs is not None:
            time_it = partial(timer.graphed_us, [one.theirs] * CALLS)
            journal.measure({**one.row, "backend": "torch, graph"}, time_it, one.num_bytes)


def _row(op: str, shape: str, dtype: str) -> dict:
    return {"op": op, "shape": shape, "dtype": dtype}


def _gather_rows(device: torch.device, num_rows: int) -> Comparison:
    states = [torch.randn(num_rows, 1024, device=device) for _ in range(4)]
    target = torch.arange(num_rows, dtype=torch.int32, device=device)
    source = target // 5 * 5  # every entry continues the first of its beam
    wanted = source.long()

    def theirs() -> None:
        for state in states:
            state.copy_(state.index_select(0, wanted))

    row = _row("gather_rows", f"4 x [{num_rows}, 1024]", "float32")
    num_bytes = 2 * sum(state.numel() * 4 for state in states)
    return Comparison(
        row, num_bytes, lambda ops: ops.gather_rows(states, source, target), theirs, states
    )


def _scatter_rows(device: torch.device, num_rows: int) -> Comparison:
    pool = torch.randn(64 * num_rows, 1024, device=device).bfloat16()
    rows = torch.randn(num_rows, 1024, device=device).bfloat16()
    index = torch.randperm(64 * num_rows, device=device)[:num_rows].int()
    wide = index.long()
    row = _row("scatter_rows", f"[{num_rows}, 1024]", "bfloat16")
    num_bytes = 2 * rows.numel() * 2
    return Comparison(
        row,
        num_bytes,
        lambda ops: ops.scatter_rows(pool, index, rows),
        lambda: pool.index_copy_(0, wide, rows),
        [pool],
    )


def _backtrace(device: torch.device, num_rows: int) -> Comparison:
    num_slots, num_steps = max(num_rows // 5, 1), 100
    nodes = torch.arange(5 * num_steps, dtype=torch.int32, device=device)
    token = nodes.repeat(num_slots, 1)
    parent = (nodes - 5).clamp(min=-1).repeat(num_slots, 1)
    slot = torch.arange(num_slots, dtype=torch.int32, device=device)
    node = torch.full_like(slot, 5 * num_steps - 1)
    row = _row("backtrace", f"{num_slots} of {num_steps} tokens", "int32")
    num_bytes = 3 * 4 * num_slots * num_steps
    return Comparison(
        row, num_bytes, lambda ops: ops.backtrace(token, parent, slot, node, num_steps + 1)
    )
