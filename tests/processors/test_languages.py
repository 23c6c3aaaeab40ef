"""Patterns in searches: every output matches, and a wide beam finds the best of all that do."""

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
PATTERN = re.compile(r"(And|The) [\w ]{1,30}[,:;] .*[.!]|\d{4}")


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


@pytest.mark.thinned(most=2)
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
