"""The operator `linear` on a CPU, beside what torch multiplies with.

Weights rotate: a call takes the next of as many copies as a decoder of six layers has numbers, up to
`MOST_BYTES`. So they are read from where they lie while a model decodes: those of the small model stay
in the cache of most CPUs, those of the others do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed
from pybeam.backends import load
from pybeam.backends.packing import quantise
from pybeam.models.linear import PackedLinear

TURNS = 3
# seconds of one system in one turn, roughly, and the speed by which its calls are counted
TURN, SPEED = 5e-3, 5e10
MOST_BYTES = 128 * 2**20
# model -> hidden size, size of the vocabulary
MODELS = {"small": (256, 8000), "base": (512, 32000), "big": (1024, 42000)}
ROWS = (1, 2, 5, 8, 16, 64, 320)
FEW_ROWS = (1, 5, 16, 64, 320)
# more rows do not wait for memory
MOST_READING_ROWS = 16
# storage of the weights -> bytes of a number
NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
# instruction set -> the storages that it has instructions of its own for
ISAS = {
    "avx2": ("float32", "float16", "bfloat16", "int8"),
    "avx_vnni": ("int8",),
    "avx512": ("float32", "float16", "bfloat16", "int8"),
    "avx512_vnni": ("int8",),
    "avx512_bf16": ("bfloat16",),
    "amx_int8": ("int8",),
}
PEAK_ROWS, PEAK_SIZE = 384, 512


@dataclass(frozen=True)
class Shape:
    """A layer of a model: `num_columns` outputs of `depth` inputs."""

    model: str
    num_columns: int
    depth: int

    @property
    def name(self) -> str:
        return f"{self.model} {self.num_columns} x {self.depth}"

    @property
    def numbers(self) -> int:
        return self.num_columns * self.depth

    def num_copies(self, number_bytes: int) -> int:
        """As many as take the bytes of the decoder: self-attention, cross-attention, feed-forward, logits."""
        hidden, vocab_size = MODELS[self.model]
        decoder = 6 * (4 + 2 + 8) * hidden**2 + vocab_size * hidden
        return max(1, min(decoder, MOST_BYTES // number_bytes) // self.numbers)


@dataclass(eq=False)
class Weights:
    """The copies of one layer in every form; each is made when it is first asked for."""

    shape: Shape
    _made: dict[str, list] = field(default_factory=dict)

    @cached_property
    def weight(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.shape.num_columns, self.shape.depth, generator=generator)

    @cached_property
    def bias(self) -> Tensor:
        return torch.zeros(self.shape.num_columns)

    def copies(self, name: str, number_bytes: int, make: Callable[[], object]) -> list:
        if name not in self._made:
            self._made[name] = [make() for _ in range(self.shape.num_copies(number_bytes))]
        return self._made[name]

    def plain(self, dtype: torch.dtype) -> list[Tensor]:
        return self.copies(f"plain {dtype}", dtype.itemsize, self.weight.to(dtype).clone)

    def packed(self, dtype: str) -> list[PackedLinear]:
        """float16 is float32 kept in float16."""
        if dtype == "int8":
            q = quantise(self.weight)
            return self.copies(dtype, 1, lambda: PackedLinear(q, self.bias))
        rounded = self.weight.to(getattr(torch, dtype))
        weight = rounded.float() if dtype == "float16" else rounded
        return self.copies(dtype, NUMBER_BYTES[dtype], lambda: PackedLinear(weight, self.bias))


class Calls:
    """Calls of a product or of a reading, each with the next weights: what is timed."""

    def __init__(
        self,
        call: Callable[[object], object],
        weights: list,
        count: int,
        isa: str | None,
        describe: Callable[[float], dict],
    ) -> None:
        self._call, self._weights, self._count = call, cycle(weights), count
        self._isa, self._describe = isa, describe
        self()

    @torch.inference_mode()
    def __call__(self) -> None:
        if self._isa is not None:
            torch.ops.pybeam.set_isa(self._isa)
        for _ in range(self._count):
            self._call(next(self._weights))

    def columns(self, timed: Timed) -> dict:
        seconds = timed.seconds / self._count
        return {
            "seconds": seconds,
            "cpu_seconds": timed.cpu_seconds / self._count,
            "us": round(1e6 * seconds, 1),
            **self._describe(seconds),
        }


def known_isas() -> list[str]:
    """The instruction sets of this CPU, without the portable one, which no layer is packed for."""
    before = torch.ops.pybeam.isa()
    found = []
    for isa in ISAS:
        try:
            torch.ops.pybeam.set_isa(isa)
        except RuntimeError:
            continue
        found.append(isa)
    torch.ops.pybeam.set_isa(before)
    return found


def own_systems() -> Iterator[tuple[str, str]]:
    """Storage and instruction set."""
    for isa in known_isas():
        for dtype in ISAS[isa]:
            yield dtype, isa


class Case:
    """The systems that multiply so many rows by one layer."""

    def __init__(self, weights: Weights, num_rows: int, threads: int, peaks: Peaks | None) -> None:
        self.weights, self.num_rows, self.threads, self.peaks = weights, num_rows, threads, peaks
        self.shape = weights.shape
        self.x = torch.randn(num_rows, self.shape.depth)
        self._torch: dict[str, list[Timed]] = {}
        self._reading: dict[int, Timed] = {}

    @property
    def work(self) -> int:
        return 2 * self.num_rows * self.shape.numbers

    @property
    def count(self) -> int:
        return max(1, min(200, int(TURN * SPEED / self.work)))

    def tasks(self) -> Iterator[Task]:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        rows = "1 row" if self.num_rows == 1 else f"{self.num_rows} rows"
        case = f"{self.shape.name}, {rows}, {threads}"
        for name, timed in self.systems():
            yield Task(case, name, timed, TURNS, self.threads)

    def systems(self) -> Iterator[tuple[str, Timed]]:
        """Readings and torch's products come first, for the others are compared with them."""
        sizes = sorted(set(NUMBER_BYTES.values()), reverse=True)
        for number_bytes in sizes if self.num_rows <= MOST_READING_ROWS else ():
            timed = Timed(partial(self._read, number_bytes), calls=3)
            self._reading[number_bytes] = timed
            yield f"reading, {number_bytes} bytes each", timed
        for dtype in ("float32", "bfloat16"):
            for name, make in (("F.linear", self._plain), ("oneDNN packed", self._mkldnn)):
                timed = Timed(partial(make, dtype), calls=3)
                self._torch.setdefault(dtype, []).append(timed)
                yield f"{name} {dtype}", timed
        timed = Timed(self._int_mm, calls=3)
        self._torch["int8"] = [timed]
        yield "_int_mm int8", timed
        for dtype, isa in own_systems():
            yield f"pybeam {dtype} {isa}", Timed(partial(self._own, dtype, isa), calls=3)

    def fastest_torch(self, dtype: str) -> float | None:
        """Seconds a call, in this dtype's arithmetic; None where nothing has been measured."""
        arithmetic = "float32" if dtype == "float16" else dtype
        seconds = [
            timed.seconds for timed in self._torch.get(arithmetic, ()) if timed.run is not None
        ]
        return min(seconds) / self.count if seconds else None

    def _describe(self, dtype: str, seconds: float) -> dict:
        speed = self.work / seconds
        columns = {"G/s": round(speed / 1e9, 1)}
        if self.peaks is not None:
            columns["of peak"] = round(speed / self.peaks.speed(dtype, self.threads), 3)
        number_bytes = NUMBER_BYTES[dtype]
        reading = self._reading.get(number_bytes)
        if reading is not None and reading.run is not None:
            columns["of bandwidth"] = round(reading.seconds / self.count / seconds, 3)
        fastest = self.fastest_torch(dtype)
        if fastest is not None:
            columns["times torch"] = round(fastest / seconds, 3)
        return columns

    def _calls(
        self, call: Callable, weights: list, dtype: str | None, isa: str | None = None
    ) -> Calls:
        describe = partial(self._describe, dtype) if dtype else self._describe_reading(weights)
        return Calls(call, weights, self.count, isa, describe)

    def _describe_reading(self, weights: list[Tensor]) -> Callable[[float], dict]:
        size = weights[0].nbytes
        return lambda seconds: {"GB/s": round(size / seconds / 1e9, 1)}

    def _read(self, number_bytes: int) -> Calls:
        """The largest of all numbers: nothing of torch's reads faster."""
        shape = self.shape
        buffers = self.weights.copies(
            f"bytes {number_bytes}",
            number_bytes,
            lambda: torch.randn(shape.numbers * number_bytes // 4),
        )
        return self._calls(torch.amax, buffers, None)

    def _plain(self, dtype: str) -> Calls:
        kind = getattr(torch, dtype)
        x, bias = self.x.to(kind), self.weights.bias.to(kind)
        return self._calls(lambda w: F.linear(x, w, bias), self.weights.plain(kind), dtype)

    def _mkldnn(self, dtype: str) -> Calls:
        """oneDNN lays the weights out for this number of rows."""
        kind = getattr(torch, dtype)
        x, bias = self.x.to(kind), self.weights.bias.to(kind)
        ops = torch.ops.mkldnn
        weights = [ops._reorder_linear_weight(w, self.num_rows) for w in self.weights.plain(kind)]
        return self._calls(
            lambda w: ops._linear_pointwise(x, w, bias, "none", [], ""), weights, dtype
        )

    def _int_mm(self) -> Calls:
        """It neither quantises its inputs nor scales its sums."""
        x = (20 * self.x).to(torch.int8)
        weights = self.weights.copies("_int_mm", 1, lambda: quantise(self.weights.weight).q)
        return self._calls(lambda w: torch._int_mm(x, w.t()), weights, "int8")

    def _own(self, dtype: str, isa: str) -> Calls:
        y = torch.empty(self.num_rows, self.shape.num_columns)
        x = self.x
        return self._calls(lambda w: w(x, y), self.weights.packed(dtype), dtype, isa)


class Peaks:
    """The best speed of any system, where weights and inputs stay in the second-level cache."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], float] = {}

    def speed(self, dtype: str, threads: int) -> float:
        """Operations a second; that of float32 for weights that are only kept in float16."""
        arithmetic = "float32" if dtype == "float16" else dtype
        if (arithmetic, threads) not in self._known:
            self._measure(threads)
        return self._known[arithmetic, threads]

    def _measure(self, threads: int) -> None:
        before = torch.get_num_threads(), torch.ops.pybeam.isa()
        torch.set_num_threads(threads)
        weights = Weights(Shape("small", PEAK_SIZE, PEAK_SIZE))
        case = Case(weights, PEAK_ROWS, threads, None)
        for name, timed in case.systems():
            dtype = next((d for d in ("bfloat16", "float32", "int8") if d in name), None)
            if dtype is not None:
                for _ in range(TURNS):
                    timed()
                speed = case.work * case.count / timed.seconds
                key = dtype, threads
                self._known[key] = max(speed, self._known.get(key, 0.0))
        torch.set_num_threads(before[0])
        torch.ops.pybeam.set_isa(before[1])


def shapes() -> Iterator[tuple[Shape, tuple[int, ...]]]:
    """Layers, and the numbers of rows to multiply by each."""
    for model, (hidden, vocab_size) in MODELS.items():
        yield Shape(model, 4 * hidden, hidden), ROWS if model == "base" else FEW_ROWS
        if model != "small":
            yield Shape(model, hidden, hidden), FEW_ROWS
            yield Shape(model, hidden, 4 * hidden), FEW_ROWS
        # many rows of the largest layer would take a minute a case
        yield Shape(model, vocab_size, hidden), FEW_ROWS[: 3 if model == "big" else None]


def linear(setup: Setup) -> Iterator[list[Task]]:
    """`linear` beside F.linear, oneDNN's packed product and _int_mm, for every instruction set."""
    load("native")
    peaks = None if setup.is_tiny else Peaks()
    before = torch.ops.pybeam.isa()
    for shape, rows in list(shapes())[: 1 if setup.is_tiny else None]:
        weights = Weights(shape)
        for num_rows in rows[: 1 if setup.is_tiny else None]:
            for threads in sorted({1, 1 if setup.is_tiny else os.cpu_count() or 1}):
                yield list(Case(weights, num_rows, threads, peaks).tasks())
    torch.ops.pybeam.set_isa(before)
