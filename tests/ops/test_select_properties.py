"""`select` by the properties that any input must have, with every instruction set of the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import isas
from support.asserts import SCORE_ULP
from support.select_cases import (
    INF,
    OPTIONS,
    SETTINGS,
    cases,
    check,
    ints,
    random_case,
    select,
)


@pytest.mark.slow
@SETTINGS
@given(case=cases())
def test_awkward_values_as_the_reference(case):
    for isa in available_isas():
        check(case, isa, torch.device("cpu"))


@SETTINGS
@given(case=cases())
def test_survivors_are_sorted_and_distinct(case):
    for isa in available_isas():
        survivors = select(case, isa, torch.device("cpu"))
        for s in range(survivors.count.numel()):
            finished, count = int(survivors.num_finished[s]), int(survivors.count[s])
            for part in (slice(0, finished), slice(finished, count)):
                scores = survivors.score[s, part]
                assert bool((scores[1:] <= scores[:-1]).all())
            pairs = list(
                zip(
                    survivors.parent[s, :count].tolist(),
                    survivors.token[s, :count].tolist(),
                    strict=True,
                )
            )
            assert len(set(pairs)) == count
            assert bool(survivors.score[s, :count].isfinite().all())


@SETTINGS
@given(case=cases(), data=st.data())
def test_a_beam_does_not_depend_on_the_others(case, data):
    num_beams = case["width"].numel()
    s = data.draw(st.integers(0, num_beams - 1))
    begin, end = case["offset"][s : s + 2].tolist()
    row = (~case["is_ended"]).cumsum(0)
    rows = slice(int(row[begin - 1]) if begin else 0, int(row[end - 1]) if end else 0)
    alone = dict(
        case,
        logits=case["logits"][rows],
        score=case["score"][begin:end],
        is_ended=case["is_ended"][begin:end],
        offset=ints([0, end - begin]),
        width=case["width"][s : s + 1],
        **{name: case[name][s : s + 1] for name in OPTIONS if name in case},
    )
    for isa in available_isas():
        together = select(case, isa, torch.device("cpu"), capacity=256)
        single = select(alone, isa, torch.device("cpu"), capacity=256)
        for both, one in zip(together, single, strict=True):
            assert torch.equal(both[s], one[0])


@SETTINGS
@given(case=cases())
def test_limits_that_limit_nothing(case):
    for isa in available_isas():
        free = {k: v for k, v in case.items() if k not in ("max_candidates", "margin")}
        num_beams = case["width"].numel()
        bound = dict(
            free,
            max_candidates=ints([case["logits"].shape[1]] * num_beams),
            margin=torch.full((num_beams,), INF),
            local_margin=torch.full((num_beams,), INF),
            best_finished=torch.full((num_beams,), -INF),
        )
        for one, other in zip(
            select(free, isa, torch.device("cpu")),
            select(bound, isa, torch.device("cpu")),
            strict=True,
        ):
            assert torch.equal(one, other)


@SETTINGS
@given(seed=st.integers(0, 10**6), vocab_size=st.sampled_from([2, 30, 700]))
def test_vocabulary_permutation(seed, vocab_size):
    case = random_case(seed, vocab_size)
    order = torch.randperm(vocab_size)
    permuted = dict(case, logits=case["logits"][:, order])
    for isa in available_isas():
        one = select(case, isa, torch.device("cpu"))
        other = select(permuted, isa, torch.device("cpu"))
        back = torch.where(other.token < 0, -1, order[other.token.clamp(min=0)].int())
        distinct = (one.score[:, 1:] - one.score[:, :-1]).abs() > SCORE_ULP * 10
        if bool(distinct[one.score[:, 1:] > -INF].all()):
            assert torch.equal(one.token, back)
            assert torch.equal(one.parent, other.parent)


def available_isas():
    """Sets every instruction set of this CPU in turn; yields the backend to call."""
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    before = native.isa()
    for isa in isas.OF_FLOATS:
        try:
            native.set_isa(isa)
        except RuntimeError:
            continue
        yield "native"
    native.set_isa(before)
