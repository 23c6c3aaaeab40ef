"""The frames of an output's tokens, against all paths."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from pybeam import ctc
from support.ctc_paths import paths, said


def frames_of(seed: int, *shape: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made).log_softmax(-1)


def best_path(frames: list[list[float]], tokens: tuple[int, ...], blank: int) -> tuple[int, ...]:
    return max((p for p in paths(frames) if said(p[0], blank) == tokens), key=lambda p: p[1])[0]


@pytest.mark.thinned(most=1)
def test_spans_are_those_of_the_most_probable_path(backend):
    lists = [(1,), (1, 1), (2, 1, 2), (1, 2), (), (2, 2, 1)]
    for blank in (0, 3):
        log_probs = frames_of(blank, len(lists), 6, 4)
        found = ctc.align(log_probs, lists, blank=blank, backend=backend)
        for own, tokens, frames in zip(found, lists, log_probs.tolist(), strict=True):
            path = best_path(frames, tokens, blank)
            runs, t = [], 0
            for token, run in itertools.groupby(path):
                start, t = t, t + len(list(run))
                if token != blank:
                    mean = sum(frames[i][token] for i in range(start, t)) / (t - start)
                    runs.append((token, start, t, pytest.approx(mean)))
            assert [tuple(span) for span in own] == runs


def test_of_equal_paths_one_is_taken_by_the_rule(backend):
    log_probs = torch.zeros(1, 4, 3)
    [spans] = ctc.align(log_probs, [[1, 2]], backend=backend)
    # the last token ends in the last frame, and nothing moves before it must
    assert [(s.start, s.end) for s in spans] == [(0, 1), (1, 4)]


def test_backends_agree():
    pytest.importorskip("pybeam.ctc.native", exc_type=ImportError)
    log_probs = frames_of(4, 5, 40, 7)
    lists = [h.tokens for h in ctc.greedy(log_probs, [40, 25, 3, 0, 40])]
    one, other = (
        ctc.align(log_probs, lists, [40, 25, 3, 0, 40], backend=name)
        for name in ("native", "reference")
    )
    assert one == other
    # the spans of greedy search are the runs of its path
    for own, spans in zip(log_probs, one, strict=True):
        path = own.argmax(1).tolist()
        assert all(set(path[s.start : s.end]) == {s.token} for s in spans)


def test_a_source_alone_is_aligned_as_beside_others(backend):
    log_probs = frames_of(5, 3, 9, 5)
    lists, lengths = [[1, 1, 4], [2], [3, 1]], [9, 4, 6]
    for own, length in zip(log_probs, lengths, strict=True):
        own[length:] = math.nan
    together = ctc.align(log_probs, lists, lengths, backend=backend)
    for i, length in enumerate(lengths):
        alone = ctc.align(log_probs[i : i + 1, :length], lists[i : i + 1], backend=backend)
        assert alone == [together[i]]


def test_tokens_may_lie_apart_in_memory(backend):
    log_probs = frames_of(7, 2, 9, 5)
    apart = log_probs.mT.contiguous().mT
    lists = [[1, 2], [3]]
    assert apart.stride(2) != 1
    expected = ctc.align(log_probs, lists, backend=backend)
    assert ctc.align(apart, lists, backend=backend) == expected


def test_paths_that_take_too_much_memory_are_refused(backend):
    log_probs = torch.zeros(1, 1, 2).expand(1, 2**15, 2)
    message = r"source 0, with 32768 frames and 32768 tokens, take 2147516416 bytes.*cut it"
    with pytest.raises(ValueError, match=message):
        ctc.align(log_probs, [[1] * 2**15], backend=backend)


def test_what_cannot_be_said_is_refused(backend):
    log_probs = frames_of(6, 2, 2, 4)
    for tokens in ([1, 1], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"must be what 2 frames can say, but .* source 1"):
            ctc.align(log_probs, [[], tokens], backend=backend)
    log_probs[0, :, 2] = -math.inf
    with pytest.raises(ValueError, match="those of source 0 are not"):
        ctc.align(log_probs, [[2], []], backend=backend)
    with pytest.raises(ValueError, match="must not hold the blank, 0"):
        ctc.align(log_probs, [[0], []], backend=backend)
    with pytest.raises(ValueError, match="must be 0 to 3, but one is 4"):
        ctc.align(log_probs, [[4], []], backend=backend)
    with pytest.raises(ValueError, match="a list for each of 2 sources, but there are 1"):
        ctc.align(log_probs, [[1]], backend=backend)
