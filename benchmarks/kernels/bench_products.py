"""Products on a GPU: few rows in one kernel with norm and sum, weights of 8 and 4 bits, beside torch's."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu import expected
from benchmarks.gpu.forecast import Part
from benchmarks.kernels.clock import num_copies
from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.backends import defaults, int4
from pybeam.backends.narrow import EIGHTS, dequantised, stored, turned
from pybeam.backends.packing import Quantised, quantise
from pybeam.backends.torch_layers import Activation
from pybeam.inspect.work import Work
from pybeam.models.float8 import Float8Linear

EPSILON = 1e-5
WITH_NORM, WITH_SUM = "norm before", "sum behind"


class Product(Kernel):
    """`product` of few rows, beside the kernels whose place it takes."""

    op = "product"
    label = "{} rows, {} x {}, {}"
    # weights come from memory: a network does not fit the L2
    cases = Cases(
        cuda=cases(
            ["bfloat16"],
            [
                (5, 3072, 1024, WITH_NORM),
                (5, 1024, 1024, WITH_SUM),
                (5, 4096, 1024, WITH_NORM),
                (5, 1024, 4096, WITH_SUM),
                (5, 768, 256, WITH_NORM),
                (5, 256, 1024, WITH_SUM),
                (64, 256, 256, WITH_SUM),
            ],
        ),
        tiny=cases(["float32"], [(3, 24, 64, WITH_NORM), (3, 24, 64, WITH_SUM)]),
    )
    tolerance = 1e-5
    tolerance_of_halves = 1e-2

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_rows: int,
        num_columns: int,
        depth: int,
        form: str,
    ) -> None:
        new = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
        self._sizes, self._form = (num_rows, num_columns, depth), form
        item = getattr(torch, dtype).itemsize
        rows = num_rows * (depth + (2 if form == WITH_SUM else 1) * num_columns)
        self.work = Work(item * (num_columns * depth + rows), 2 * num_rows * num_columns * depth)
        self._bias, self._scale, self._shift = new(num_columns), new(depth), new(depth)
        self._x, self._residual = new(num_rows, depth), new(num_rows, num_columns)
        self.changes = [self._residual] if form == WITH_SUM else []
        self.copies = [
            (depth**-0.5 * new(num_columns, depth),)
            for _ in range(num_copies(device, self.work.num_bytes))
        ]

    def ours(self, backend: backends.Backend, weight: Tensor) -> Tensor:
        if backend.few_rows is None:
            return self.in_torch(weight)
        norm = (self._scale, self._shift, EPSILON)
        if self._form == WITH_SUM:
            more = Activation.NONE, self._residual, None
        else:
            more = Activation.RELU, None, norm
        return backend.few_rows.product(self._x, weight, self._bias, *more)

    def in_torch(self, weight: Tensor) -> Tensor:
        if self._form == WITH_SUM:
            return self._residual.add_(F.linear(self._x, weight, self._bias))
        x = F.layer_norm(self._x, self._scale.shape, self._scale, self._shift, EPSILON)
        return F.linear(x, weight, self._bias).relu_()

    def expected(self, dtype: str) -> expected.Expected:
        part = Part("product", "", self.work, is_cold=True, is_few=True)
        us = part.us(expected.machine(), dtype) + expected.GAP_US
        return expected.Expected(self.work.us(expected.machine(), dtype), us)


HELD = {
    "int8": quantise,
    "E4M3": lambda weight: Quantised(*defaults.rounded_rows(weight)),
    "int4": int4.quantise_groups,
}
SHAPES = [
    (256, 256, WITH_SUM),
    (768, 256, WITH_NORM),
    (1024, 1024, WITH_SUM),
    (3072, 1024, WITH_NORM),
    (4096, 1024, WITH_NORM),
    (1024, 4096, WITH_SUM),
]


class NarrowProduct(Product):
    """The same with weights of 8 and 4 bits, beside torch's in the numbers that they stand for."""

    op = "product, narrow"
    label = "{} rows, {} x {}, {}, {}"
    cases = Cases(
        cuda=cases(
            ["bfloat16"],
            [
                *((5, *shape, held) for shape in SHAPES for held in HELD),
                *((64, 1024, 1024, WITH_SUM, held) for held in HELD),
            ],
        ),
        tiny=cases(
            ["float32"],
            [(3, 24, 64, form, held) for form in (WITH_NORM, WITH_SUM) for held in HELD],
        ),
    )
    # the reference multiplies by numbers that are rounded to bfloat16
    tolerance_of_halves = 2e-2

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        num_rows: int,
        num_columns: int,
        depth: int,
        form: str,
        held: str,
    ) -> None:
        super().__init__(device, dtype, num_rows, num_columns, depth, form)
        self.copies = [(weight, stored(HELD[held](weight))) for [weight] in self.copies]
        saved = num_columns * depth * getattr(torch, dtype).itemsize
        num_bytes = self.work.num_bytes - saved + sum(part.nbytes for part in self.copies[0][1])
        self.work = Work(num_bytes, self.work.flop)
        self._depth = depth

    def ours(self, backend: backends.Backend, weight: Tensor, narrow: Quantised) -> Tensor:
        if backend.few_rows is None:
            return super().in_torch(dequantised(narrow, self._depth, weight.dtype))
        return super().ours(backend, narrow)

    def in_torch(self, weight: Tensor, narrow: Quantised) -> Tensor:
        return super().in_torch(weight)


class Float8Product(Kernel):
    """`Float8Linear`: many rows are rounded in one kernel, and torch multiplies them.

    Its product in bfloat16 stands beside.
    """

    op = "linear, float8"
    label = "{} rows, {} x {}"
    cases = Cases(
        cuda=cases(["bfloat16"], [(320, 4096, 1024), (320, 1024, 4096)]),
        tiny=[Case("bfloat16", (3, 32, 48))],
    )
    # products of the same numbers, rounded to bfloat16
    tolerance_of_halves = 1e-2

    def __init__(
        self, device: torch.device, dtype: str, num_rows: int, num_columns: int, depth: int
    ) -> None:
        new = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
        self._x, numbers = new(num_rows, depth), num_columns * depth
        self.work = Work(numbers + 2 * num_rows * (num_columns + depth), 2 * num_rows * numbers)
        self.copies = []
        for _ in range(num_copies(device, self.work.num_bytes)):
            weight = depth**-0.5 * new(num_columns, depth)
            self.copies.append((weight, Float8Linear(weight, None)))

    def ours(self, backend: backends.Backend, weight: Tensor, layer: Float8Linear) -> Tensor:
        if backend.rounded_rows is defaults.rounded_rows:
            (p, scale), q = (
                defaults.rounded_rows(self._x),
                layer.weight.float() * layer.scale[:, None],
            )
            p = p if layer.narrow is None else turned(p, EIGHTS)
            return (p.float() * scale[:, None]) @ q.t()
        return layer.with_backend(backend)(self._x)

    def in_torch(self, weight: Tensor, layer: Float8Linear) -> Tensor:
        return F.linear(self._x, weight)

    def expected(self, dtype: str) -> expected.Expected:
        return expected.of_work(self.work, "float8_e4m3fn", "product")


bench_product = times(Product)
bench_narrow_product = times(NarrowProduct)
bench_float8_product = times(Float8Product)
