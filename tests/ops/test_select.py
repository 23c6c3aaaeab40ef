"""`select` against the reference and by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pybeam import backends, ops
from pybeam.contracts import Finishing, SelectOptions
from support.asserts import assert_same_survivors
from support.select_cases import INF, OPTIONS, check, ints, offsets, oracle, random_case, select
from support.threads import every_thread_count


@pytest.mark.thinned(most=4)(together=2, most=8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 2, 7, 129, 1000, 8001])
def test_vocabulary_sizes_and_dtypes(kernel, device, vocab_size, dtype):
    for finishing in Finishing:
        case = random_case(vocab_size, vocab_size, dtype=dtype)
        check(case, kernel, device, finishing=finishing)


@pytest.mark.thinned(most=3)(together=2, most=4)
@pytest.mark.parametrize(
    ("sizes", "width"),
    [
        pytest.param([1], [1], id="greedy"),
        pytest.param([1], [128], id="first-step-wide"),
        pytest.param([128], [128], id="wide"),
        pytest.param([50] * 2, [50] * 2, id="fifty"),
        pytest.param([5] * 13, [5] * 13, id="many-beams"),
        pytest.param([64], [3], id="shrinking"),
    ],
)
@pytest.mark.parametrize("max_candidates", [None, 1, 5, 30])
def test_widths(kernel, device, sizes, width, max_candidates):
    case = random_case(1, 1000, sizes, width)
    if max_candidates is not None:
        case["max_candidates"] = ints([max_candidates] * len(sizes))
    for finishing in (Finishing.NONE, Finishing.REFILL):
        check(case, kernel, device, finishing=finishing)


@pytest.mark.thinned(together=2, most=30)
@pytest.mark.parametrize("finishing", list(Finishing))
@pytest.mark.parametrize("options", [*((name,) for name in OPTIONS), (), OPTIONS], ids="-".join)
@pytest.mark.parametrize("held", [0.0, 0.3, 1.0])
def test_options(kernel, device, finishing, options, held):
    for seed in range(3):
        # few tokens, so that EOS is often among the best
        case = random_case(seed, 9, (5, 3, 1, 0, 6), (5, 3, 4, 2, 6), held=held, options=options)
        check(case, kernel, device, finishing=finishing)


@pytest.mark.thinned()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [5, 128])
def test_many_exact_ties(kernel, device, dtype, width):
    case = random_case(2, 5003, [3, 2], [width, width], dtype=dtype, spread=0.02)
    case["score"].fill_(-1.0)
    case["logits"][1] = case["logits"][0]
    case["logits"][4] = 0.25
    for finishing in Finishing:
        check(case, kernel, device, finishing=finishing)


@pytest.mark.parametrize("vocab_size", [5, 300, 5000])
def test_constant_rows_take_the_first_tokens(kernel, device, vocab_size):
    case = dict(
        logits=torch.full((2, vocab_size), -3.0),
        score=torch.tensor([-1.0, -1.0]),
        offset=offsets([2]),
        width=ints([4]),
    )
    survivors = check(case, kernel, device)
    assert survivors.token.tolist() == [[0, 1, 2, 3]]
    assert survivors.parent.tolist() == [[0, 0, 0, 0]]


def test_equal_scores_go_to_the_earlier_parent(kernel, device):
    logits = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    case = dict(logits=logits, score=torch.zeros(2), offset=offsets([2]), width=ints([3]))
    survivors = select(case, kernel, device)
    assert survivors.parent.tolist() == [[0, 0, 1]]
    assert survivors.token.tolist() == [[1, 2, 0]]


def test_minus_zero_is_zero(kernel, device):
    logits = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -1.0]])
    case = dict(logits=logits, score=torch.zeros(1), offset=offsets([1]), width=ints([3]))
    assert select(case, kernel, device).token.tolist() == [[0, 1, 2]]


@pytest.mark.thinned()
@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("column", [0, 255, 256, 4999])
def test_a_bad_logit_is_reported_for_its_beam_alone(kernel, device, bad, column):
    case = random_case(3, 5000, [2, 2, 2], [2, 2, 2])
    good = select(case, kernel, device)
    case["logits"][3, column] = bad
    survivors = check(case, kernel, device)
    assert survivors.has_nan.tolist() == [False, True, False]
    assert survivors.count.tolist() == [2, 0, 2]
    for s in (0, 2):
        assert torch.equal(survivors.token[s], good.token[s])
        assert torch.equal(survivors.score[s], good.score[s])


def test_nan_among_minus_infinity(kernel, device):
    logits = torch.full((1, 700), -INF)
    logits[0, 3] = math.nan
    case = dict(logits=logits, score=torch.zeros(1), offset=offsets([1]), width=ints([2]))
    assert check(case, kernel, device).has_nan.tolist() == [True]


def test_minus_infinity_is_never_selected(kernel, device):
    case = random_case(4, 600, [2, 1, 1], [5, 5, 5])
    case["logits"][:3] = -INF
    case["logits"][1, 77] = 2.0
    case["logits"][1, 599] = -200.0
    survivors = check(case, kernel, device)
    assert survivors.count.tolist() == [2, 0, 5]
    assert survivors.token[0, :2].tolist() == [77, 599]
    assert survivors.log_prob[0, 0] == 0.0


def test_a_score_of_minus_infinity_is_never_selected(kernel, device):
    case = random_case(4, 10, [2, 2], [5, 5], held=0.0)
    case["score"][:] = torch.tensor([-INF, -1.0, -INF, -INF])
    for finishing in Finishing:
        survivors = check(case, kernel, device, finishing=finishing)
        assert survivors.count[1] == 0
        assert set(survivors.parent[0, : survivors.count[0]].tolist()) == {1}


@pytest.mark.parametrize("scale", [1e4, 1e30, 3e38])
def test_huge_logits(kernel, device, scale):
    case = random_case(5, 700, [3], [4])
    case["logits"].copy_(torch.linspace(-1, 1, 700).repeat(3, 1) * scale)
    survivors = check(case, kernel, device)
    assert survivors.log_prob[0, 0] == 0.0


def test_a_peaked_row_keeps_small_log_probs(kernel, device):
    # log_prob = -log1p(4999 exp(-25)): lost if the sum were kept in one float32
    case = dict(
        logits=torch.full((1, 5000), -25.0),
        score=torch.zeros(1),
        offset=offsets([1]),
        width=ints([1]),
    )
    case["logits"][0, 1234] = 0.0
    survivors = select(case, kernel, device)
    assert survivors.token[0, 0] == 1234
    assert abs(float(survivors.log_prob[0, 0]) + math.log1p(4999 * math.exp(-25))) < 2**-23


@pytest.mark.parametrize("finishing", list(Finishing))
def test_log_probs_stay_as_they_are(kernel, device, finishing):
    case = random_case(10, 9, (5, 3, 1, 0, 6), (5, 3, 4, 2, 6), held=0.3, options=OPTIONS)
    check(case, kernel, device, finishing=finishing, normalise=False)
    logits = torch.tensor([[-INF, -2.5, 0.25, -1e-3], [math.nan, -1.0, -1.0, -1.0], [-INF] * 4])
    case = dict(logits=logits, score=torch.ones(3), offset=offsets([1, 1, 1]), width=ints([9] * 3))
    survivors = check(case, kernel, device, finishing=finishing, normalise=False)
    assert survivors.log_prob[0, :3].tolist() == [0.25, logits[0, 3], -2.5]
    assert torch.equal(survivors.score[0, :3], 1 + survivors.log_prob[0, :3])
    assert survivors.has_nan.tolist() == [False, True, False]
    assert survivors.count.tolist() == [3, 0, 0]


def test_ban_eos_loses_no_candidate(kernel, device):
    logits = torch.tensor([[0.0, 9.0, 3.0, 2.0, 1.0]])
    case = dict(
        logits=logits,
        score=torch.zeros(1),
        offset=offsets([1]),
        width=ints([3]),
        max_candidates=ints([2]),
        ban_eos=torch.tensor([True]),
        eos_id=1,
    )
    survivors = check(case, kernel, device)
    assert survivors.token.tolist() == [[2, 3, -1]]
    assert torch.allclose(survivors.log_prob[0, :2], torch.log_softmax(logits, 1)[0, 2:4])


def test_finishing_by_hand(kernel, device):
    # EOS is 0. Two entries; the first has ended with score -1.
    case = dict(
        logits=torch.tensor([[2.0, 1.0, 0.0, -1.0]]),
        score=torch.tensor([-1.0, -1.0]),
        offset=offsets([2]),
        width=ints([2]),
        is_ended=torch.tensor([True, False]),
        eos_id=0,
    )
    expected = {
        Finishing.NONE: (0, [0, 0]),
        Finishing.HELD: (2, [0, 0]),
        Finishing.REFILL: (2, [0, 0, 1, 2]),
        Finishing.SHRINK: (2, [0, 0]),
    }
    for finishing, (num_finished, tokens) in expected.items():
        survivors = check(case, kernel, device, finishing=finishing)
        assert int(survivors.num_finished) == num_finished
        assert survivors.token[0, : int(survivors.count)].tolist() == tokens


def test_a_held_entry_does_not_raise_the_local_threshold(kernel, device):
    # log-probs -0.44 and -1.44: the second is within 1.2 of the first but not of 0
    case = dict(
        logits=torch.tensor([[2.0, 1.0, 0.0, -1.0]]),
        score=torch.tensor([-0.1, -1.0]),
        offset=offsets([2]),
        width=ints([3]),
        is_ended=torch.tensor([False, True]),
        local_margin=torch.tensor([1.2]),
        eos_id=3,
    )
    survivors = check(case, kernel, device, finishing=Finishing.HELD)
    assert survivors.token.tolist() == [[0, 3, 1]]
    assert int(survivors.num_finished) == 0


# best, margin: their difference is exact, rounded, zero, denormal, below all numbers
TIES = [
    (0.0, 1.0),
    (-1000.1, 1.5),
    (-0.0, 1e-38),
    (1e-39, 2.0**-126),
    (-3e38, 3e38),
    (1.5, 1.5),
    (2.0, INF),
]


@pytest.mark.parametrize("keeps", [False, True])
def test_ties_at_a_margin(kernel, device, keeps):
    """A negative margin keeps what is exactly at the floor, and drops the next smaller number."""
    best, margin = (torch.tensor(numbers) for numbers in zip(*TIES, strict=True))
    floor = best - margin
    num = len(TIES)
    below, above = (torch.nextafter(floor, torch.full((num,), end)) for end in (-INF, INF))
    case = dict(
        logits=torch.stack((best, above, floor, below), 1),
        score=torch.zeros(num),
        offset=offsets([1] * num),
        width=ints([4] * num),
        normalise=False,
    )
    signed = -margin.where(margin < INF, -margin) if keeps else margin
    for name in ("margin", "local_margin"):
        survivors = check({**case, name: signed}, kernel, device)
        above_all = torch.stack((best, above, floor, below), 1) > floor[:, None]
        is_tie = torch.stack((best, above, floor, below), 1) == floor[:, None]
        stays = above_all | (is_tie & (floor > -INF)[:, None] if keeps else False)
        assert survivors.count.tolist() == stays.sum(1).tolist()


def test_empty(kernel, device):
    case = dict(logits=torch.empty(0, 5), score=torch.empty(0), offset=offsets([]), width=ints([]))
    assert check(case, kernel, device).token.shape == (0, 0)
    case = random_case(6, 5, [2, 3], [2, 2], held=1.0)
    assert case["logits"].shape[0] == 0
    assert check(case, kernel, device).count.tolist() == [2, 2]


def test_inference_mode_and_threads(device):
    case = random_case(7, 4000, [5] * 8, [5] * 8)
    results = []
    for _ in every_thread_count():
        with torch.inference_mode():
            results.append(select(case, "auto", device))
    for fields in zip(*results, strict=True):
        assert all(torch.equal(field, fields[0]) for field in fields)


def test_float64_is_for_the_reference(kernel, device):
    case = random_case(8, 5)
    case["logits"] = case["logits"].double()
    assert select(case, "reference", torch.device("cpu")).score.dtype == torch.float64
    with pytest.raises(ValueError, match=r"`logits` must be .* float16 .*float64"):
        select(case, kernel, device)


def test_capacity(kernel, device):
    case = random_case(9, 20, [3], [3])
    assert select(case, kernel, device, capacity=7).token.shape == (1, 7)
    if device.type == "cuda":
        return  # kernels there report nothing to the host
    with pytest.raises((RuntimeError, IndexError)):
        select(case, kernel, device, capacity=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(logits=torch.zeros(2, 4)), r"`logits` must be \[R, V\] = \[3, \*\], but is \[2, 4\]"),
        (dict(logits=torch.zeros(3)), r"`logits` must be \[R, V\]"),
        (dict(logits=torch.zeros(4, 3).T), r"`logits` must be of last stride 1"),
        (dict(logits=torch.zeros(3, 0)), r"`logits` must be at least one column"),
        (dict(logits=torch.zeros(3, 4, dtype=torch.int32)), r"`logits` must be torch.float32 or"),
        (dict(score=torch.zeros(3, dtype=torch.float64)), r"`score` must be torch.float32"),
        (dict(score=torch.tensor([0, math.nan, 0])), r"`score` must be free of NaN"),
        (dict(max_candidates=ints([1, -1])), r"`max_candidates` must be from 0 to"),
        (dict(margin=torch.tensor([1, math.nan])), r"`margin` must be free of NaN"),
        (dict(offset=ints([0, 3])), r"`offset` must be \[S \+ 1\] = \[3\], but is \[2\]"),
        (dict(offset=torch.tensor([0, 1, 3])), r"`offset` must be torch.int32, but is torch.int64"),
        (dict(offset=ints([1, 1, 3])), r"`offset` must be 0 at the start, but is 1"),
        (dict(offset=ints([0, 1, 2])), r"`offset` must be 3 at the end"),
        (dict(offset=ints([0, 4, 3])), r"`offset` must be without a fall"),
        (dict(width=ints([1, 4097])), r"`width` must be from 0 to 4096, but is 4097"),
        (dict(width=ints([1, -1])), r"`width` must be from 0 to 4096, but is -1"),
        (dict(is_ended=torch.tensor([True, False, False])), r"`logits` .* has not ended"),
        (dict(margin=torch.zeros(3)), r"`margin` must be \[S\] = \[2\], but is \[3\]"),
        (dict(margin=torch.zeros(2).double()), r"`margin` must be torch.float32"),
        (dict(forced=torch.zeros(2).long()), r"`forced` must be torch.int32"),
    ],
)
def test_wrong_arguments(changes, message):
    case = dict(
        logits=torch.zeros(3, 4), score=torch.zeros(3), offset=ints([0, 1, 3]), width=ints([1, 2])
    )
    with pytest.raises(ValueError, match=message):
        ops.select(**{**case, **changes})


@pytest.mark.parametrize("held", [0.0, 0.4], ids=["", "held"])
def test_padding_is_not_looked_at(kernel, device, held):
    """Rows and entries behind those that `offset` counts, which a step of fixed size has."""
    case = random_case(31, 300, held=held)
    case["logits"] = case["logits"].contiguous()
    expected = oracle(case, finishing=Finishing.HELD)
    padded = dict(
        logits=torch.cat((case["logits"], torch.full((3, 300), math.nan))),
        score=torch.cat((case["score"], torch.zeros(40))),
        offset=case["offset"],
        width=case["width"],
    )
    if held:
        padded["is_ended"] = torch.cat((case["is_ended"], torch.zeros(40, dtype=torch.bool)))
    is_ended = padded.pop("is_ended", None)
    arrays = [value.to(device) for value in padded.values()]
    options = SelectOptions(
        capacity=expected.token.shape[1],
        eos_ids=(case["eos_id"],),
        finishing=int(Finishing.HELD),
        is_ended=None if is_ended is None else is_ended.to(device),
    )
    actual = backends.resolve(kernel, device).select(*arrays, options)
    actual = ops.Survivors(*(field.cpu() for field in actual))
    assert_same_survivors(actual, expected)
