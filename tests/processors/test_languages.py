"""Patterns and words in searches: every output keeps to them, and a wide beam finds the best that do."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

import pybeam
from pybeam import processors
from pybeam.automata.vocabulary import Vocabulary
from support.laws import ALGORITHMS
from support.paths import MODEL
from support.search_models import EOS, next_logits, random_model

TOKENS = (None, None, b"a", "é".encode(), b"\xc3", b"\xa9", b"ab")
TEXTS = Vocabulary(TOKENS, TOKENS)
LINES = ["En el año 1602, Jesús lloró.", "Y dijo Dios: Sea la luz; y fué la luz."]
PATTERN = re.compile(r"(And|The) [a-zA-Z ]{1,30}[,:;] .*[.!]|\d{4}")


def best_of_all(model, source, pattern, most: int) -> list[tuple[float, list[int]]]:
    """All outputs of at most `most` tokens, EOS included, whose text matches, best first."""
    found = []
    for length in range(most):
        for tokens in itertools.product(TEXTS.written, repeat=length):
            try:
                text = TEXTS.text(tokens).decode()
            except UnicodeDecodeError:
                continue
            if re.fullmatch(pattern, text):
                rows = [
                    next_logits(model, source, [*tokens[:n]]).double() for n in range(length + 1)
                ]
                pairs = zip(rows, [*tokens, EOS], strict=True)
                score = sum(float(row.log_softmax(0)[token]) for row, token in pairs)
                found.append((score, list(tokens)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("pattern", ["(a|é)*", "(?:ab|[^a])+b?"])
def test_a_beam_as_wide_as_the_language_finds_what_brute_force_finds(pattern):
    model = random_model(len(pattern), len(TOKENS))
    rule = processors.regex(pattern, TEXTS)
    search = pybeam.fixed_beam(60, n_best=60, max_length=4, processors=[rule])
    for source, result in enumerate(pybeam.Decoder(model, search).decode([[3], [4, 5]])):
        expected = best_of_all(model, source, pattern, 4)
        assert len(expected) > 5
        assert [h.tokens for h in result.hypotheses] == [ids for _, ids in expected]
        scores = [h.score for h in result.hypotheses]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.fixture(scope="module")
def model():
    return pybeam.load_model(MODEL, device="cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return pybeam.load_tokenizer(MODEL)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "wide"])
def test_every_output_of_the_example_model_matches(name, model, tokenizer):
    algorithm = ALGORITHMS[name]
    # noise is added behind all others
    chain = (processors.regex(PATTERN, tokenizer), *algorithm.processors)
    search = dataclasses.replace(algorithm, processors=chain, max_length=25)
    year = pybeam.Request(
        tokenizer.encode(LINES[0]), processors=[processors.regex(r"in 1\d\d2", tokenizer)]
    )
    requests = [*tokenizer.encode(LINES), year]
    results = pybeam.Decoder(model, search).decode(requests)
    for result, pattern in zip(results, [PATTERN, PATTERN, r"in 1\d\d2"], strict=True):
        assert result.error is None
        assert result.hypotheses
        for hypothesis in result.hypotheses:
            assert re.fullmatch(pattern, tokenizer.decode(hypothesis.tokens, strips=False))


def test_what_does_not_fit_is_refused():
    rule = processors.regex(r"(ab){5}", TEXTS)
    model = random_model(0, len(TOKENS))
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(2, max_length=20, processors=[rule]))
    short = pybeam.Request([3], max_length=5)
    [whole, cut] = decoder.decode([[3], short], on_error="return")
    assert TEXTS.text(whole.hypotheses[0].tokens) == b"ab" * 5
    assert "`max_length` must be at least 6" in str(cut.error)


def test_outputs_are_words_of_a_list(model, tokenizer):
    words = ["Jesus", "wept", "and", "And", "the", "light", "was", "wisdom", "Let", "said", "God"]
    rule, scoring = processors.lexicon(words, tokenizer), pybeam.scoring.power(1.0)
    search = pybeam.variable_beam(6, n_best=6, max_length=12, processors=[rule], scoring=scoring)
    for result in pybeam.Decoder(model, search).decode(tokenizer.encode(LINES)):
        for hypothesis in result.hypotheses:
            assert {*tokenizer.decode(hypothesis.tokens).split()} <= {*words}
        assert len(tokenizer.decode(result.hypotheses[0].tokens).split()) > 2


@pytest.mark.parametrize("name", ["bible-es-en", "spoken-verses-en"])
def test_words_are_spelt_as_between_spaces(name):
    tokenizer = pybeam.load_tokenizer(MODEL.parent / name)
    words = ["light", "lights", "year"]
    automaton = processors.lexicon(words, tokenizer).automaton
    for text in ("light", "year light", "lights light year", ""):
        assert automaton.score(tokenizer.encode_target(text)) == 0
        assert tokenizer.decode(tokenizer.encode_target(text)) == text
    for text in ("lightyear", "lighted", "light, year"):
        assert automaton.score(tokenizer.encode_target(text)) == -float("inf")


@pytest.mark.parametrize(
    ("words", "tokenizer", "error", "problem"),
    [
        ("light", "own", TypeError, "`words` must be a list of words, or .* but is 'light'"),
        (["light"], None, TypeError, "`tokenizer` must be a pybeam.Tokenizer, but is None"),
        ({"a": [5]}, "own", TypeError, "`tokenizer` must be None for words that are spelt already"),
        (
            ["\U0001f600"],
            "own",
            ValueError,
            "words that the tokenizer can spell, but has '\U0001f600'",
        ),
        ({"a": []}, None, ValueError, "a spelling has none"),
        ({"a": "light"}, None, TypeError, "`words` must be a list of token ids, but is 'l'"),
        (
            {"a": [5.5]},
            None,
            TypeError,
            "`words` must hold token ids, which are ints, but holds 5.5",
        ),
        ([], "own", ValueError, "`words` must have at least one word"),
    ],
)
def test_what_is_no_lexicon(words, tokenizer, error, problem):
    own = pybeam.load_tokenizer(MODEL.parent / "spoken-numbers-en") if tokenizer else None
    with pytest.raises(error, match=problem):
        processors.lexicon(words, own)
