"""The kernels of `sample` draw the tokens of the processor, which sorts and computes in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import pybeam
from pybeam.backends.torch_gumbel import gumbel_noise
from pybeam.processors.sampling import Draw, Sample, _key
from pybeam.triton_kernels.draw import draw
from support.laws import SOURCES, decoded
from support.search_models import random_model

INF = math.inf
NUM_SLOTS, NUM_ROWS = 5, 7


def among(generator: torch.Generator, values: list[float], dtype=torch.float32) -> Tensor:
    """One of the values for each slot."""
    chosen = torch.randint(len(values), (NUM_SLOTS,), generator=generator)
    return torch.tensor(values, dtype=dtype)[chosen]


def problem(num_columns: int, seed: int, has_ties: bool = False) -> SimpleNamespace:
    """Log-probabilities of rows, some of them -inf, and what requests of their slots ask."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(NUM_ROWS, num_columns, generator=generator)
    x = x.round() if has_ties else x
    x[torch.rand(NUM_ROWS, num_columns, generator=generator) < 0.1] = -INF
    whole = dict(generator=generator, dtype=torch.int32)
    return SimpleNamespace(
        log_probs=x.log_softmax(1).nan_to_num(nan=-INF),
        temperature=among(generator, [0.0, 0.05, 0.3, 1.0, 1.5]),
        seed=torch.randint(2**62, (NUM_SLOTS,), generator=generator),
        k=among(generator, [0, 1, 2, 5, num_columns // 2, num_columns + 3], torch.int32),
        p=among(generator, [1.0, 0.9, 0.5, 0.2, 0.0]),
        log_ratio=among(generator, [-INF, math.log(0.1), math.log(0.5), 0.0]),
        # lengths are columns of the lines of slots
        prefix_length=torch.randint(3, (NUM_SLOTS, 22), **whole)[:, 14],
        min_length=torch.randint(4, (NUM_SLOTS, 22), **whole)[:, 12],
        slot=torch.randint(NUM_SLOTS, (NUM_ROWS,), **whole),
        position=torch.randint(6, (NUM_ROWS,), **whole),
        eos_ids=(2 % num_columns, num_columns - 1),
    )


def check(own: SimpleNamespace, device: torch.device, cuts: bool = True) -> Tensor:
    """Assert that both leave the same, and return that."""
    rows = SimpleNamespace(
        row_slot=own.slot,
        prefix_length=own.prefix_length,
        min_length=own.min_length,
        eos_ids=own.eos_ids,
        num_generated=own.position - own.prefix_length[own.slot.long()],
    )
    asked = (own.k, own.p, own.log_ratio) if cuts else ()
    processor = Sample() if cuts else Draw()
    expected = processor(own.log_probs.clone(), rows, (own.temperature, own.seed, *asked))
    lengths, places = (own.prefix_length, own.min_length), (own.slot, own.position)
    given = own.log_probs, own.temperature, own.seed, asked, *lengths, *places
    on_device = [
        [one.to(device) for one in x] if isinstance(x, tuple) else x.to(device) for x in given
    ]
    actual = draw(*on_device, own.eos_ids).cpu()
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    return actual


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("num_columns", [1, 2, 7, 300, 1024, 1500])
def test_as_the_processor(device, num_columns, cuts, has_ties):
    for seed in range(3):
        check(problem(num_columns, seed, has_ties), device, cuts)


def everyone_draws(num_columns: int, **asked: float) -> SimpleNamespace:
    """The same for all slots, behind their prefixes and least lengths."""
    own = problem(num_columns, seed=0)
    defaults = dict(temperature=1.0, k=0, p=1.0, log_ratio=-INF, prefix_length=0, min_length=0)
    for name, value in (defaults | asked).items():
        getattr(own, name).fill_(value)
    return own


CUTS = {
    "none": {},
    "k": {"k": 3},
    "p": {"p": 0.3},
    "ratio": {"log_ratio": -0.5},
    "k and p": {"k": 40, "p": 0.6},
    "all": {"k": 20, "p": 0.8, "log_ratio": -3.0},
    "one token": {"k": 1},
    "no share": {"p": 0.0},
    "hot": {"temperature": 5.0, "k": 9, "p": 0.7},
    "very hot": {"temperature": 3e38, "k": 9},
    "very cold": {"temperature": 1e-45, "p": 0.5},
    "cold": {"temperature": 1e-30},
}


@pytest.mark.parametrize("cuts", CUTS)
def test_each_cut(device, cuts):
    own = everyone_draws(300, **CUTS[cuts])
    for seed in range(4):
        own.seed += seed
        left = check(own, device)
        assert ((left > -INF).sum(1) == 1).all()


def test_tokens_that_are_equal_share_a_nucleus(device):
    own = everyone_draws(8, p=0.5, temperature=0.7)
    own.log_probs = torch.full((NUM_ROWS, 8), -math.log(8))
    check(own, device)
    own.log_probs[:, :3] = math.log(1 / 6)
    own.log_probs[:, 3:] = math.log(0.1)
    for seed in range(20):
        own.seed += seed
        check(own, device)


def test_shares_that_float32_cannot_tell_apart(device):
    """p is the float32 next to the mass of some tokens."""
    own = everyone_draws(300, temperature=0.7)
    own.log_probs = own.log_probs[:1].repeat(NUM_ROWS, 1)
    mass = (own.log_probs[0].double() / 0.7).softmax(0).sort(descending=True).values.cumsum(0)
    for rank in range(2, 30, 3):
        own.p.fill_(float(mass[rank]))
        own.seed += rank
        check(own, device)


def test_numbers_that_float32_cannot_tell_apart(device):
    """Log-probabilities take the noise away, but for what is left in float64."""
    own = everyone_draws(1500)
    key = _key(own.seed[own.slot.long()], own.position + 1)
    noise = gumbel_noise(key, torch.arange(1500, dtype=torch.int32))
    own.log_probs = (-3 - noise).float()
    drawn = check(own, device, cuts=False).argmax(1)
    numbers = noise + own.log_probs.double()
    second = numbers.topk(2).values[:, 1]
    assert torch.equal(drawn, numbers.argmax(1))
    assert (numbers.amax(1) - second < 1e-6).all(), "the test has rivals"
    check(own, device)


@pytest.mark.parametrize("cuts", [False, True])
def test_rows_without_a_token_or_with_nan(device, cuts):
    own = everyone_draws(1100, k=3, p=0.5, log_ratio=-1.0)
    own.log_probs[0] = -INF
    own.log_probs[1, 1050] = math.nan
    own.log_probs[2] = math.nan
    left = check(own, device, cuts)
    assert left[1:3].isnan().any(1).all() and not left[3:].isnan().any()


def test_rows_stand_apart_and_in_half_precision(device):
    own = problem(300, seed=4)
    wide = torch.full((NUM_ROWS, 320), 9.0)
    wide[:, :300] = own.log_probs
    own.log_probs = wide[:, :300]
    check(own, device)
    own.log_probs = wide[:, :300].bfloat16()
    check(own, device)


def test_a_search_draws_what_the_reference_draws(device):
    """Behind prefixes and before least lengths, which stand in columns of the lines of slots."""
    if device.type == "cuda":
        pytest.skip("the law draws there")
    model = random_model(4, 9, eos_bonus=1.0)
    algorithm = pybeam.sample(2, top_p=0.9, temperature=1.3, seed=3, max_length=5)
    requests = [
        pybeam.Request(source, prefix=[3, 5][: i % 3], min_length=2 * (i % 2))
        for i, source in enumerate(SOURCES[:4])
    ]
    found = [
        decoded(model, algorithm, pybeam.Fifo(3), backend, requests)
        for backend in ("triton", "reference")
    ]
    tokens = [[[h.tokens for h in result.hypotheses] for result in results] for results in found]
    assert tokens[0] == tokens[1]
