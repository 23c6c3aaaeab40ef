"""Residual, bias and norm in one kernel, beside torch's three."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import layer_norm

from benchmarks.gpu.journal import Journal, same
from benchmarks.gpu.timing import Timer
from pybeam import backends

EPSILON = 1e-5
CALLS = 10


def shapes(tiny: bool) -> list[tuple[int, int, torch.dtype]]:
    """Rows, columns and dtypes."""
    if tiny:
        return [(3, 24, torch.float32)]
    sizes = [(320, 1024), (5, 1024), (320, 256), (5, 256)]
    return [(*size, torch.bfloat16) for size in sizes] + [(320, 1024, torch.float32)]


class Inputs:
    def __init__(self, num_rows: int, size: int, dtype: torch.dtype, device: torch.device):
        self.row = {
            "op": "add_norm",
            "shape": f"[{num_rows}, {size}]",
            "dtype": str(dtype).removeprefix("torch."),
        }
        # x is read and written, y read, the result written
        self.num_bytes = 4 * num_rows * size * dtype.itemsize
        new = partial(torch.randn, device=device)
        self.x, self.y = (new(num_rows, size).to(dtype) for _ in range(2))
        self.bias, self.weight, self.shift = (new(size).to(dtype) for _ in range(3))

    def ours(self, backend: str) -> torch.Tensor:
        given = self.x, self.y, self.bias, self.weight, self.shift, EPSILON
        return backends.load(backend).add_norm(*given)

    def in_torch(self) -> torch.Tensor:
        self.x.add_(self.y + self.bias)
        return layer_norm(self.x, self.x.shape[1:], self.weight, self.shift, EPSILON)

    def check(self, backend: str) -> None:
        """The sum and its norm, beside those of numbers with twice the bits."""
        before = self.x.clone()
        kept = (before.float() + (self.y.float() + self.bias.float())).to(before.dtype)
        numbers = kept.double(), self.weight.double(), self.shift.double()
        theirs = layer_norm(numbers[0], kept.shape[1:], *numbers[1:], EPSILON)
        ours = self.ours(backend)
        is_float32 = before.dtype == torch.float32
        same(self.x, kept, 1e-6 if is_float32 else 8e-3)
        same(ours, theirs, 1e-5 if is_float32 else 8e-3)
        self.x.copy_(before)


def measure(timer: Timer, journal: Journal, names: list[str], tiny: bool) -> None:
    for shape in shapes(tiny):
        if journal.is_over:
            return
        inputs = Inputs(*shape, timer.device)
        for name in names:
            # where products add to what they find, no norm adds
            if backends.load(name).adds_in_products:
                continue
            time_it = partial(timer.graph_of, [partial(inputs.ours, name)] * CALLS)
            row, check = {**inputs.row, "backend": name}, partial(inputs.check, name)
            journal.measure(row, time_it, inputs.num_bytes, check=check)
        peers = {"torch": timer.eager_us, "torch, graph": timer.graphed_us}
        for name, time_calls in peers.items():
            time_it = partial(time_calls, [inputs.in_torch] * CALLS)
            journal.measure({**inputs.row, "backend": name}, time_it, inputs.num_bytes)


def measure_compiled(timer: Timer, journal: Journal, tiny: bool) -> None:
    """`torch.compile` takes seconds per shape."""
    if tiny or journal.is_over:
        return
    inputs = Inputs(*shapes(tiny)[0], timer.device)
    compiled = torch.compile(inputs.in_torch, dynamic=False)
    time_it = partial(timer.graphed_us, [compiled] * CALLS)
    journal.measure({**inputs.row, "backend": "torch.compile"}, time_it, inputs.num_bytes)
