"""The CUDA kernels, compiled by a C++ compiler and run on the CPU, held to the tests of `select`."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given

import test_select
import test_select_eos
from pybeam import backends
from test_select import check, ints, random_case
from test_select_properties import SETTINGS, cases

SOURCE = Path(__file__).parent / "cuda_on_cpu" / "select.cpp"
NAME = "cuda-on-cpu"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# few multiprocessors: eight vectors per thread; many: two
MACHINES = {"long-slices": (0, False), "short-slices": (1 << 20, True)}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    path = tmp_path_factory.mktemp("cuda_on_cpu") / "select.so"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-U_FORTIFY_SOURCE"]
    command = [compiler, *flags, f"-I{SOURCE.parent}", str(SOURCE), "-o", str(path)]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(path))
    library.select_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


class Emulated:
    """A backend whose `select` runs the CUDA kernel on the CPU."""

    def __init__(self, library: ctypes.CDLL, num_multiprocessors: int, runs_backwards: bool):
        self._library = library
        self._num_multiprocessors = num_multiprocessors
        self._runs_backwards = runs_backwards

    def select(self, logits, score, offset, width, *options) -> tuple[torch.Tensor, ...]:
        *per_beam, eos_ids, finishing, capacity, normalise = options
        num_beams = width.numel()
        token, parent = (torch.empty(num_beams, capacity, dtype=torch.int32) for _ in range(2))
        scores = [torch.empty(num_beams, capacity) for _ in range(2)]
        counts = [torch.empty(num_beams, dtype=torch.int32) for _ in range(2)]
        results = (token, parent, *scores, *counts, torch.empty(num_beams, dtype=torch.bool))
        fields = [
            logits,
            DTYPES[logits.dtype],
            logits.stride(0),
            logits.shape[1],
            *(score, offset, width, *per_beam),
            *(
                len(eos_ids),
                *eos_ids,
                finishing,
                normalise,
                logits.shape[0],
                num_beams,
                capacity,
                1,
            ),
            *results,
            *(score.numel(), self._num_multiprocessors),
        ]
        numbers = [
            0 if f is None else f.data_ptr() if isinstance(f, torch.Tensor) else f for f in fields
        ]
        arguments = (ctypes.c_int64 * len(numbers))(*numbers)
        assert self._library.select_on_cpu(arguments, self._runs_backwards) == 0
        return results


@pytest.fixture(params=["short-slices", pytest.param("long-slices", marks=pytest.mark.slow)])
def cuda_kernel(request, library, monkeypatch) -> str:
    """The name under which `ops` finds the CUDA kernel during a test."""
    emulated = Emulated(library, *MACHINES[request.param])
    _install(monkeypatch, emulated)
    return NAME


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu")


def _install(monkeypatch, backend) -> None:
    resolve = backends.resolve
    monkeypatch.setattr(
        backends, "resolve", lambda name, device: backend if name == NAME else resolve(name, device)
    )


def adopted(test):
    """`test` with the fixture `cuda_kernel` for its argument `kernel`."""

    def run(**arguments) -> None:
        test(kernel=arguments.pop("cuda_kernel"), **arguments)

    signature = inspect.signature(test)
    renamed = [
        p.replace(name="cuda_kernel") if p.name == "kernel" else p
        for p in signature.parameters.values()
    ]
    run.__signature__ = signature.replace(parameters=renamed)
    run.pytestmark = getattr(test, "pytestmark", [])
    return run


# what the registration checks is not the kernel's
CHECKED_BEFORE = ("test_capacity", "test_float64_is_for_the_reference")
globals().update(
    {
        name: adopted(member)
        for name, member in (vars(test_select) | vars(test_select_eos)).items()
        if name.startswith("test_")
        and name not in CHECKED_BEFORE
        and "kernel" in inspect.signature(member).parameters
    }
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [32769, 65536, 65537])
def test_rows_of_many_slices(cuda_kernel, device, vocab_size, dtype):
    case = random_case(11, vocab_size, [2, 1], [5, 40], dtype=dtype)
    case["logits"][0, -1] = case["logits"][0, 0] = 30.0
    survivors = check(case, cuda_kernel, device)
    assert survivors.token[0, :2].tolist() == [0, vocab_size - 1]


def test_slices_of_minus_infinity(cuda_kernel, device):
    case = random_case(12, 40000, [2], [6])
    case["logits"][:, 1000:] = -torch.inf
    case["logits"][0, :-1] = -torch.inf
    check(case, cuda_kernel, device)


@pytest.mark.parametrize("reverse", [False, True])
def test_more_equal_keys_than_a_block_has_room_for(cuda_kernel, device, reverse):
    case = random_case(13, 20000, [2], [128], dtype=torch.bfloat16)
    case["logits"][0] = 1.0
    case["logits"][1] = torch.linspace(3, -3, 20000).flip(0) if reverse else 2.0
    check(case, cuda_kernel, device)


def test_every_row_address(cuda_kernel, device):
    wide = torch.randn(9, 300).bfloat16()
    for begin, vocab_size in itertools.product(range(9), (1, 7, 8, 9, 200)):
        case = dict(
            logits=wide[:, begin : begin + vocab_size],
            score=-torch.rand(9),
            offset=ints([0, 4, 9]),
            width=ints([4, 5]),
        )
        check(case, cuda_kernel, device)


def test_more_beams_than_threads(cuda_kernel, device):
    case = random_case(14, 5, [1] * 300, [2] * 300, held=0.3)
    check(case, cuda_kernel, device)


@pytest.mark.parametrize("finishing", list(test_select.Finishing))
def test_many_candidates_of_a_beam(cuda_kernel, device, finishing):
    case = random_case(15, 300, [100, 2], [128, 64], held=0.1, spread=0.3)
    check(case, cuda_kernel, device, finishing=finishing)


@pytest.fixture(scope="module", params=MACHINES)
def emulated(request, library) -> SimpleNamespace:
    return Emulated(library, *MACHINES[request.param])


@SETTINGS
@given(case=cases())
def test_awkward_values(emulated, case):
    with pytest.MonkeyPatch.context() as monkeypatch:
        _install(monkeypatch, emulated)
        check(case, NAME, torch.device("cpu"))
