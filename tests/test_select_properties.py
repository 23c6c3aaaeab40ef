"""`select` by the properties that any input must have, with every instruction set of the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asserts import SCORE_ULP
from pybeam.contracts import Finishing
from test_select import INF, OPTIONS, check, ints, offsets, random_case, select


@st.composite
def cases(draw) -> dict:
    """Small beams full of ties, zeros of both signs, infinities and NaN."""
    value = st.sampled_from([-INF, -3e38, -50.0, -1.0, -1e-40, -0.0, 0.0, 0.5, 2.0, 2.0, 70.0])
    rare = st.sampled_from([0.0] * 30 + [math.nan, INF])
    vocab_size = draw(st.sampled_from([1, 2, 3, 20, 70]))
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    num_beams, num_entries = len(sizes), sum(sizes)
    is_ended = draw(st.lists(st.booleans(), min_size=num_entries, max_size=num_entries))
    num_rows = num_entries - sum(is_ended)
    row = st.lists(value, min_size=vocab_size, max_size=vocab_size)
    logits = torch.tensor([draw(row) for _ in range(num_rows)]).reshape(num_rows, vocab_size)
    if num_rows:
        logits[-1, draw(st.integers(0, vocab_size - 1))] += draw(rare)
    score = draw(
        st.lists(
            st.sampled_from([-INF, -1e30, -2.0, -0.5, 0.0]),
            min_size=num_entries,
            max_size=num_entries,
        )
    )

    def per_beam(values):
        return draw(st.lists(st.sampled_from(values), min_size=num_beams, max_size=num_beams))

    case = dict(
        logits=logits,
        score=torch.tensor(score, dtype=torch.float32),
        offset=offsets(sizes),
        width=ints(per_beam([0, 1, 2, 3, 128])),
        is_ended=torch.tensor(is_ended, dtype=torch.bool),
        eos_id=draw(st.just(-1) | st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=4)),
        finishing=draw(st.sampled_from(list(Finishing))),
        normalise=draw(st.booleans()),
    )
    if draw(st.booleans()):
        case["max_candidates"] = ints(per_beam([0, 1, 2, vocab_size, 1000]))
    if draw(st.booleans()):
        case["margin"] = torch.tensor(per_beam([0.3, 1.7, 11.0, INF]))
    if draw(st.booleans()):
        case["ban_eos"] = torch.tensor(per_beam([False, True]))
    return case


SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


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
    for isa in ("generic", "avx2", "avx512", "avx512_bf16"):
        try:
            native.set_isa(isa)
        except RuntimeError:
            continue
        yield "native"
    native.set_isa(before)
