"""A kernel to time: its inputs of one size, the work that they are, and who computes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu import expected
from benchmarks.kernels.clock import Call
from pybeam import backends
from pybeam.inspect.work import Work

OURS = ("native", "triton")
# the package of peers whose names begin with it
FLASHINFER = "flashinfer"
# instruction sets of a CPU for which kernels are compiled
ISAS = ("generic", "avx2", "avx512")


class WrongResult(Exception):
    """A kernel does not compute what its reference does, so its time says nothing."""


class Case(NamedTuple):
    """One size, and the dtype by its name in torch."""

    dtype: str
    size: tuple


def cases(dtypes: Iterable[str], sizes: Iterable[tuple]) -> list[Case]:
    """Every size in every dtype."""
    return [Case(dtype, size) for size, dtype in product(sizes, dtypes)]


class Cases(NamedTuple):
    """The cases of each kind of device, None where there is no kernel, and those of a trial."""

    tiny: Sequence[Case]
    cpu: Sequence[Case] | None = None
    cuda: Sequence[Case] | None = None


class Kernel:
    """An op of a backend with inputs of one size.

    A subclass makes the inputs in `__init__(device, dtype, *size)`, and says what the attributes say. Its
    benchmark is ``bench_OP = times(...)``.

    Attributes:
        op: its name in a backend and in tables.
        label: how a table writes a size; `str.format` fills it in.
        cases: see `Cases`.
        late: cases that are measured last, should time run out.
        tolerance, tolerance_of_halves: of floats, as a share of the largest number.
        on_cuda: backends with a kernel of their own on a GPU.
        others: peers of other packages on a GPU, whose names begin with the package.
        copies: arguments of calls, each of which takes the next ones, so that a cache does not hold them.
        changes: tensors that a call changes in place; their values belong to the result.
        work: bytes that must be read and written, and operations, two for a multiply-add.
        before: what must be called before each round of calls.
    """

    op: ClassVar[str]
    label: ClassVar[str]
    cases: ClassVar[Cases]
    late: ClassVar[Sequence[Case]] = ()
    tolerance: ClassVar[float] = 0.0
    tolerance_of_halves: ClassVar[float] = 0.0
    on_cuda: ClassVar[tuple[str, ...]] = ("triton",)
    others: ClassVar[tuple[str, ...]] = ()

    copies: list[tuple]
    work: Work
    changes: Sequence[Tensor] = ()
    before: Call | None = None

    def __init__(self, device: torch.device, dtype: str, *size: Any) -> None:
        raise NotImplementedError

    @classmethod
    def names(cls, size: tuple) -> tuple[str, str]:
        """The op and the shape, as tables name them."""
        return cls.op, cls.label.format(*size)

    @classmethod
    def isas(cls, dtype: str) -> tuple[str, ...]:
        """The instruction sets of a CPU that compute this dtype in different ways."""
        return ISAS

    @classmethod
    def peers(cls, kind: str, case: Case) -> tuple[str, ...]:
        """Others that compute the same, by name. A GPU replays their kernels in a graph, but for "torch"."""
        if kind == "cpu":
            return ("torch",)
        return ("torch", "torch, graph", *cls.compiled(case), *cls.others)

    @classmethod
    def compiled(cls, case: Case) -> tuple[str, ...]:
        """torch.compile as a peer of `peers`. It takes seconds, so the first case on a GPU stands for all."""
        is_first = cls.cases.cuda is not None and case == cls.cases.cuda[0]
        return ("torch.compile",) if is_first else ()

    @classmethod
    def absence(cls, name: str) -> str | None:
        """Why a system cannot compute it here, or None."""
        if not name.startswith(FLASHINFER):
            return None
        if find_spec(FLASHINFER) is None:
            return f"{FLASHINFER} is not installed"
        return None if torch.cuda.is_available() else f"{FLASHINFER} needs a GPU"

    def ours(self, backend: backends.Backend, *arguments: Any) -> Any:
        return getattr(backend, self.op)(*arguments)

    def peer(self, name: str) -> Callable[..., object]:
        """The function of the same arguments behind a name of `peers`."""
        if name.startswith(FLASHINFER):
            return self.in_other(name)
        if "compile" in name:
            return torch.compile(self.in_compiled, dynamic=False)
        return self.in_torch

    def in_torch(self, *arguments: Any) -> object:
        """The best that people write in torch."""
        raise NotImplementedError

    def in_compiled(self, *arguments: Any) -> object:
        """The same for torch.compile, where that does better with other code."""
        return self.in_torch(*arguments)

    def in_other(self, name: str) -> Callable[..., object]:
        """The function of another package, for the same arguments."""
        raise NotImplementedError

    def calls(self, name: str) -> list[Call]:
        """One call for each copy of the inputs, of a backend or of a peer."""
        if name in OURS:
            run = partial(self.ours, backends.load(name))
        else:
            run = self.peer(name)
        return [partial(run, *arguments) for arguments in self.copies]

    def check(self, name: str, dtype: str) -> None:
        """Compare a backend with the reference. Raises WrongResult."""
        if self.before is not None:
            self.before()
        is_half = dtype in ("bfloat16", "float16")
        tolerance = self.tolerance_of_halves if is_half else self.tolerance
        same(self.result(name), self.result("reference"), tolerance)

    def result(self, name: str) -> list[Tensor]:
        """All that a call gives and changes; the changes are taken back."""
        before = [tensor.clone() for tensor in self.changes]
        given = self.ours(backends.load(name), *self.copies[0])
        changed = [tensor.clone() for tensor in self.changes]
        for tensor, old in zip(self.changes, before, strict=True):
            tensor.copy_(old)
        given = () if given is None else given
        return [*changed, *(given if isinstance(given, tuple) else (given,))]

    def expected(self, dtype: str) -> expected.Expected:
        """The forecast on a GPU."""
        return expected.of_work(self.work, dtype)

    def held_bytes(self) -> float:
        """The bytes of all copies, which say in which cache they stay."""
        return self.work.num_bytes * len({id(arguments) for arguments in self.copies})


def times(kernel: type[Kernel]) -> Callable[[Callable[[], None]], None]:
    """The benchmark of a kernel, which `conftest.py` runs for every case and system."""

    def bench(timed: Callable[[], None]) -> None:
        timed()

    vars(bench)["kernel"] = kernel
    return bench


def all_kernels() -> list[type[Kernel]]:
    """The kernels of all files in this folder."""
    found = []
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        module = importlib.import_module(f"benchmarks.kernels.{path.stem}")
        found += [own.kernel for name, own in vars(module).items() if name.startswith("bench_")]
    return found


def known_isas(wanted: Sequence[str]) -> list[str]:
    """Those of these instruction sets that this CPU has."""
    if "native" not in backends.available():
        return []
    found = []
    for isa in wanted:
        try:
            with instruction_set(isa):
                found.append(isa)
        except RuntimeError:
            continue
    return found


class instruction_set(AbstractContextManager):
    """Let native kernels use this one; None: the best one."""

    def __init__(self, isa: str | None) -> None:
        self._isa = isa

    def __enter__(self) -> None:
        if self._isa is not None:
            native = backends.load("native")
            self._before = native.isa()
            native.set_isa(self._isa)

    def __exit__(self, *_: object) -> None:
        if self._isa is not None:
            backends.load("native").set_isa(self._before)


def same(ours: Any, theirs: Any, tolerance: float = 0.0) -> None:
    """Compare tensors, or sequences of them. Raises WrongResult.

    Args:
        tolerance: as a share of the largest number; 0: all must be equal.
    """
    if isinstance(ours, tuple | list):
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, tolerance)
        return
    ours, theirs = ours.detach().to(theirs.device).double(), theirs.detach().double()
    if ours.shape != theirs.shape:
        raise WrongResult(f"the shape is {tuple(ours.shape)}, and must be {tuple(theirs.shape)}")
    # equal infinities have no difference, nor have two NaN, as where nobody has written
    are_same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().masked_fill(are_same, 0)
    finite = theirs.masked_fill(~theirs.isfinite(), 0)
    allowed = tolerance * float(finite.abs().amax()) if finite.numel() else 0
    num_wrong = int((~(apart <= allowed)).sum())
    if num_wrong:
        raise WrongResult(
            f"{num_wrong} of {ours.numel()} numbers are wrong, by up to {apart.max():.3g}"
        )
