"""`linear` on a CPU, beside what torch multiplies with.

Weights rotate: a call takes the next of as many copies as a decoder of six layers has numbers, up to
`MOST_BYTES`. So they are read from where they lie while a model decodes: those of the small model stay
in the cache of most CPUs, those of the others do not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, same, times
from pybeam import backends
from pybeam.backends.packing import quantise
from pybeam.inspect.work import Work
from pybeam.models.linear import PackedLinear

MOST_BYTES = 128 * 2**20
# model -> hidden size, size of the vocabulary
MODELS = {"small": (256, 8000), "base": (512, 32000), "big": (1024, 42000)}
ROWS = (1, 5, 16, 64, 320)
# storage of the weights -> bytes of a number; float16 is float32 kept in float16
NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
# instruction set -> the storages that it has instructions of its own for
OWN_INSTRUCTIONS = {
    "avx2": ("float32", "float16", "bfloat16", "int8"),
    "avx_vnni": ("int8",),
    "avx512": ("float32", "float16", "bfloat16", "int8"),
    "avx512_vnni": ("int8",),
    "avx512_bf16": ("bfloat16",),
    "amx_int8": ("int8",),
}
# of the largest number of a product
TOLERANCE = 1e-4
PEERS = {
    "float32": ("F.linear", "oneDNN packed"),
    "bfloat16": ("F.linear", "oneDNN packed"),
    "int8": ("_int_mm",),
}


def layers() -> list[tuple]:
    """Model, outputs, inputs and rows of each layer; many rows of the largest one would take minutes."""
    found = []
    for model, (hidden, vocab_size) in MODELS.items():
        sizes = [(4 * hidden, hidden), (hidden, hidden), (hidden, 4 * hidden), (vocab_size, hidden)]
        for columns, depth in sizes:
            rows = ROWS[:2] if columns == vocab_size and model == "big" else ROWS
            found += [(model, columns, depth, num_rows) for num_rows in rows]
    return found


class Linear(Kernel):
    op = "linear"
    label = "{} {} x {}, {} rows"
    cases = Cases(
        cpu=cases(NUMBER_BYTES, layers()),
        tiny=[Case(dtype, ("small", 128, 64, 3)) for dtype in NUMBER_BYTES],
    )

    @classmethod
    def isas(cls, dtype: str) -> tuple[str, ...]:
        return tuple(isa for isa, dtypes in OWN_INSTRUCTIONS.items() if dtype in dtypes)

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        named = PEERS.get(case.dtype, ())
        # with AVX2 alone oneDNN refuses bfloat16
        if case.dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return tuple(name for name in named if name != "oneDNN packed")
        return named

    def __init__(
        self,
        device: torch.device,
        dtype: str,
        model: str,
        num_columns: int,
        depth: int,
        num_rows: int,
    ) -> None:
        self._dtype, self._num_rows = dtype, num_rows
        numbers, number_bytes = num_columns * depth, NUMBER_BYTES[dtype]
        self.work = Work(
            numbers * number_bytes + 4 * num_rows * (num_columns + depth), 2 * num_rows * numbers
        )
        self._x, self._y = torch.randn(num_rows, depth), torch.empty(num_rows, num_columns)
        self._weight, self._bias = torch.randn(num_columns, depth), torch.zeros(num_columns)
        hidden, vocab_size = MODELS[model]
        # self-attention, cross-attention and feed-forward of six layers, and logits
        decoder = 6 * (4 + 2 + 8) * hidden**2 + vocab_size * hidden
        num_copies = max(1, min(decoder, MOST_BYTES // number_bytes) // numbers)
        self.copies = [(self._packed(),) for _ in range(num_copies)]

    def _packed(self) -> PackedLinear:
        if self._dtype == "int8":
            return PackedLinear(quantise(self._weight), self._bias)
        rounded = self._weight.to(getattr(torch, self._dtype))
        return PackedLinear(rounded.float() if self._dtype == "float16" else rounded, self._bias)

    def ours(self, backend: backends.Backend, layer: PackedLinear) -> Tensor:
        return layer.with_backend(backend)(self._x, self._y)

    def calls(self, name: str) -> list[Callable[[], object]]:
        if name == "native":
            layers = [layer for [layer] in self.copies]
            return [lambda layer=layer: layer(self._x, self._y) for layer in layers]
        make = {"F.linear": self._plain, "oneDNN packed": self._mkldnn, "_int_mm": self._int_mm}
        return [make[name]() for _ in self.copies]

    def check(self, name: str, dtype: str) -> None:
        """Sums have another order; those of integers are exact."""
        [layer] = self.copies[0]
        ours = self.ours(backends.load(name), layer).clone()
        same(ours, self.ours(backends.load("reference"), layer), TOLERANCE)

    def _plain(self) -> Callable[[], object]:
        kind = getattr(torch, self._dtype)
        x, weight, bias = (one.to(kind).clone() for one in (self._x, self._weight, self._bias))
        return lambda: F.linear(x, weight, bias)

    def _mkldnn(self) -> Callable[[], object]:
        """oneDNN lays the weights out for this number of rows."""
        kind, ops = getattr(torch, self._dtype), torch.ops.mkldnn
        x, bias = self._x.to(kind), self._bias.to(kind)
        weight = ops._reorder_linear_weight(self._weight.to(kind), self._num_rows)
        return lambda: ops._linear_pointwise(x, weight, bias, "none", [], "")

    def _int_mm(self) -> Callable[[], object]:
        """It neither quantises its inputs nor scales its sums."""
        x, weight = (20 * self._x).to(torch.int8), quantise(self._weight).q
        return lambda: torch._int_mm(x, weight.t())


bench_linear = times(Linear)
