"""`select` of beams of up to 4,096 rows, against a sort of all candidates at once."""

from __future__ import annotations

import pytest
import torch

from pybeam.contracts import MAX_WIDTH, Finishing
from support.select_cases import INF, check, ints, offsets, random_case, select


def flat(case: dict, num: int) -> list[tuple[int, int, float]]:
    """(parent, token, score) of the best `num` candidates of one beam, whose logits are log-probabilities."""
    logit = case["logits"].float() + 0.0  # -0.0 becomes +0.0
    rank = logit.sort(dim=1, descending=True, stable=True)
    score = (case["score"][:, None] + rank.values).flatten()
    best = score.sort(descending=True, stable=True)
    best = best.indices[: int((score > -INF).sum())][:num]
    parent = best // logit.shape[1]
    token = rank.indices.flatten()[best]
    return list(zip(parent.tolist(), token.tolist(), score[best].tolist(), strict=True))


def chosen(case: dict, kernel: str, device: torch.device) -> list[tuple[int, int, float]]:
    """The same of `select`."""
    found = select(case, kernel, device, normalise=False)
    count = int(found.count[0])
    assert (found.token[0, count:] == -1).all()
    fields = (found.parent, found.token, found.score)
    return list(zip(*(field[0, :count].tolist() for field in fields), strict=True))


def one_beam(num_rows: int, vocab_size: int, width: int, *, levels: int | None = None) -> dict:
    """One beam of log-probabilities; with `levels` of so many values, so that most scores tie."""
    torch.manual_seed(num_rows + vocab_size)
    logits, score = torch.randn(num_rows, vocab_size), -2 * torch.rand(num_rows)
    if levels is not None:
        logits, score = (logits * levels).round() / levels, (score * levels).round() / levels
    return dict(
        logits=logits, score=score, offset=offsets([num_rows]), width=ints([width]), eos_id=2
    )


@pytest.mark.thinned()
@pytest.mark.parametrize("levels", [None, 2], ids=["", "ties"])
@pytest.mark.parametrize(
    ("num_rows", "vocab_size", "width"),
    [
        pytest.param(1, 20000, 4096, id="first step"),
        pytest.param(129, 1000, 129, id="just wide"),
        pytest.param(512, 1000, 512, id="512"),
        pytest.param(4096, 33, 4096, id="widest"),
        pytest.param(300, 3, 4096, id="fewer candidates than places"),
        pytest.param(2000, 40, 700, id="narrower than before"),
    ],
)
def test_as_all_candidates_sorted(kernel, device, num_rows, vocab_size, width, levels):
    case = one_beam(num_rows, vocab_size, width, levels=levels)
    assert chosen(case, kernel, device) == flat(case, width)


def test_equal_candidates_everywhere(kernel, device):
    """All scores are equal, so parents and then tokens decide."""
    case = one_beam(300, 50, 1000)
    case["logits"].fill_(-1.0)
    case["score"].fill_(-3.0)
    expected = [(n // 50, n % 50, -4.0) for n in range(1000)]
    assert chosen(case, kernel, device) == expected


def test_rows_that_nothing_can_follow(kernel, device):
    case = one_beam(200, 60, 500)
    case["logits"][:150] = -INF
    case["logits"][150:, ::2] = -INF
    case["score"][180:] = -INF
    assert chosen(case, kernel, device) == flat(case, 500)
    case["logits"].fill_(-INF)
    assert chosen(case, kernel, device) == []


def test_a_row_that_has_all_the_best(kernel, device):
    """The last row begins far below the others and still has every place."""
    case = one_beam(400, 900, 800)
    case["logits"][-1] += 50.0
    found = chosen(case, kernel, device)
    assert {parent for parent, _, _ in found} == {399}
    assert found == flat(case, 800)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("finishing", list(Finishing))
@pytest.mark.parametrize("held", [0.0, 0.4, 1.0], ids=["", "held", "all held"])
def test_rules(kernel, device, finishing, held):
    case = random_case(1, 30, (200, 0, 3, 150), (180, 300, 2, 150), held=held, options=("margin",))
    case["margin"] *= 2
    check(case, kernel, device, finishing=finishing)


@pytest.mark.parametrize("options", [("forced",), ("ban_eos", "max_candidates")], ids="-".join)
def test_options(kernel, device, options):
    case = random_case(2, 30, (200, 140), (200, 140), options=options)
    check(case, kernel, device, finishing=Finishing.REFILL)


def test_several_eos(kernel, device):
    """Of 3 EOS ids, the best 4 K candidates count."""
    case = random_case(3, 9, (150,), (150,))
    case["eos_id"] = [0, 4, 7]
    found = check(case, kernel, device, finishing=Finishing.REFILL)
    assert int(found.count[0] - found.num_finished[0]) == 150


def test_the_widest_beam_refills(kernel, device):
    """Half of the best candidates end, and as many others take their places."""
    case = one_beam(MAX_WIDTH, 4, MAX_WIDTH)
    case["logits"][:, 2] = 50.0
    found = select(case, kernel, device, finishing=Finishing.REFILL, normalise=False)
    assert (int(found.num_finished[0]), int(found.count[0])) == (MAX_WIDTH, 2 * MAX_WIDTH)
    ranked = flat(case, 2 * MAX_WIDTH)
    assert all(token == 2 for _, token, _ in ranked[:MAX_WIDTH])
    pairs = zip(found.parent[0].tolist(), found.token[0].tolist(), strict=True)
    assert list(pairs) == [(parent, token) for parent, token, _ in ranked]


@pytest.mark.slow
def test_wide_beams_beside_narrow_ones(kernel, device):
    """A beam does not depend on its neighbours."""
    case = random_case(4, 200, (5, 300, 1), (5, 260, 3), dtype=torch.bfloat16, spread=0.3)
    check(case, kernel, device)
    narrow = dict(case, logits=case["logits"][:5], score=case["score"][:5])
    narrow |= dict(offset=offsets([5]), width=case["width"][:1])
    together, alone = (select(one, kernel, device) for one in (case, narrow))
    assert together.token[0, :5].tolist() == alone.token[0].tolist()
    assert together.score[0, :5].tolist() == alone.score[0].tolist()
