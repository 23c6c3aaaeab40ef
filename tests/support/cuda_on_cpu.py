"""The CUDA kernel of `select`, compiled by a C++ compiler, as a backend that runs on the CPU."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from pybeam import backends
from pybeam.contracts import SelectOptions, Survivors
from support.compiled import library as compiled_library
from support.paths import ROOT
from support.peaked import AT_ONCE, aligned, peaks_of, totals_of

NAME = "cuda_on_cpu"
SOURCE = ROOT / "tests" / "ops" / "cuda_on_cpu" / "select.cpp"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# few multiprocessors: eight vectors per thread; many: two
MACHINES = {"short-slices": (1 << 20, True), "long-slices": (0, False)}
# columns of a program whose product has left peaks of 16 bits
TILES = {"peaks-of-64": (64, True), "peaks-of-256": (256, False)}


def compiled() -> ctypes.CDLL:
    return declared(compiled_library(SOURCE, ["-O1", "-U_FORTIFY_SOURCE", f"-I{SOURCE.parent}"]))


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The same library, with the types of its arguments."""
    library.select_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.select_peaked_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def select_arguments(
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
) -> tuple[ctypes.Array, Survivors]:
    """The numbers of `select_arguments.h`, and the survivors that a launch writes."""
    capacity, eos_ids, finishing, normalise, *per_beam = options
    num_beams = width.numel()
    token, parent = (torch.empty(num_beams, capacity, dtype=torch.int32) for _ in range(2))
    scores = [torch.empty(num_beams, capacity) for _ in range(2)]
    counts = [torch.empty(num_beams, dtype=torch.int32) for _ in range(2)]
    results = (token, parent, *scores, *counts, torch.empty(num_beams, dtype=torch.bool))
    fields = [
        *(logits, DTYPES[logits.dtype], logits.stride(0), logits.shape[1]),
        *(score, offset, width, *per_beam, len(eos_ids), *eos_ids, finishing, normalise),
        *(logits.shape[0], num_beams, capacity, 1, *results, score.numel()),
    ]
    numbers = [
        0 if f is None else f.data_ptr() if isinstance(f, torch.Tensor) else f for f in fields
    ]
    return (ctypes.c_int64 * (len(numbers) + 4))(*numbers), Survivors(*results)


class Emulated:
    """A backend whose `select` runs the CUDA kernel on the CPU."""

    def __init__(self, library: ctypes.CDLL, num_multiprocessors: int, runs_backwards: bool):
        self._library = library
        self._num_multiprocessors = num_multiprocessors
        self._runs_backwards = runs_backwards

    def select(self, logits, score, offset, width, options: SelectOptions) -> Survivors:
        arguments, survivors = select_arguments(logits, score, offset, width, options)
        arguments[-4] = self._num_multiprocessors
        assert self._library.select_on_cpu(arguments, self._runs_backwards) == 0
        return survivors


class Peaked:
    """A backend whose `select` runs the CUDA kernel behind a product's peaks on the CPU."""

    def __init__(self, library: ctypes.CDLL, num_columns: int, runs_backwards: bool):
        self._library, self._num_columns = library, num_columns
        self._runs_backwards = runs_backwards

    def select(self, logits, score, offset, width, options: SelectOptions) -> Survivors:
        peaks, totals = peaks_of(logits), totals_of(logits, self._num_columns)
        given = aligned(logits), score, offset, width, options
        arguments, survivors = select_arguments(*given)
        counts = peaks.shape[1] // AT_ONCE, totals.shape[1]
        arguments[-4:] = [peaks.data_ptr(), totals.data_ptr(), *counts]
        self._library.select_peaked_on_cpu(arguments, self._runs_backwards)
        return survivors


@contextmanager
def installed(library: ctypes.CDLL, machine: str):
    """Within this context, `ops` finds the kernel under `NAME`, on the machine of that name."""
    is_peaked = machine in TILES
    backend = (
        Peaked(library, *TILES[machine]) if is_peaked else Emulated(library, *MACHINES[machine])
    )
    resolve = backends.resolve
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            backends,
            "resolve",
            lambda name, device: backend if name == NAME else resolve(name, device),
        )
        yield
