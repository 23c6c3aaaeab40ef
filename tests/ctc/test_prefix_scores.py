"""Prefix scores of CTC, against all paths; alone, in searches, and beside other sources."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
import torch

import pybeam
from pybeam import ctc
from support import ctc_prefixes as plain
from support.ctc_paths import outputs, prefix_score
from support.search_models import BOS, EOS, next_logits, random_model

INF = math.inf
V = 6
MODEL = random_model(4, V, eos_bonus=0.5)
# of three sources
LENGTHS = (5, 1, 4)
# what CTCPrefixScoreTH of ESPnet 202511 gave the tokens of outputs, and then EOS, on 2026-11-27; by source
ESPNET_LENGTHS = (9, 4, 3)
ESPNET = {
    (0, (2, 2, 5)): [-2.1449, -4.05915, -1.62949, -6.40362],
    (0, (4, 3, 4)): [-1.1473, -2.02995, -1.24601, -5.56187],
    (1, (2, 2, 2)): [-1.17147, -4.3926, -1e10],
    (1, (3, 5, 2)): [-3.17559, -1.75006, -3.28543, -0.58341],
    (2, (3, 4, 2)): [-2.15423, -1.46826, -4.63591, 0.0],
    (2, (5, 5, 3)): [-1.87612, -4.13913, -1e10],
}


def frames_of(seed: int, num: int, size: int = V, peak: float = 1.5) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return (peak * torch.randn(num, size, generator=made)).log_softmax(-1)


def decoded(search, requests, backend="auto", schedule=None, model=MODEL):
    decoder = pybeam.Decoder(model, search, schedule or pybeam.Batch(3), backend=backend)
    return decoder.decode(requests)


def requests_of(frames, weight=0.4, **options):
    return [
        pybeam.Request([5], source_id=i, processors=[ctc.prefix_scores(own, weight, **options)])
        for i, own in enumerate(frames)
    ]


FRAMES = [frames_of(i, num) for i, num in enumerate(LENGTHS)]
JOINT = pybeam.fixed_beam(3, n_best=3, max_length=6, processors=[ctc.prefix_scores(None)])


def test_the_plain_oracle_is_the_sum_over_paths():
    logits = frames_of(1, 5, 4)
    logits[2, 1] = -INF
    frames = logits.log_softmax(1).tolist()
    for num in range(4):
        for said in itertools.product((1, 2, 3), repeat=num):
            expected = prefix_score(frames, said)
            assert plain.prefix_score(frames, said, 0) == pytest.approx(expected, abs=1e-6)
            whole = outputs(frames).get(said, -INF)
            assert plain.whole_score(frames, said, 0) == pytest.approx(whole, abs=1e-6)


def log_prob_of(source: int, tokens: list[int]) -> float:
    """Return the decoder's log-probability of an output and EOS."""
    said = [*tokens, EOS]
    rows = [next_logits(MODEL, source, said[:i]).log_softmax(-1) for i in range(len(said))]
    return float(sum(row[token] for row, token in zip(rows, said, strict=True)))


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_a_wide_beam_finds_the_best_of_both_models_together(weight, backend):
    """A finished output has the mean of the log-probabilities that both give to it."""
    wide = pybeam.fixed_beam(1500, n_best=12, max_length=5, processors=JOINT.processors)
    for source, result in enumerate(decoded(wide, requests_of(FRAMES, weight), backend)):
        said = outputs(FRAMES[source].tolist())
        expected = {
            tokens: (1 - weight) * log_prob_of(source, list(tokens)) + weight * said[tokens]
            for num in range(5)
            for tokens in itertools.product((2, 3, 4, 5), repeat=num)
            if tokens in said
        }
        best = sorted(expected.values(), reverse=True)[:12]
        ended = [h for h in result.hypotheses if h.eos_id is not None]
        assert [h.score for h in ended] == pytest.approx(best[: len(ended)], abs=1e-4)
        for one in ended:
            assert one.score == pytest.approx(expected[tuple(one.tokens)], abs=1e-4)


@pytest.mark.parametrize("pre_beam", [None, 2])
def test_scores_of_steps_are_those_of_plain_python(pre_beam, backend):
    weight = 0.6
    search = dataclasses.replace(JOINT, processors=(ctc.prefix_scores(None, pre_beam=pre_beam),))
    frames = [own.clone() for own in FRAMES]
    frames[0][1, 2] = frames[2][:, 3] = -INF
    for source, result in enumerate(
        decoded(search, requests_of(frames, weight, pre_beam=pre_beam), backend)
    ):
        assert result.hypotheses
        for one in result.hypotheses:
            total, tokens = 0.0, [*one.tokens, *([] if one.eos_id is None else [EOS])]
            for i, token in enumerate(tokens):
                row = next_logits(MODEL, source, tokens[:i]).log_softmax(-1).tolist()
                options = weight, 0, [EOS], pre_beam
                total += plain.mixed(row, frames[source].tolist(), tokens[:i], *options)[token]
            assert one.score == pytest.approx(total, abs=1e-4)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("schedule", [pybeam.Fifo(2), pybeam.Streaming(2, row_budget=4)], ids=repr)
def test_a_source_alone_gets_what_it_gets_beside_others(schedule, backend):
    requests = requests_of([*FRAMES, frames_of(7, 0), frames_of(8, 9)])
    together = decoded(JOINT, requests, backend, schedule)
    alone = [decoded(JOINT, [request], backend)[0] for request in requests]
    found = [[(h.tokens, h.score) for h in one.hypotheses] for one in together]
    if backend == "native":
        assert found == [[(h.tokens, h.score) for h in one.hypotheses] for one in alone]
    assert [[h.tokens for h in one.hypotheses] for one in together] == [
        [h.tokens for h in one.hypotheses] for one in alone
    ]
    # no frame says nothing
    assert [h.tokens for h in together[3].hypotheses] == [[]]


def test_without_frames_or_weight_nothing_changes():
    bare = dataclasses.replace(JOINT, processors=())
    requests = [pybeam.Request([5], source_id=i) for i in range(3)]
    expected = [[(h.tokens, h.score) for h in r.hypotheses] for r in decoded(bare, requests)]
    for others in (requests, requests_of(FRAMES, 0.0), requests_of([None] * 3)):
        found = decoded(JOINT, others)
        assert [[(h.tokens, h.score) for h in r.hypotheses] for r in found] == expected


@pytest.mark.parametrize(("source", "output"), ESPNET)
def test_scores_are_those_of_espnet(source, output, backend):
    """Those of what CTC cannot say are -1e10 there."""
    draw = random.Random(source).random
    logits = [[4 * draw() for _ in range(V)] for _ in range(ESPNET_LENGTHS[source])]
    frames = torch.tensor(logits).log_softmax(-1)
    [result] = pybeam.Decoder(MODEL, JOINT, backend=backend).score(
        requests_of([frames], 1.0), [output]
    )
    [found] = result.hypotheses
    expected = [-INF if one < -1e9 else one for one in ESPNET[source, output]]
    assert found.log_probs[: len(expected)] == pytest.approx(expected, abs=1e-4)


def test_a_function_gives_the_frames_of_each_source(backend):
    asked = []

    def frames(content):
        asked.append(content)
        return FRAMES[len(asked) - 1]

    search = dataclasses.replace(JOINT, processors=(ctc.prefix_scores(frames, 0.4),))
    requests = [pybeam.Request([5], source_id=i) for i in range(3)]
    found = decoded(search, requests, backend)
    expected = decoded(JOINT, requests_of(FRAMES), backend)
    assert len(asked) == 3
    for one, other in zip(found, expected, strict=True):
        assert [(h.tokens, h.score) for h in one.hypotheses] == [
            (h.tokens, h.score) for h in other.hypotheses
        ]


@pytest.mark.parametrize("counts", [True, False])
def test_a_prefix_is_said_or_stands_before_it(counts, backend):
    search = dataclasses.replace(JOINT, processors=(ctc.prefix_scores(None, counts_prefix=counts),))
    [request] = requests_of(FRAMES[:1], counts_prefix=counts)
    request = dataclasses.replace(request, prefix=[3, 2])
    [result] = decoded(search, [request], backend)
    frames = FRAMES[0].tolist()
    for one in result.hypotheses:
        total, tokens = 0.0, [*one.tokens, *([] if one.eos_id is None else [EOS])]
        for i, token in enumerate(tokens[2:], 2):
            row = next_logits(MODEL, 0, tokens[:i]).log_softmax(-1).tolist()
            said = tokens[:i] if counts else tokens[2:i]
            total += plain.mixed(row, frames, said, 0.4, 0, [EOS])[token]
        assert one.score == pytest.approx(total, abs=1e-4)


def test_probabilities_too_small_for_float32_count(backend):
    """A token that is e^-150 as probable as others in all frames has the score that it has."""
    frames = torch.full((3, V), -150.0)
    frames[:, 0] = frames[:, 3] = math.log(0.5)
    # nothing else can be said
    model = pybeam.models.FunctionModel(
        lambda prefixes, *_: torch.tensor([[-INF, 0.0, 0.0, -INF, -INF, -INF]]).repeat(
            len(prefixes), 1
        ),
        V,
        BOS,
        EOS,
    )
    search = pybeam.greedy(max_length=1, processors=JOINT.processors)
    search = dataclasses.replace(
        search,
        processors=(*search.processors, pybeam.processors.suppress_tokens([1], stage="log_probs")),
    )
    [result] = decoded(search, requests_of([frames], 0.5), backend, model=model)
    expected = 0.5 * math.log(0.5) + 0.5 * plain.prefix_score(frames.tolist(), [2], 0)
    assert result.hypotheses[0].tokens == [2]
    assert result.hypotheses[0].score == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, 1.5), {}, ValueError, "`weight` must be from 0 to 1, but is 1.5"),
        ((None,), dict(blank=-1), ValueError, "`blank` must be at least 0"),
        ((None,), dict(pre_beam=0), ValueError, "`pre_beam` must be at least 1"),
        (([[0.0]],), {}, TypeError, "`log_probs` must be a tensor"),
        ((torch.zeros(2, 3).long(),), {}, TypeError, "must hold floats"),
        ((torch.zeros(3),), {}, ValueError, r"must be \[frames, tokens\] of one source"),
        ((torch.full((1, 2), math.nan),), {}, ValueError, "holds NaN or infinity"),
    ],
)
def test_bad_arguments_are_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        ctc.prefix_scores(*arguments, **options)


def test_what_does_not_fit_the_decoder_is_refused():
    for options, message in (
        (dict(log_probs=frames_of(0, 3, 7)), "must be of the decoder's 6 tokens, but are of 7"),
        (dict(log_probs=None, blank=EOS), "`blank` must not be EOS"),
        (dict(log_probs=None, blank=6), "`blank` must be 0 to 5"),
    ):
        search = dataclasses.replace(JOINT, processors=(ctc.prefix_scores(**options),))
        with pytest.raises(ValueError, match=message):
            decoded(search, [[5]])
