"""Grammars and JSON schemas: against brute force over all outputs, and against `jsonschema` and `re`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
import re

import numpy as np
import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.automata.vocabulary import Vocabulary
from pybeam.processors import grammars
from support.search_models import BOS, EOS, next_logits, random_model

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

# BOS and EOS have no text
TEXTS = [None, None, "a", "b", "ab", "ba", "c", "bab"]


class Texts:
    """A tokenizer that gives the text of each id."""

    def __init__(self, texts):
        self.texts = texts

    def vocab(self):
        return self.texts

    def decode(self, tokens):
        return b"".join(_bytes(self.texts[token]) for token in tokens).decode()


def _bytes(text):
    return text.encode() if isinstance(text, str) else text


TINY = Texts(TEXTS)
# every byte, and some words of JSON
WORDS = '{" ": ", " "} [ , true ": " é 日本 12 null ]}'.split(" ")
JSON_TEXTS = Texts([None, None, *(bytes([byte]) for byte in range(256)), ", ", b"\xc3", *WORDS])


@pytest.fixture(autouse=True, params=[True, pytest.param(False, marks=pytest.mark.slow)])
def beside(request, monkeypatch):
    """Whether masks are made while the model computes."""
    monkeypatch.setattr(grammars, "works_beside", lambda device: request.param)
    return request.param


def brute_force(model, source, pattern, most, texts=TINY, prefix=()):
    """All outputs of at most `most` tokens, EOS included, whose text matches, best first."""
    found = []
    ids = [i for i, text in enumerate(texts.texts) if text is not None]
    for length in range(most):
        for tokens in itertools.product(ids, repeat=length):
            if re.fullmatch(pattern, texts.decode(tokens)):
                whole, score = [*prefix, *tokens, EOS], 0.0
                for i in range(len(prefix), len(whole)):
                    row = next_logits(model, source, whole[:i]).double()
                    score += float(row.log_softmax(0)[whole[i]])
                found.append((score, list(tokens)))
    return sorted(found, key=lambda one: -one[0])


LANGUAGES = {
    "a*": ('start: "a"*', "a*"),
    "abab": ('start: "abab" | "ab" "c"', "abab|abc"),
    "nested": ('start: "c" | "a" start "b"', "c|acb|aacbb|aaacbbb"),
    "class": ("start: /[ab]{2,3}c?/", "[ab]{2,3}c?"),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_beam_as_wide_as_the_language_finds_what_brute_force_finds(name):
    text, pattern = LANGUAGES[name]
    model = random_model(len(name), len(TEXTS))
    search = pybeam.fixed_beam(
        150, n_best=150, max_length=5, processors=[processors.grammar(text, TINY)]
    )
    results = pybeam.Decoder(model, search).decode([[3], [4, 5]])
    for i, result in enumerate(results):
        expected = brute_force(model, i, pattern, 5)
        assert [h.tokens for h in result.hypotheses] == [tokens for _, tokens in expected]
        for hypothesis, (score, _) in zip(result.hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
            assert hypothesis.ended


def test_a_prefix_is_no_part_of_the_text():
    text, pattern = LANGUAGES["class"]
    model = random_model(5, len(TEXTS))
    search = pybeam.fixed_beam(
        100, n_best=100, max_length=4, processors=[processors.grammar(text, TINY)]
    )
    request = pybeam.Request([3], prefix=[6, 2])
    [result] = pybeam.Decoder(model, search).decode([request])
    expected = brute_force(model, 0, pattern, 4, prefix=[6, 2])
    assert [h.tokens for h in result.hypotheses] == [[6, 2, *tokens] for _, tokens in expected]


def test_an_output_that_does_not_fit_is_none():
    """Nothing is cut: where three tokens are the least, two leave nothing."""
    model = random_model(2, len(TEXTS))
    rule = processors.grammar('start: "ccc"', TINY)
    for most, expected in ((3, []), (4, [[6, 6, 6]])):
        search = pybeam.fixed_beam(3, n_best=3, max_length=most, processors=[rule])
        [result] = pybeam.Decoder(model, search).decode([[3]])
        assert [h.tokens for h in result.hypotheses] == expected
        assert result.error is None
        assert expected or result.stop_reason == "empty_beam"


def string(**rules):
    return {"type": "string", **rules}


def an_object(required=None, **properties):
    required = list(properties) if required is None else required
    rules = {"properties": properties, "required": required, "additionalProperties": False}
    return {"type": "object", **rules}


SCHEMAS = {
    "string": string(maxLength=4),
    "any string": string(),
    "unicode": {"enum": ["日本", "é", '\n"\\', "😀"]},
    "pattern": string(pattern="^[a-c]{2}[0-9]é$"),
    "date": string(format="date"),
    "integer": {"type": "integer", "minimum": -12, "maximum": 105},
    "open integer": {"type": "integer"},
    "number": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99},
    "boolean": {"type": "boolean"},
    "null": {"type": ["null", "boolean"]},
    "enum": {"enum": ["a", 1, None, {"b": [True]}]},
    "const": {"const": {"a": "é", "b": 1.5}},
    "array": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    "nested arrays": {
        "type": "array",
        "maxItems": 2,
        "items": {"type": "array", "maxItems": 2, "items": {"enum": [1, [], "x"]}},
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, string(maxLength=2)],
        "items": False,
        "minItems": 2,
    },
    "object": an_object(
        name=string(maxLength=3), age={"type": "integer", "maximum": 99, "minimum": 0}
    ),
    "optional": an_object([], a={"type": "boolean"}, b={"type": "null"}),
    "nested": an_object(a=an_object(b=an_object(c={"type": "boolean"}))),
    "any of": {"anyOf": [{"type": "boolean"}, an_object(x={"const": 2})]},
    "reference": {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"anyOf": [{"const": 0}, an_object(left={"$ref": "#/$defs/tree"})]}},
    },
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "any object": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "null"}},
}


def json_model(seed, num_others=0):
    """A model that likes to close what it opens, with other ids behind those that have texts."""
    vocab_size = len(JSON_TEXTS.texts) + num_others
    model = random_model(seed, vocab_size, eos_bonus=3.0)
    closing = [i for i, text in enumerate(JSON_TEXTS.texts) if text and _bytes(text)[-1:] in b'"]}']

    def logits(*rows):
        found = model.fn(*rows).clone()
        found[:, closing] += 3.0
        return found

    return pybeam.models.FunctionModel(logits, vocab_size, BOS, EOS)


@pytest.mark.thinned(most=6)
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_output_is_valid(name):
    """With ids of the model beyond the tokenizer's, which say nothing."""
    rule = processors.json_schema(SCHEMAS[name], JSON_TEXTS)
    search = pybeam.fixed_beam(4, n_best=4, max_length=30, processors=[rule])
    model = json_model(1, 3)
    found = 0
    for result in pybeam.Decoder(model, search).decode([[i] for i in range(3, 7)]):
        assert result.error is None
        for hypothesis in result.hypotheses:
            text = JSON_TEXTS.decode(hypothesis.tokens)
            value = json.loads(text)
            jsonschema.validate(value, SCHEMAS[name], format_checker=jsonschema.FormatChecker())
            assert hypothesis.ended
            found += 1
    assert found


def test_json_has_the_form_in_which_python_writes_it():
    rule = processors.json_schema(an_object(a={"enum": [[1, 2]]}, b={"const": {}}), JSON_TEXTS)
    search = pybeam.greedy(max_length=40, processors=[rule])
    [result] = pybeam.Decoder(json_model(4), search).decode([[3]])
    text = JSON_TEXTS.decode(result.hypotheses[0].tokens)
    assert text == json.dumps({"a": [1, 2], "b": {}})


def test_a_schema_says_how_free_white_space_is():
    schema = {"const": [1, 2], "x-guidance": {"whitespace_flexible": True}}
    rule = processors.json_schema(schema, JSON_TEXTS)
    tokens = [JSON_TEXTS.texts.index(bytes([byte])) for byte in b"[1,\n2 ]"]
    [score] = pybeam.Decoder(json_model(4), pybeam.greedy(processors=[rule])).score([[3]], [tokens])
    assert math.isfinite(score.hypotheses[0].score)


def test_a_target_that_is_not_valid_has_no_probability():
    rule = processors.json_schema({"type": "integer"}, JSON_TEXTS)
    tokens = [JSON_TEXTS.texts.index(bytes([byte])) for byte in b"1x1"]
    decoder = pybeam.Decoder(json_model(4), pybeam.greedy(processors=[rule]))
    [score] = decoder.score([[3]], [tokens])
    log_probs = score.hypotheses[0].log_probs
    assert math.isfinite(log_probs[0])
    assert log_probs[1:] == [-math.inf] * 3


GUESSING = [
    pybeam.jacobi,
    pybeam.adaptive_jacobi,
    lambda **own: pybeam.gauss_seidel_jacobi(3, **own),
]


@pytest.mark.parametrize("guessing", GUESSING)
def test_guesses_are_checked_against_the_grammar(guessing):
    rule = processors.json_schema(SCHEMAS["object"], JSON_TEXTS)
    options = {"max_length": 40, "processors": [rule]}
    sources = [[3], [4, 5], [6]]
    expected = pybeam.Decoder(json_model(7), pybeam.greedy(**options)).decode(sources)
    found = pybeam.Decoder(json_model(7), guessing(**options)).decode(sources)
    assert [r.hypotheses for r in found] == [r.hypotheses for r in expected]
    assert any(result.hypotheses for result in found)


@pytest.mark.parametrize("guessing", GUESSING)
def test_guesses_are_checked_beside_other_processors_with_state(guessing):
    """Such a chain sees one guess of each source at a time."""
    rule = processors.grammar('start: ("a" | "b")* "c"', TINY)
    options = {"max_length": 12, "processors": [rule, processors.regex("[abc]*", TINY)]}
    model, sources = random_model(7, len(TEXTS)), [[3], [4, 5], [6]]
    expected = pybeam.Decoder(model, pybeam.greedy(**options)).decode(sources)
    decoder = pybeam.Decoder(model, guessing(**options))
    found = decoder.decode(sources)
    assert [r.hypotheses for r in found] == [r.hypotheses for r in expected]
    assert any(result.hypotheses for result in found)
    [tracker] = rule._trackers.values()
    # states of steps before are not kept: some output had 12 steps
    assert max(result.steps for result in found) == 12
    assert max(len(kept.states) for kept in tracker._kept.values()) <= 4


def test_requests_bring_grammars_of_their_own():
    """Rows with several grammars, and with none, share a step; alone they are the same to the bit."""
    neutral = processors.grammar(None, JSON_TEXTS)
    requests = [
        pybeam.Request([3], processors=[processors.json_schema(SCHEMAS["object"], JSON_TEXTS)]),
        pybeam.Request([4]),
        pybeam.Request([5], processors=[processors.grammar('start: "true"+', JSON_TEXTS)]),
        pybeam.Request([6], processors=[processors.json_schema({"enum": ["é", 1]}, JSON_TEXTS)]),
    ]
    search = pybeam.fixed_beam(3, n_best=3, max_length=30, processors=[neutral])
    schedule = pybeam.Streaming(2, row_budget=4, max_wait=2)
    together = pybeam.Decoder(json_model(2), search, schedule).decode(requests)
    alone = pybeam.Decoder(json_model(2), search)
    for i, (request, result) in enumerate(zip(requests, together, strict=True)):
        [expected] = alone.decode([dataclasses.replace(request, source_id=i)])
        assert result.hypotheses == expected.hypotheses
    texts = [JSON_TEXTS.decode(h.tokens) for h in together[2].hypotheses]
    assert texts and all(re.fullmatch("(true)+", text) for text in texts)
    assert {JSON_TEXTS.decode(h.tokens) for h in together[3].hypotheses} <= {'"é"', "1"}


def test_one_that_allows_everything_changes_nothing():
    rule = processors.grammar(None, TINY)
    assert rule.is_neutral
    model, sources = random_model(3, len(TEXTS)), [[3], [4]]
    plain = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=6)).decode(sources)
    search = pybeam.fixed_beam(3, max_length=6, processors=[rule])
    for result, expected in zip(pybeam.Decoder(model, search).decode(sources), plain, strict=True):
        assert [h.tokens for h in result.hypotheses] == [h.tokens for h in expected.hypotheses]


def test_the_first_token_has_the_text_that_it_opens_with():
    """Spaces at the beginning are dropped, as SentencePiece drops them."""
    tokens = (None, None, b" a", b"b", b" ", b"a")
    vocabulary = Vocabulary(tokens, (None, None, b"a", b"b", b"", b"a"), skips=True)
    rule = processors.grammar('start: "a b"', vocabulary)
    model = random_model(3, len(tokens))
    search = pybeam.fixed_beam(50, n_best=50, max_length=5, processors=[rule])
    [result] = pybeam.Decoder(model, search).decode([[3]])
    found = {tuple(h.tokens) for h in result.hypotheses}
    expected = {
        ids
        for num in range(5)
        for ids in itertools.product(range(2, 6), repeat=num)
        if vocabulary.text(ids) == b"a b"
    }
    assert found == expected
    assert (4, 2, 4, 3) in found


def test_a_smaller_model_goes_without_the_tokens_that_it_lacks():
    rule = processors.grammar('start: "ab" | "c"', TINY)
    search = pybeam.fixed_beam(9, n_best=9, max_length=4, processors=[rule])
    [result] = pybeam.Decoder(random_model(1, 6), search).decode([[3]])
    assert sorted(h.tokens for h in result.hypotheses) == [[2, 3], [4]]


def test_what_is_wrong_is_refused_at_the_door():
    cases = [
        (lambda: processors.grammar("start: missing", TINY), ValueError, 'unknown name: "missing"'),
        (lambda: processors.grammar('start: "a', TINY), ValueError, "lexer error"),
        (lambda: processors.grammar(3, TINY), TypeError, "`text` must be a grammar"),
        (lambda: processors.json_schema({"type": "foo"}, TINY), ValueError, "Invalid type: foo"),
        (
            lambda: processors.json_schema({"not": {}}, TINY),
            ValueError,
            'Unimplemented keys: ."not"',
        ),
        (lambda: processors.json_schema("{", TINY), ValueError, "`schema` must be JSON"),
        (lambda: processors.json_schema(False, TINY), TypeError, "`schema` must be a JSON schema"),
        (lambda: processors.json_schema({"x-guidance": 1}, TINY), TypeError, "`x-guidance`"),
        (lambda: processors.grammar('start: "a"', TINY, stage="end"), ValueError, "`stage`"),
    ]
    for make, kind, message in cases:
        with pytest.raises(kind, match=message):
            make()


def test_a_grammar_that_becomes_too_complex_fails_its_request_alone(monkeypatch):
    """The lexer meets states that nobody can have counted before."""
    monkeypatch.setattr("pybeam.automata.grammars.MAX_LEXER_STATES", 200)
    text = "start: /(.*[ab].{30})*c/"
    requests = [
        pybeam.Request([3], processors=[processors.grammar(text, TINY)]),
        pybeam.Request([4], processors=[processors.grammar('start: "a"*', TINY)]),
    ]
    search = pybeam.fixed_beam(8, max_length=200, processors=[processors.grammar(None, TINY)])
    model = random_model(3, len(TEXTS), eos_bonus=-20.0)
    found = pybeam.Decoder(model, search).decode(requests, on_error="return")
    assert "too complex" in str(found[0].error)
    assert found[1].error is None and found[1].hypotheses


@pytest.mark.parametrize("limit", [grammars.limited, grammars._limited_on_device])
@pytest.mark.parametrize("vocab_size", [1, 8, 45, 64])
def test_logits_without_a_bit_are_minus_infinity(limit, vocab_size):
    """By NumPy on a CPU, by torch elsewhere; a NaN stays, so that the engine finds it."""
    draw = np.random.default_rng(vocab_size)
    logits = torch.from_numpy(draw.normal(size=(19, vocab_size)).astype(np.float32))
    logits[3, 0] = torch.nan
    masks = draw.integers(0, 256, (19, -(-vocab_size // 8)), dtype=np.uint8)
    bits = np.unpackbits(masks, axis=1, bitorder="little")[:, :vocab_size].astype(bool)
    expected = logits.masked_fill(torch.from_numpy(~bits) & ~logits.isnan(), -math.inf)
    found = limit(logits, masks)
    assert found is logits
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_it_pickles():
    rule = processors.json_schema({"type": "integer"}, JSON_TEXTS)
    again = pickle.loads(pickle.dumps(rule))
    assert again.text == rule.text and again.stage == rule.stage
    assert again.tokenizer.texts == rule.tokenizer.texts


def test_states_are_kept_for_the_last_rows_alone():
    rule = processors.json_schema(SCHEMAS["any string"], JSON_TEXTS)
    decoder = pybeam.Decoder(
        json_model(2), pybeam.fixed_beam(3, max_length=40, processors=[rule]), pybeam.Batch(2)
    )
    decoder.decode([[3], [4], [5], [6], [7]])
    [tracker] = rule._trackers.values()
    assert 0 < sum(len(kept.states) for kept in tracker._kept.values()) <= 2 * 2 * 3
