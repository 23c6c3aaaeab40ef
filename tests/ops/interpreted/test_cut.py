"""The kernel of top-k, top-p and min-p leaves the tokens that the processors leave, which sort."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pybeam import backends, processors
from pybeam.processors.truncation import MinP, TopK, TopP
from pybeam.triton_kernels.draw import cut
from support import processor_rows
from support.processor_rows import START, processed

INF = math.inf
NUM_SLOTS, NUM_ROWS = 5, 7
CUTS = {"k": TopK(), "p": TopP(), "log_ratio": MinP()}
ASKED: dict[str, list] = {
    "k": [-1, 0, 1, 2, 5, 40, 2000],
    "p": [-1.0, 0.0, 0.2, 0.5, 0.9, 0.9999, 1.0],
    "log_ratio": [-INF, -4.0, math.log(0.1), math.log(0.5), 0.0],
}


def rows_of(num_columns: int, seed: int, has_ties: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(NUM_ROWS, num_columns, generator=generator)
    x = x.round() if has_ties else x
    return x.masked_fill(torch.rand(x.shape, generator=generator) < 0.1, -INF)


def check(x: Tensor, name: str, given: Tensor, slot: Tensor, device: torch.device) -> Tensor:
    """Assert that both leave the same, and return that."""
    expected = CUTS[name].cut(x.clone(), given[slot.long()])
    actual = cut(x.clone().to(device), slot.to(device), **{name: given.to(device)}).cpu()
    assert torch.equal(actual.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    return actual


def asked(name: str, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers that requests of slots ask for, and the slots of rows."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(ASKED[name], dtype=torch.int32 if name == "k" else torch.float32)
    given = values[torch.randint(len(values), (NUM_SLOTS,), generator=generator)]
    return given, torch.randint(NUM_SLOTS, (NUM_ROWS,), generator=generator, dtype=torch.int32)


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("num_columns", [1, 7, 300])
@pytest.mark.parametrize("name", CUTS)
def test_as_the_processor(device, name, num_columns, has_ties):
    for seed in range(2):
        x = rows_of(num_columns, seed, has_ties)
        check(x, name, *asked(name, seed), device)
        check(x.log_softmax(1).nan_to_num(nan=-INF), name, *asked(name, seed + 9), device)


def test_rows_of_several_blocks(device):
    x = rows_of(4200, 6, has_ties=True)[:2]
    for name in CUTS:
        given, _ = asked(name, 3)
        check(x, name, given, torch.tensor([1, 4], dtype=torch.int32), device)


def everyone_asks(name: str, value: float) -> tuple[Tensor, Tensor]:
    dtype = torch.int32 if name == "k" else torch.float32
    return torch.full((NUM_SLOTS,), value, dtype=dtype), torch.zeros(NUM_ROWS, dtype=torch.int32)


@pytest.mark.parametrize("name", CUTS)
def test_each_setting(device, name):
    x = rows_of(30, 3, has_ties=False)
    for value in ASKED[name]:
        check(x, name, *everyone_asks(name, value), device)


@pytest.mark.parametrize("name", CUTS)
def test_rows_that_stand_apart_and_none(device, name):
    wide = torch.full((NUM_ROWS, 40), 9.0)
    wide[:, :30] = rows_of(30, 5, has_ties=True)
    before, kept = wide.clone(), wide.to(device)
    given, slot = everyone_asks(name, {"k": 3, "p": 0.4, "log_ratio": -1.0}[name])
    expected = CUTS[name].cut(before[:, :30].clone(), given[slot.long()])
    actual = cut(kept[:, :30], slot.to(device), **{name: given.to(device)})
    assert actual.data_ptr() == kept.data_ptr()
    assert torch.equal(kept.cpu(), torch.cat((expected, before[:, 30:]), 1))
    columns = before[:, :30].t().contiguous().t().to(device)
    assert torch.equal(cut(columns, slot.to(device), **{name: given.to(device)}).cpu(), expected)
    for shape in ((0, 30), (NUM_ROWS, 0)):
        assert cut(torch.zeros(shape), slot, **{name: given}).shape == shape


def test_zeros_of_both_signs_are_equal(device):
    x = torch.tensor([[0.0, -0.0, -1.0, 0.0, -0.0, 1e-45, -1e-45]] * NUM_ROWS)
    for k in range(1, 8):
        check(x, "k", *everyone_asks("k", k), device)
    # numbers as small as these have equal probabilities
    x[:, 5:] = torch.tensor([1e-3, -1e-3])
    for p in (0.1, 0.5, 0.8):
        check(x, "p", *everyone_asks("p", p), device)


def test_equal_tokens_stay_together(device):
    x = torch.full((NUM_ROWS, 12), -2.0)
    x[:, 3:9] = 1.5
    for k, num_left in ((1, 6), (6, 6), (7, 12), (11, 12)):
        left = check(x, "k", *everyone_asks("k", k), device)
        assert (left > -INF).sum(1).tolist() == [num_left] * NUM_ROWS
    for p, num_left in ((0.0, 6), (0.1, 6), (0.97, 6), (0.99, 12)):
        left = check(x, "p", *everyone_asks("p", p), device)
        assert (left > -INF).sum(1).tolist() == [num_left] * NUM_ROWS


def test_shares_that_float32_cannot_tell_apart(device):
    """p is the float32 next to the mass of some tokens."""
    x = rows_of(300, 0, has_ties=False)[:1].repeat(NUM_ROWS, 1)
    mass = x[0].double().softmax(0).sort(descending=True).values.cumsum(0)
    for rank in range(1, 30, 9):
        left = check(x, "p", *everyone_asks("p", float(mass[rank])), device)
        assert (left[0] > -INF).sum() in (rank + 1, rank + 2)


@pytest.mark.parametrize("name", CUTS)
def test_rows_without_a_token_or_with_nan(device, name):
    x = rows_of(300, 2, has_ties=False)
    x[0] = -INF
    x[1, 250] = math.nan
    x[2] = math.nan
    given, slot = everyone_asks(name, {"k": 3, "p": 0.4, "log_ratio": -1.0}[name])
    rest = [0, *range(3, NUM_ROWS)]
    check(x[rest], name, given, slot[rest], device)
    left = cut(x.to(device), slot.to(device), **{name: given.to(device)}).cpu()
    assert left[1].isnan().nonzero().tolist() == [[250]] and left[2].isnan().all()
    if name == "k":
        # it is the largest
        assert (left[1] > -INF).sum() == 2
        check(x[:2], name, given, slot[:2], device)


@pytest.mark.parametrize("name", CUTS)
def test_a_chain_cuts_as_the_reference_does(name, monkeypatch):
    """A launch for each processor, padding included; float64 stays with torch."""
    kinds = {"k": processors.top_k, "p": processors.top_p, "log_ratio": processors.min_p}
    make, values = kinds[name], {"k": [0, 2, 9], "p": [1.0, 0.3, 0.9]}.get(name, [0.0, 0.3, 0.9])
    requests = [(make(values[i % 3], stage="log_probs"),) for i in range(6)]
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(7)).log_softmax(1)
    calls = []
    kernels = backends.load("triton").draw
    monkeypatch.setattr(kernels, "cut", lambda *a, **kw: calls.append(1) or cut(*a, **kw))
    monkeypatch.setattr(backends.load("triton"), "log_softmax", lambda x: x)
    monkeypatch.setattr(backends.load("reference"), "log_softmax", lambda x: x)
    for dtype, num in ((torch.float32, 1), (torch.float64, 0)):
        given = requests[0], logits.to(dtype), [[START]] * 6
        expected = processed(*given, requests=requests)
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(processor_rows, "BACKEND", "triton")
            assert torch.equal(processed(*given, requests=requests), expected)
        assert len(calls) == num
