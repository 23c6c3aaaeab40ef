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

NAME = "cuda_on_cpu"
SOURCE = ROOT / "tests" / "ops" / "cuda_on_cpu" / "select.cpp"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# few multiprocessors: eight vectors per thread; many: two
MACHINES = {"short-slices": (1 << 20, True), "long-slices": (0, False)}


def compiled() -> ctypes.CDLL:
    library = compiled_library(SOURCE, ["-O1", "-U_FORTIFY_SOURCE", f"-I{SOURCE.parent}"])
    library.select_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_int]
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
    return (ctypes.c_int64 * (len(numbers) + 1))(*numbers), Survivors(*results)


class Emulated:
    """A backend whose `select` runs the CUDA kernel on the CPU."""

    def __init__(self, library: ctypes.CDLL, num_multiprocessors: int, runs_backwards: bool):
        self._library = library
        self._num_multiprocessors = num_multiprocessors
        self._runs_backwards = runs_backwards

    def select(self, logits, score, offset, width, options: SelectOptions) -> Survivors:
        arguments, survivors = select_arguments(logits, score, offset, width, options)
        arguments[-1] = self._num_multiprocessors
        assert self._library.select_on_cpu(arguments, self._runs_backwards) == 0
        return survivors


@contextmanager
def installed(library: ctypes.CDLL, machine: str):
    """Within this context, `ops` finds the kernel under `NAME`, on the machine of that name."""
    backend = Emulated(library, *MACHINES[machine])
    resolve = backends.resolve
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            backends,
            "resolve",
            lambda name, device: backend if name == NAME else resolve(name, device),
        )
        yield
