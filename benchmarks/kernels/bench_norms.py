"""Norms of rows, and on a GPU residual, bias and norm in one kernel, beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import FLASHINFER, Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.inspect.work import Work

EPSILON = 1e-5
SIZES = [(320, 1024), (5, 1024), (320, 256), (5, 256)]
TINY = [Case("float32", (3, 24))]


class LayerNorm(Kernel):
    op = "layer_norm"
    label = "[{}, {}]"
    # on a GPU `add_norm` is in its place
    cases = Cases(cpu=cases(["float32"], SIZES), tiny=TINY)
    tolerance = 1e-5
    tolerance_of_halves = 8e-3

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        new = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
        num_bytes = 2 * num_rows * size * getattr(torch, dtype).itemsize
        self.work = Work(num_bytes, 0)
        self.copies = [(new(num_rows, size),) for _ in range(num_copies(device, num_bytes))]
        self._weight, self._shift = new(size), new(size)

    def ours(self, backend: backends.Backend, x: Tensor) -> Tensor:
        return backend.layer_norm(x, self._weight, self._shift, EPSILON)

    def in_torch(self, x: Tensor) -> Tensor:
        return layer_norm(x, self._weight.shape, self._weight, self._shift, EPSILON)


class RmsNorm(LayerNorm):
    op = "rms_norm"
    cases = Cases(
        cpu=cases(["float32"], SIZES),
        cuda=cases(["bfloat16"], SIZES[:2]),
        tiny=TINY,
    )

    others = (f"{FLASHINFER} rmsnorm",)

    def ours(self, backend: backends.Backend, x: Tensor) -> Tensor:
        return backend.rms_norm(x, self._weight, EPSILON)

    def in_other(self, name: str) -> Callable[..., object]:
        from flashinfer.norm import rmsnorm

        return lambda x: rmsnorm(x, self._weight, EPSILON)

    def in_torch(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._weight.shape, self._weight, EPSILON)


class AddNorm(Kernel):
    op = "add_norm"
    label = "[{}, {}]"
    # a CPU adds in products, and normalises apart
    cases = Cases(
        cuda=[*cases(["bfloat16"], SIZES), Case("float32", (320, 1024))],
        tiny=TINY,
    )
    tolerance = 1e-5
    tolerance_of_halves = 8e-3

    def __init__(self, device: torch.device, dtype: str, num_rows: int, size: int) -> None:
        new = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
        # x is read and written, the product read, the result written
        self.work = Work(4 * num_rows * size * getattr(torch, dtype).itemsize, 0)
        x, product = new(num_rows, size), new(num_rows, size)
        # in a step the L2 holds them
        self.copies = [(x, product)] * 10
        self.changes = [x]
        self._bias, self._weight, self._shift = new(size), new(size), new(size)

    def ours(self, backend: backends.Backend, x: Tensor, product: Tensor) -> Tensor:
        return backend.add_norm(x, product, self._bias, self._weight, self._shift, EPSILON)

    def in_torch(self, x: Tensor, product: Tensor) -> Tensor:
        x.add_(product + self._bias)
        return layer_norm(x, self._weight.shape, self._weight, self._shift, EPSILON)


bench_layer_norm = times(LayerNorm)
bench_rms_norm = times(RmsNorm)
bench_add_norm = times(AddNorm)
