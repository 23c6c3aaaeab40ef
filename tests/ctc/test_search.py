"""Greedy search and prefix beam search of CTC, against all paths."""

from __future__ import annotations

import math

import pytest
import torch

from pybeam import ctc
from support.ctc_paths import outputs, said

INF = math.inf
WIDE = 4096


def frames_of(seed: int, *shape: int, peak: float = 2.0) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return (peak * torch.randn(*shape, generator=made)).log_softmax(-1)


def near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("blank", [0, 2])
def test_a_wide_beam_finds_all_outputs_with_their_probabilities(backend, blank):
    log_probs = frames_of(blank, 6, 5, 3)
    # some tokens cannot be said
    log_probs[1, 2, 1] = log_probs[2, :, 2] = -INF
    found = ctc.beam_search(log_probs, width=WIDE, n_best=WIDE, blank=blank, backend=backend)
    for own, frames in zip(found, log_probs.tolist(), strict=True):
        expected = outputs(frames, blank)
        assert {one.tokens for one in own} == expected.keys()
        assert all(near(one.log_prob, expected[one.tokens]) for one in own)
        assert [one.log_prob for one in own] == sorted([one.log_prob for one in own], reverse=True)


@pytest.mark.parametrize("options", [{}, dict(max_tokens=2), dict(threshold=3.0)], ids=str)
def test_backends_agree(options):
    pytest.importorskip("pybeam.ctc.native", exc_type=ImportError)
    for seed, (num_frames, vocab_size, width) in enumerate([(20, 6, 4), (9, 40, 7), (30, 3, 16)]):
        log_probs = frames_of(seed, 3, num_frames, vocab_size, peak=1.0 + seed)
        lengths = [num_frames, 1, num_frames // 2]
        one, other = (
            ctc.beam_search(log_probs, lengths, width=width, n_best=3, backend=name, **options)
            for name in ("native", "reference")
        )
        for ours, theirs in zip(one, other, strict=True):
            assert [h.tokens for h in ours] == [h.tokens for h in theirs]
            assert all(near(a.log_prob, b.log_prob) for a, b in zip(ours, theirs, strict=True))


def test_ties_follow_the_rule(backend):
    # all tokens are equally probable in all frames: powers of two are exact
    log_probs = torch.zeros(1, 2, 4)
    [found] = ctc.beam_search(log_probs, width=5, n_best=5, backend=backend)
    # those of one token have three paths each; then what stays comes before what is new
    assert [h.tokens for h in found] == [(1,), (2,), (3,), (), (1, 2)]
    assert near(found[0].log_prob, math.log(3)) and found[-1].log_prob == 0.0


def test_sources_without_frames_and_frames_that_allow_nothing(backend):
    log_probs = frames_of(3, 3, 4, 5)
    log_probs[1] = -INF
    log_probs[1, :, 0] = 0.0
    log_probs[2, 2] = -INF
    found = ctc.beam_search(log_probs, [0, 4, 4], width=3, n_best=3, backend=backend)
    assert found == [[ctc.Hypothesis((), 0.0)], [ctc.Hypothesis((), 0.0)], []]
    one, two, three = ctc.greedy(log_probs, [0, 4, 4])
    assert one == two == ctc.Hypothesis((), 0.0)
    assert three.log_prob == -INF


def test_a_prefix_that_was_dropped_comes_back_as_itself(backend):
    # "a" is dropped in the second frame while "ab" goes on, and is said again in the third
    rows = [[0.1, 0.6, 0.3, 0.0], [0.01, 0.0, 0.95, 0.04], [0.2, 0.5, 0.29, 0.01]]
    log_probs = torch.tensor([[*rows, *rows]]).log()
    expected = ctc.beam_search(log_probs, width=2, n_best=2, backend="reference")
    found = ctc.beam_search(log_probs, width=2, n_best=2, backend=backend)
    for own, theirs in zip(found[0], expected[0], strict=True):
        assert own.tokens == theirs.tokens and near(own.log_prob, theirs.log_prob)


def test_greedy_says_what_the_best_path_says():
    log_probs = frames_of(8, 4, 30, 4)
    lengths = [30, 7, 1, 0]
    for blank in (0, 3):
        for i, one in enumerate(ctc.greedy(log_probs, lengths, blank=blank)):
            best = log_probs[i, : lengths[i]].max(1)
            assert one.tokens == said(best.indices.tolist(), blank)
            assert one.log_prob == pytest.approx(float(best.values.sum()), rel=1e-6)


def test_a_source_alone_finds_what_it_finds_beside_others(backend):
    log_probs = frames_of(5, 9, 12, 20, peak=1.5)
    lengths = [12, 3, 0, 7, 12, 1, 9, 2, 5]
    # nothing is read behind the end
    for own, length in zip(log_probs, lengths, strict=True):
        own[length:] = math.nan
    together = ctc.beam_search(log_probs, lengths, width=6, n_best=6, backend=backend)
    greedy = ctc.greedy(log_probs, lengths)
    for i, length in enumerate(lengths):
        alone = log_probs[i : i + 1, :length]
        assert ctc.beam_search(alone, width=6, n_best=6, backend=backend) == [together[i]]
        assert ctc.greedy(alone) == [greedy[i]]


def test_bad_numbers_are_refused(backend):
    for value in (math.nan, INF):
        log_probs = frames_of(6, 2, 3, 4)
        log_probs[1, 2, 3] = value
        with pytest.raises(ValueError, match="source 1 holds NaN or infinity"):
            ctc.beam_search(log_probs, width=2, backend=backend)
        with pytest.raises(ValueError, match="source 1 holds NaN or infinity"):
            ctc.greedy(log_probs)
        with pytest.raises(ValueError, match="source 1 holds NaN or infinity"):
            ctc.align(log_probs, [[1], [1]], backend=backend)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(width=0), ValueError, "`width` must be 1 to 4096, but is 0"),
        (dict(n_best=3), ValueError, "`n_best` must be at most `width` = 2, but is 3"),
        (dict(blank=4), ValueError, "`blank` must be 0 to 3, but is 4"),
        (dict(max_tokens=0), ValueError, "`max_tokens` must be at least 1"),
        (dict(threshold=0.0), ValueError, "`threshold` must be greater than 0 nats"),
        (dict(lengths=[3, 4]), ValueError, "`lengths` must be at most 3 frames, but one is 4"),
        (dict(lengths=[3]), ValueError, "`lengths` must have one for each of 2 sources"),
        (dict(log_probs=torch.zeros(3, 4)), ValueError, "`log_probs` must be .* but is .3, 4."),
        (dict(log_probs=[[0.0]]), TypeError, "`log_probs` must be a tensor"),
        (dict(log_probs=torch.zeros(1, 1, 4).int()), TypeError, "must hold floats"),
        (dict(backend="tpu"), ValueError, "`backend` must be 'auto' or one of"),
    ],
)
def test_bad_arguments_are_refused(changes, error, message):
    given = dict(log_probs=frames_of(7, 2, 3, 4), width=2) | changes
    with pytest.raises(error, match=message):
        ctc.beam_search(given.pop("log_probs"), given.pop("lengths", None), **given)
