"""`compat.ctranslate2`, scoring and alternatives against the installed CTranslate2, on tiny random models."""

from __future__ import annotations

import itertools
import math
import random

import pytest

import pybeam
from benchmarks.peers import ctranslate2_translator
from pybeam.compat import ctranslate2 as recipe
from tiny_models import favour_eos, tiny_model

pytest.importorskip("ctranslate2")
pytest.importorskip("transformers")

VOCAB = 45
PIECES = ["<s>", "<pad>", "</s>", "<unk>", *(f"t{i}" for i in range(4, VOCAB))]
OPTIONS = dict(
    beam_size=[2, 3, 5],
    patience=[0.6, 1.0, 2.0],
    num_hypotheses=[1, 2],
    length_penalty=[-0.5, 0.0, 0.6, 1.5],
    max_decoding_length=[1, 6, 20],
)
COMBINATIONS = [
    dict(zip(OPTIONS, values, strict=True))
    for values in itertools.product(*OPTIONS.values())
    if values[2] <= round(values[0] * values[1])
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    # the converter takes one number of heads for both stacks
    model = tiny_model("m2m_100-even")
    favour_eos(model, 2.0)
    model.save_pretrained(directory)
    return pybeam.load_model(directory), ctranslate2_translator(model, PIECES, 1)


def sources() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(4, 40) for _ in range(n)] for n in (1, 4, 9, 2, 7, 3)]


@pytest.mark.parametrize("beam_size", OPTIONS["beam_size"])
def test_same_tokens_and_scores(pair, beam_size):
    ours, theirs = pair
    batch, compared = sources(), 0
    lines = [[PIECES[token] for token in source] for source in batch]
    for options in COMBINATIONS:
        if options["beam_size"] != beam_size:
            continue
        expected = theirs.translate_batch(
            lines, **options, min_decoding_length=0, return_scores=True
        )
        decoder = pybeam.Decoder(ours, recipe.beam_search(**options), pybeam.Fifo(3))
        for result, other in zip(decoder.decode(batch), expected, strict=True):
            scores = [h.final_score for h in result.hypotheses]
            assert scores == pytest.approx(other.scores, abs=1e-4), options
            for hypothesis, tokens in zip(result.hypotheses, other.hypotheses, strict=True):
                near = [s for s in other.scores if abs(s - hypothesis.final_score) < 1e-4]
                same = [PIECES.index(piece) for piece in tokens] == hypothesis.tokens
                assert same or len(near) > 1, options
                compared += 1
    assert compared > 100


def pieces(tokens) -> list[str]:
    return [PIECES[token] for token in tokens]


def test_scores_of_given_targets(pair):
    ours, theirs = pair
    rng = random.Random(6)
    targets = [[rng.randrange(4, 40) for _ in range(n)] for n in (3, 0, 8, 1, 5, 12)]
    expected = theirs.score_batch([*map(pieces, sources())], [*map(pieces, targets)])
    decoder = pybeam.Decoder(ours, pybeam.greedy(), pybeam.Fifo(4))
    for result, target, other in zip(
        decoder.score(sources(), targets), targets, expected, strict=True
    ):
        assert other.tokens == [*pieces(target), "</s>"]
        assert result.hypotheses[0].log_probs == pytest.approx(other.log_probs, abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("prefix", [[], [7], [30, 9, 12]])
def test_alternatives(pair, beam_size, prefix):
    """CTranslate2 bans EOS at the position and renormalises; else scores are sums of log-probs."""
    ours, theirs = pair
    options = dict(beam_size=beam_size, length_penalty=0.0, max_decoding_length=12)
    longest = 12 - len(prefix)  # where CTranslate2 counts the prefix
    algorithm = pybeam.greedy(max_length=longest)
    if beam_size > 1:
        algorithm = recipe.beam_search(**options | dict(max_decoding_length=longest))
    decoder = pybeam.Decoder(ours, algorithm, pybeam.Fifo(5))
    requests = [pybeam.Request(source, prefix=prefix) for source in sources()]
    ends = decoder.score(sources(), [prefix] * len(requests))
    for request, end in zip(requests, ends, strict=True):
        rest = math.log1p(-math.exp(end.hypotheses[0].log_probs[-1]))
        probabilities = [
            math.exp(result.hypotheses[0].log_probs[0] - rest)
            for result in pybeam.Decoder(ours, algorithm, log_probs=True).alternatives([request], 1)
        ]
        for least in (0.0, 0.7 * probabilities[0]):
            (other,) = theirs.translate_batch(
                [pieces(request.source)],
                target_prefix=[pieces(prefix)],
                return_alternatives=True,
                num_hypotheses=4,
                min_alternative_expansion_prob=least,
                min_decoding_length=0,
                return_scores=True,
                **options,
            )
            found = decoder.alternatives([request], 4, min_probability=least * math.exp(rest))
            found = found[0].hypotheses
            assert [pieces(h.tokens) for h in found] == other.hypotheses
            assert [h.score - rest for h in found] == pytest.approx(other.scores, abs=1e-4)
            assert len(found) == 4 if least == 0 else 1 <= len(found) <= 4


def test_what_can_never_be_found_is_refused():
    with pytest.raises(ValueError, match=r"`num_hypotheses` must be at most .* = 2"):
        recipe.beam_search(4, patience=0.5, num_hypotheses=3)
    with pytest.raises(ValueError, match="`patience` must be positive"):
        recipe.beam_search(4, patience=0)
