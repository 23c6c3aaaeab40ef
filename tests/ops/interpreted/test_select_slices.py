"""`select` where rows have several slices and beams several tiles, as small inputs never have."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from pybeam import ops
from pybeam.contracts import Finishing, SelectOptions
from pybeam.triton_kernels import select
from pybeam.triton_kernels.select import row
from support import triton_process
from support.asserts import assert_same_survivors
from support.select_cases import INF, OPTIONS, ints, random_case

VOCAB_SIZE = 9001  # 5 tiles in float32, 3 in 16 bits


def check(case: dict, device: torch.device, **more) -> ops.Survivors:
    moved = {k: copied(v, device) if isinstance(v, torch.Tensor) else v for k, v in case.items()}
    survivors = ops.select(**moved, backend="triton", **more)
    actual = ops.Survivors(*(field.cpu() for field in survivors))
    assert_same_survivors(actual, ops.select(**case, backend="reference", **more))
    return actual


def copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device with the same strides, which `to` keeps only where nothing lies between the lines."""
    place = dict(dtype=tensor.dtype, device=device)
    return torch.empty_strided(tensor.shape, tensor.stride(), **place).copy_(tensor)


@pytest.fixture(params=[1, 4, 32])
def num_slices(request, monkeypatch) -> int:
    """At most so many slices per row, whatever the number of rows."""
    fitting = select.slices
    monkeypatch.setattr(select, "PROGRAMS", request.param)
    monkeypatch.setattr(select, "slices", lambda num_rows, *row: fitting(1, *row))
    return request.param


def few_rows(seed: int, **options) -> dict:
    return random_case(seed, VOCAB_SIZE, (2, 1), (3, 2), **options)


def test_the_split_is_the_one_asked_for(num_slices):
    split = select.slices(320, VOCAB_SIZE, 4)
    assert split == {1: (1, 5), 4: (3, 2), 32: (5, 1)}[num_slices]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_slices(num_slices, device, dtype):
    check(few_rows(1, dtype=dtype), device, finishing=Finishing.REFILL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_place_of_a_row_may_change_last_bits(device, dtype):
    """Rows are read in packs of 16 bytes. Where a row begins within one decides the order of its sum."""
    size, stride = 301, 304
    case = random_case(3, size, (1,) * 5, (3,) * 5, dtype=dtype)
    case["score"].fill_(-1.0)
    line = case["logits"][0].clone()
    case["logits"][:] = line
    anywhere = check(case, device)
    case["logits"] = torch.full((5, stride), torch.nan, dtype=dtype)[:, :size].copy_(line)
    aligned = check(case, device)
    alone = check(random_case(3, size, (1,), (3,), dtype=dtype) | one_row(line), device)
    for i in range(5):
        assert torch.equal(aligned.log_prob[i], alone.log_prob[0])
        assert anywhere.token[i].tolist() == alone.token[0].tolist()
        torch.testing.assert_close(anywhere.log_prob[i], alone.log_prob[0], rtol=1e-6, atol=1e-6)


def one_row(line: torch.Tensor) -> dict:
    return {"logits": line[None].clone(), "score": torch.full((1,), -1.0)}


def test_ties_across_slices(num_slices, device):
    case = few_rows(2, dtype=torch.bfloat16, spread=0.01)
    case["logits"][0] = -3.0
    case["score"].fill_(-1.0)
    survivors = check(case, device)
    assert survivors.token[0, :3].tolist() == check(case, device).token[0, :3].tolist()


def test_the_first_of_equal_logits(num_slices, device):
    # one lane reads token 0 and token 4096, its neighbour token 4; packs hold 4 logits
    case = random_case(2, VOCAB_SIZE, (1,), (1,))
    case["logits"] = torch.zeros(1, VOCAB_SIZE)
    case["logits"][0, [0, 4, 4096]] = 1.0
    assert check(case, device).token.tolist() == [[0]]


def test_few_logits_each_worse_than_the_last(num_slices, device):
    case = random_case(2, VOCAB_SIZE, (1,), (128,))
    case["logits"] = torch.full((1, VOCAB_SIZE), -INF)
    case["logits"][0, 0:400:4] = -torch.arange(100.0)
    assert check(case, device).token[0, :101].tolist() == [*range(0, 400, 4), -1]


def test_more_equal_candidates_than_the_list_has_room_for(device):
    case = random_case(13, VOCAB_SIZE, (2,), (4,), dtype=torch.bfloat16)
    case["logits"][0] = 1.0
    case["score"][:] = ints([-1, -2])
    # rows of one candidate, and rows of any number
    for limit in (1, 9):
        case["max_candidates"] = ints([limit])
        check(case, device)


def test_slices_of_minus_infinity(num_slices, device):
    case = few_rows(3)
    case["logits"][0, :7000] = -INF
    case["logits"][1, 3000:] = -INF
    case["logits"][2] = -INF
    assert check(case, device).count.tolist() == [3, 0]


@pytest.mark.parametrize("column", [0, 4999, VOCAB_SIZE - 1])
def test_a_nan_in_any_slice(num_slices, device, column):
    case = few_rows(4)
    case["logits"][1, column] = torch.nan
    assert check(case, device).has_nan.tolist() == [True, False]


def test_wide_beams_without_a_limit(num_slices, device):
    # hundreds of groups of up to 80 logits: many tiles for a beam of 3 such rows
    case = random_case(5, VOCAB_SIZE, (3,), (128,), dtype=torch.float16, spread=0.5)
    for finishing in (Finishing.NONE, Finishing.REFILL):
        check(case, device, finishing=finishing)


def test_a_banned_token_that_is_the_best(num_slices, device):
    case = few_rows(6)
    case["logits"][:, case["eos_id"]] = 50.0
    case["ban_eos"] = torch.tensor([True, False])
    case["max_candidates"] = ints([1, 1])
    survivors = check(case, device)
    assert survivors.token[1, 0] == case["eos_id"]
    assert case["eos_id"] not in survivors.token[0].tolist()


@pytest.mark.parametrize("finishing", list(Finishing))
def test_small_chunks(device, finishing, monkeypatch):
    """Entries, beams and candidates that fill several blocks, though they are few."""
    if triton_process.is_interpreting():
        monkeypatch.setattr(row, "ENTRIES", tl.constexpr(4))
    case = random_case(7, 40, (3, 0, 1, 0, 2, 300, 2), (3, 1, 9, 2, 2, 4, 2), held=0.95)
    check(case, device, finishing=finishing)
    case = random_case(8, 40, (3, 0, 1, 0, 2, 5), (3, 1, 9, 2, 2, 4), held=0.4, options=OPTIONS)
    check(case, device, finishing=finishing)


def test_counters_are_left_at_zero(device, monkeypatch):
    held = torch.zeros(64, dtype=torch.int32, device=device)
    monkeypatch.setattr(select, "counters", lambda num, device: held)
    case = few_rows(9)
    for _ in range(2):
        check(case, device)
        assert not held.any()


def test_logits_that_begin_anywhere(device):
    for dtype in (torch.float32, torch.bfloat16):
        flat = torch.randn(200, dtype=torch.float32).to(dtype)
        for first in (0, 1, 3, 7):
            for num_columns in (1, 4, 9, 17):
                case = few_rows(10)
                case["logits"] = flat[first:].as_strided(
                    (3, num_columns), (num_columns + first, 1), first
                )
                case["eos_id"] = -1
                check(case, device)


def test_memory_that_begins_anywhere(device):
    """Memory of others need not be aligned; rows may be padded there."""
    memory = bytearray(1000)
    logits = torch.frombuffer(memory, dtype=torch.float32, offset=4)
    case = few_rows(10)
    case["logits"] = logits.as_strided((3, 17), (20, 1)).copy_(torch.randn(3, 17))
    check(case, device)


@pytest.mark.parametrize("finishing", [Finishing.NONE, Finishing.HELD, Finishing.REFILL])
def test_lists_of_wide_beams(device, finishing):
    """Lists of 512 and more keys, though few rows are alive."""
    case = random_case(11, 700, (2, 200, 1), (300, 180, 260), held=0.97, spread=0.5)
    case["eos_id"] = [2, 5]
    check(case, device, finishing=finishing)


def test_equal_candidates_of_a_wide_beam(device):
    case = random_case(12, 300, (2,), (400,))
    case["logits"] = torch.zeros(2, 300)
    case["score"].fill_(-1.0)
    survivors = check(case, device)
    assert survivors.token[0].tolist() == [*range(300), *range(100)]
    assert survivors.parent[0].tolist() == [0] * 300 + [1] * 100


def test_lists_fit_the_widest_beams():
    def lists(capacity: int, num_eos: int, finishing: Finishing) -> select.Lists:
        return select.lists_for(SelectOptions(capacity, range(num_eos), finishing))

    for num_eos in (1, 8):
        assert lists(2 * 4096, num_eos, Finishing.REFILL)[::2] == (8192, 32)
        assert lists(4096, num_eos, Finishing.NONE).size == 4096
    assert lists(256, 1, Finishing.REFILL) == select.NARROW
    assert lists(128, 8, Finishing.HELD) == select.NARROW
    assert lists(512, 1, Finishing.NONE).size == 512
