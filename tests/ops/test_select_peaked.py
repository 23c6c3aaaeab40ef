"""The CUDA kernel of `select` behind a product that has left peaks of its logits, on the CPU and on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from pybeam import backends
from pybeam.contracts import Finishing, SelectOptions, Survivors
from pybeam.models.transformer.cuda_operators import operator, selected
from support.asserts import assert_same_survivors
from support.cuda_on_cpu import NAME, TILES, installed
from support.select_cases import OPTIONS, SETTINGS, cases, check, random_case

CPU = torch.device("cpu")


@pytest.fixture(params=TILES)
def peaked(request, cuda_on_cpu):
    """The name of the kernel."""
    with installed(cuda_on_cpu, request.param):
        yield NAME


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("held", [0.0, 0.4])
@pytest.mark.parametrize("vocab_size", [1, 63, 65, 8192, 8193, 40001])
def test_random_logits(peaked, vocab_size, held, dtype):
    finishing = Finishing.REFILL if vocab_size % 2 else Finishing.HELD
    for seed, options in enumerate((OPTIONS, (), ("ban_eos",))):
        case = random_case(seed, vocab_size, dtype=dtype, held=held, options=options)
        check(case, peaked, CPU, finishing=finishing)


@pytest.mark.thinned()
@pytest.mark.parametrize("finishing", [Finishing.REFILL, Finishing.HELD])
@pytest.mark.parametrize("num_rows", [1, 7, 100])
def test_the_best_token_is_banned(peaked, num_rows, finishing):
    """A peak may be that of a token that its beam may not choose."""
    case = random_case(3, 20000, [num_rows], [num_rows], dtype=torch.bfloat16)
    case["eos_id"] = [5, 70, 19999]
    case["logits"][:, case["eos_id"]] = 30.0
    case["ban_eos"] = torch.tensor([True])
    survivors = check(case, peaked, CPU, finishing=finishing)
    assert not torch.isin(survivors.token, torch.tensor(case["eos_id"])).any()


def test_all_rows_are_held(peaked):
    case = random_case(4, 300, [3, 2], [3, 2], dtype=torch.bfloat16, held=1.0)
    assert not len(case["logits"])
    check(case, peaked, CPU, finishing=Finishing.HELD)


@pytest.mark.parametrize("value", [-torch.inf, 1.0])
def test_equal_logits(peaked, value):
    case = random_case(5, 20000, [2, 1], [128, 3], dtype=torch.bfloat16)
    case["logits"][0] = value
    check(case, peaked, CPU)


@SETTINGS
@given(case=cases())
def test_awkward_values(cuda_on_cpu, case):
    case["logits"] = case["logits"].bfloat16()
    for machine in TILES:
        with installed(cuda_on_cpu, machine):
            check(case, NAME, CPU)


@pytest.mark.parametrize("held", [0.0, 0.4])
@pytest.mark.parametrize(("num_beams", "vocab_size"), [(1, 8000), (13, 42000), (64, 42001)])
def test_on_a_gpu(num_beams, vocab_size, held, device):
    """Survivors are those of `select` among the logits of the same product, and the host never waits."""
    is_there = device.type == "cuda" and hasattr(torch.ops.pybeam, "select_peaked")
    if not is_there:
        pytest.skip("needs --device cuda, and an extension that was built with CUDA")
    from pybeam.triton_kernels.peaked_product import peaked_product

    sizes = [5] * num_beams
    case = random_case(8, vocab_size, sizes, sizes, dtype=torch.bfloat16, held=held)
    x, weight = (torch.randn(n, 256).bfloat16() for n in (len(case["logits"]), vocab_size))
    given = [case[name].to(device) for name in ("score", "offset", "width")]
    finishing = Finishing.HELD if held else Finishing.REFILL
    is_ended = case["is_ended"].to(device) if held else None
    options = SelectOptions(10, (2,), int(finishing), is_ended=is_ended)
    product = x.to(device), (weight / 16).to(device), None
    peaked_product(*product)  # is compiled before
    torch.cuda.set_sync_debug_mode("error")
    try:
        peaked = peaked_product(*product)
        found = Survivors(*operator("select_peaked")(*peaked, *selected(*given, options)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = backends.load("native").select(peaked.logits, *given, options)
    assert_same_survivors(*(Survivors(*(part.cpu() for part in one)) for one in (found, expected)))
