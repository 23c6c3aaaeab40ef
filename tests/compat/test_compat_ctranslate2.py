"""`compat.ctranslate2`, scoring and alternatives against the installed CTranslate2, on tiny random models."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

import pybeam
from benchmarks.peers import ctranslate2_translator
from pybeam.compat import ctranslate2 as recipe
from support.option_cover import covering_combinations, random_combinations
from support.tiny_models import favour_eos, tiny_model

pytest.importorskip("ctranslate2")
pytest.importorskip("transformers")

VOCAB = 45
PIECES = ["<s>", "<pad>", "</s>", "<unk>", *(f"t{i}" for i in range(4, VOCAB))]
PAD, EOS, UNK = 1, 2, 3
OPTIONS = dict(
    beam_size=[2, 3, 5],
    patience=[0.6, 1.0, 1.3, 2.0],
    num_hypotheses=[1, 2],
    length_penalty=[-0.5, 0.0, 0.6, 1.5],
    repetition_penalty=[1.0, 1.4, 0.8],
    no_repeat_ngram_size=[0, 1, 2, 3],
    disable_unk=[False, True],
    # positions behind padding that was generated are counted as transformers counts them
    suppress_sequences=[[[PAD]], [[PAD], [9], [8, 30], [12, 5, 6]]],
    max_decoding_length=[4, 6, 20],
    min_decoding_length=[0, 1, 4],
    prefix=["none", "some", "all"],
)


def is_valid(options: dict) -> bool:
    return options["num_hypotheses"] <= int(options["beam_size"] * options["patience"] + 0.5)


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


def pieces(tokens) -> list[str]:
    return [PIECES[token] for token in tokens]


def prefixes_of(kind: str, rng: random.Random) -> list[list[int]]:
    """Sources of lengths 0 to 3 or 1 to 3; none that would leave nothing to generate."""
    least = {"none": 0, "some": 0, "all": 1}[kind]
    most = 0 if kind == "none" else 3
    return [[rng.randrange(4, 40) for _ in range(rng.randint(least, most))] for _ in sources()]


def compare(pair, combinations: list[dict]) -> int:
    """Returns how many hypotheses were the same."""
    ours, theirs = pair
    batch, compared = sources(), 0
    for i, options in enumerate(combinations):
        options = dict(options)
        prefixes = prefixes_of(options.pop("prefix"), random.Random(i))
        expected = theirs.translate_batch(
            [*map(pieces, batch)],
            target_prefix=[*map(pieces, prefixes)] if any(prefixes) else None,
            return_scores=True,
            **options | dict(suppress_sequences=[*map(pieces, options["suppress_sequences"])]),
        )
        decoder = pybeam.Decoder(ours, recipe.beam_search(**options, unk_id=UNK), pybeam.Fifo(3))
        requests = [
            pybeam.Request(source, prefix=prefix)
            for source, prefix in zip(batch, prefixes, strict=True)
        ]
        for result, other in zip(decoder.decode(requests), expected, strict=True):
            assert result.error is None, result.error
            # without the dummy that may stand in for EOS behind a prefix
            known = [score for score in other.scores if score > -1e8]
            assert [h.final_score for h in result.hypotheses] == pytest.approx(known, abs=1e-4), (
                options,
                prefixes,
            )
            for hypothesis, tokens in zip(result.hypotheses, other.hypotheses, strict=False):
                near = [s for s in known if abs(s - hypothesis.final_score) < 1e-4]
                same = [PIECES.index(piece) for piece in tokens] == hypothesis.tokens
                assert same or len(near) > 1, (options, prefixes)
                compared += 1
    return compared


def test_same_tokens_and_scores(pair):
    combinations = covering_combinations(OPTIONS, is_valid)
    assert compare(pair, combinations) > 6 * len(combinations)


@pytest.mark.parametrize("beta", [0.5, 0.99])
def test_prefix_that_is_made_likely(pair, beta):
    """Where the row that follows the prefix keeps its rank; else CTranslate2 forgets the prefix."""
    ours, theirs = pair
    prefixes = prefixes_of("all", random.Random(1))
    for beam_size in OPTIONS["beam_size"]:
        options = dict(beam_size=beam_size, prefix_bias_beta=beta, max_decoding_length=12)
        expected = theirs.translate_batch(
            [*map(pieces, sources())],
            target_prefix=[*map(pieces, prefixes)],
            return_scores=True,
            **options,
        )
        requests = [
            pybeam.Request(source, processors=[pybeam.processors.biased_prefix(beta, prefix)])
            for source, prefix in zip(sources(), prefixes, strict=True)
        ]
        results = pybeam.Decoder(ours, recipe.beam_search(**options)).decode(requests)
        for result, other in zip(results, expected, strict=True):
            assert result.hypotheses[0].final_score == pytest.approx(other.scores[0], abs=1e-4)
            assert pieces(result.hypotheses[0].tokens) == other.hypotheses[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_same_tokens_and_scores_of_many(pair, seed):
    assert compare(pair, random_combinations(OPTIONS, is_valid, 200, seed)) > 1200


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


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("prefix", [[], [7], [30, 9, 12]])
def test_alternatives(pair, beam_size, prefix):
    """CTranslate2 bans EOS at the position and renormalises; else scores are sums of log-probs."""
    ours, theirs = pair
    options = dict(beam_size=beam_size, length_penalty=0.0, max_decoding_length=12)
    longest = 12 - len(prefix)  # where CTranslate2 counts the prefix
    algorithm = pybeam.greedy(max_length=longest)
    if beam_size > 1:
        algorithm = recipe.beam_search(
            **options | dict(max_decoding_length=longest, min_decoding_length=0)
        )
        # there they count in the score of what follows
        algorithm = dataclasses.replace(algorithm, prefix=pybeam.limits.FREE)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(patience=0.5, num_hypotheses=3), r"`num_hypotheses` must be at most round.* = 2"),
        (dict(patience=0), "`patience` must be positive"),
        (dict(patience=2, num_hypotheses=5), "`n_best` must be at most `width` = 4"),
        (dict(beam_size=1), "`beam_size` must be at least 2, but is 1, .* pybeam.greedy"),
        (dict(beam_size="5"), "`beam_size` must be an int, but is '5'"),
        (dict(min_decoding_length=9, max_decoding_length=8), "`min_decoding_length` must be at"),
        (dict(disable_unk=True), "`disable_unk` needs `unk_id`, which is not given"),
        (dict(repetition_penalty=-1), "`penalty` must be finite, greater than 0"),
        (dict(prefix_bias_beta=1), "`beta` must be .* less than 1, but is 1"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        recipe.beam_search(**{"beam_size": 4, **options})
