"""The CUDA kernel of `select`, run on the CPU where only large inputs lead; `test_select.py` is the rest."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given

from pybeam.contracts import Finishing
from support.cuda_on_cpu import DTYPES, MACHINES, NAME, installed
from support.select_cases import SETTINGS, cases, check, ints, random_case

CPU = torch.device("cpu")


@pytest.fixture(params=["short-slices", pytest.param("long-slices", marks=pytest.mark.slow)])
def cuda_kernel(request, cuda_on_cpu):
    """The name of the kernel."""
    with installed(cuda_on_cpu, request.param):
        yield NAME


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [32769, 65536, 65537])
def test_rows_of_many_slices(cuda_kernel, vocab_size, dtype):
    case = random_case(11, vocab_size, [2, 1], [5, 40], dtype=dtype)
    case["logits"][0, -1] = case["logits"][0, 0] = 30.0
    survivors = check(case, cuda_kernel, CPU)
    assert survivors.token[0, :2].tolist() == [0, vocab_size - 1]


def test_slices_of_minus_infinity(cuda_kernel):
    case = random_case(12, 40000, [2], [6])
    case["logits"][:, 1000:] = -torch.inf
    case["logits"][0, :-1] = -torch.inf
    check(case, cuda_kernel, CPU)


@pytest.mark.parametrize("reverse", [False, True])
def test_more_equal_keys_than_a_block_has_room_for(cuda_kernel, reverse):
    case = random_case(13, 20000, [2], [128], dtype=torch.bfloat16)
    case["logits"][0] = 1.0
    case["logits"][1] = torch.linspace(3, -3, 20000).flip(0) if reverse else 2.0
    check(case, cuda_kernel, CPU)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("held", [0.0, 0.5])
def test_more_entries_than_a_block_holds(cuda_kernel, held):
    """An operator that is called by itself may be given more rows than a beam of this kernel has places."""
    case = random_case(17, 300, [3, 300, 0, 2], [2, 9, 1, 2], held=held)
    check(case, cuda_kernel, CPU)


@pytest.mark.slow
def test_every_row_address(cuda_kernel):
    wide = torch.randn(9, 300).bfloat16()
    for begin, vocab_size in itertools.product(range(9), (1, 7, 8, 9, 200)):
        case = dict(
            logits=wide[:, begin : begin + vocab_size],
            score=-torch.rand(9),
            offset=ints([0, 4, 9]),
            width=ints([4, 5]),
        )
        check(case, cuda_kernel, CPU)


@pytest.mark.slow
def test_more_beams_than_threads(cuda_kernel):
    case = random_case(14, 5, [1] * 300, [2] * 300, held=0.3)
    check(case, cuda_kernel, CPU)


@pytest.mark.slow
@pytest.mark.thinned(most=1)()
@pytest.mark.parametrize("finishing", list(Finishing))
def test_many_candidates_of_a_beam(cuda_kernel, finishing):
    case = random_case(15, 300, [100, 2], [128, 64], held=0.1, spread=0.3)
    check(case, cuda_kernel, CPU, finishing=finishing)


def test_held_entries_have_no_block(cuda_kernel, cuda_on_cpu):
    case = random_case(16, 5, [128] * 9, [128] * 9, held=0.9)
    check(case, cuda_kernel, CPU)
    num_rows = int((~case["is_ended"]).sum())
    assert num_rows < 9 * 64
    assert cuda_on_cpu.num_blocks() == num_rows + 9


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("machine", MACHINES)
@SETTINGS
@given(case=cases())
def test_awkward_values(cuda_on_cpu, machine, case):
    with installed(cuda_on_cpu, machine):
        check(case, NAME, CPU)
