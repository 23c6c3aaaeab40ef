"""Language models beside the model: scores are those of back-off, token by token and word by word."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle

import numpy as np
import pytest
import torch

import pybeam
from pybeam.automata.arpa import read_arpa
from pybeam.automata.ngrams import NGrams
from pybeam.automata.vocabulary import Vocabulary
from pybeam.processors import language_model, suppress_tokens
from support.laws import decoded, essence
from support.ngrams import ARPA, BINARY, backed_off
from support.search_models import EOS, next_logits, random_model

LN10 = math.log(10)
LENGTH = 3
# a word in one token and in two, two words in one, a space alone, and a space at the end
TEXTS = [None, None, " the", " ki", "ng", "reads the", " ", "é ", "old\t\nking old"]
TOKENS = range(2, len(TEXTS))
WIDE = 600


class Texts:
    def vocab(self):
        return TEXTS


class Names:
    def __init__(self, *more: str | None) -> None:
        self._names = [None, None, "the", "old", "king", "é", *more]

    def vocab(self):
        return self._names


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "own.arpa"
    path.write_text(ARPA, "utf-8")
    return path


def words_so_far(output, ended: bool) -> list[str]:
    """The whole words of an output; the last one is whole if a space or EOS follows."""
    text = Vocabulary.of(Texts()).text(output).decode()
    words = text.split()
    return words if ended or not text or text[-1].isspace() else words[:-1]


def weight_of(model, words, ended: bool) -> float:
    """The natural logarithm of the words' probability, with the end's if they have ended."""
    score = backed_off(model, words)
    if not ended:
        numbers = [model.numbers.get(word, len(model.words)) for word in words]
        automaton = model.automaton(np.arange(len(model.words), dtype=np.int32))
        score -= float(automaton.final[automaton.walk(numbers).state]) / LN10
    return LN10 * score


def all_outputs():
    """Every output that ends, or is cut, within so many tokens."""
    for size in range(LENGTH + 1):
        for output in itertools.product(TOKENS, repeat=size):
            yield output, size < LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.4, -1.5])
def test_a_wide_beam_ranks_outputs_by_both_models(path, backend, weight):
    model, words = random_model(3, len(TEXTS)), read_arpa(path)
    # the start token has no text
    chain = [suppress_tokens([0], stage="log_probs")]
    chain.append(language_model(path, Texts(), weight=weight, unit="word"))
    algorithm = pybeam.variable_beam(WIDE, n_best=40, max_length=LENGTH, processors=chain)
    results = decoded(model, algorithm, pybeam.Fifo(2), backend, [[1], [1, 1]])
    for source, result in enumerate(results):
        expected = {}
        for output, ended in all_outputs():
            score = weight * weight_of(words, words_so_far(output, ended), ended)
            for n, token in enumerate([*output, EOS] if ended else output):
                score += float(next_logits(model, source, [*output[:n]]).log_softmax(0)[token])
            expected[output] = score
        best = sorted(expected.values(), reverse=True)[:40]
        assert [h.final_score for h in result.hypotheses] == pytest.approx(best, abs=1e-3)
        for h in result.hypotheses:
            assert h.final_score == pytest.approx(expected[tuple(h.tokens)], abs=1e-3)


def test_tokens_are_named_or_numbered(path, tmp_path, backend):
    model, names = random_model(4, 6), Names().vocab()
    by_number = tmp_path / "numbers.arpa"
    text = ARPA
    for token, name in enumerate(names):
        if name:
            text = text.replace(name, str(token))
    by_number.write_text(text, "utf-8")
    binary = tmp_path / "own.binary"
    binary.write_bytes(BINARY["trie"])
    found = []
    for given in (
        (path, Names()),
        (by_number, None),
        (binary, Names()),
        (read_arpa(path), Names()),
    ):
        chain = [language_model(*given, weight=0.5)]
        algorithm = pybeam.fixed_beam(4, n_best=4, max_length=6, processors=chain)
        [result] = decoded(model, algorithm, pybeam.Fifo(1), backend, [[1]])
        found.append(essence([result]))
        for h in result.hypotheses:
            words = [names[token] for token in h.tokens]
            own = [*h.tokens, EOS][: len(words) + h.ended]
            score = 0.5 * weight_of(read_arpa(path), words, h.ended)
            for n, token in enumerate(own):
                score += float(next_logits(model, 0, h.tokens[:n]).log_softmax(0)[token])
            assert h.score == pytest.approx(score, abs=1e-3)
    assert found == [found[0]] * 4


@pytest.mark.thinned(most=1)
def test_alone_as_in_the_batch(path, backend):
    model = random_model(5, len(TEXTS))
    chain = [language_model(path, Texts(), unit="word")]
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=7, processors=chain)
    requests = [
        pybeam.Request([1] * n, prefix=prefix) for n, prefix in ((1, ()), (2, (4,)), (3, (2, 3)))
    ]
    together = decoded(model, algorithm, pybeam.Streaming(3), backend, requests)
    one_by_one = decoded(model, algorithm, pybeam.Batch(1), backend, requests)
    assert essence(together) == essence(one_by_one)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("unit", ["word", "token"])
def test_requests_bring_models_of_their_own(path, backend, unit):
    """Other words, other weights and other texts of tokens; alone they are the same to the bit."""
    model, read = random_model(5, len(TEXTS)), read_arpa(path)
    texts = {"word": Texts(), "token": Names()}[unit]
    odd = NGrams([*read.words[:-1], "other"], read.orders)
    rules = [
        language_model(one, texts, weight=weight, unit=unit)
        for one, weight in ((read, 0.3), (odd, 0.3), (read, -2.0), (read, 0.3))
    ]
    requests = [
        pybeam.Request([1] * (1 + i), source_id=i, prefix=[4] * (i % 2), processors=[rule])
        for i, rule in enumerate(rules[1:])
    ]
    requests.append(pybeam.Request([1, 1], source_id=9))
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=7, processors=rules[:1])
    together = decoded(model, algorithm, pybeam.Streaming(3), backend, requests)
    for request, rule, result in zip(requests, [*rules[1:], rules[0]], together, strict=True):
        own = pybeam.fixed_beam(3, n_best=3, max_length=7, processors=[rule])
        [alone] = decoded(
            model, own, pybeam.Batch(1), backend, [dataclasses.replace(request, processors=None)]
        )
        assert result.hypotheses == alone.hypotheses


def test_a_model_of_words_pickles(path):
    """Another process has numbers of its own."""
    rule = language_model(path, Texts(), unit="word")
    again = pickle.loads(pickle.dumps(rule))
    assert again.endings.number != rule.endings.number
    pairs = zip(again.endings.tensors, rule.endings.tensors, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert again.parameters()[0] == again.endings.number


def test_a_function_is_weighed(backend):
    model = random_model(6, 7)
    torch.manual_seed(0)
    other = torch.randn(7).log_softmax(0)
    chain = [language_model(lambda rows: other.expand(rows.token.numel(), -1), weight=0.7)]
    algorithm = pybeam.greedy(max_length=5, processors=chain)
    [result] = decoded(model, algorithm, pybeam.Fifo(1), backend, [[1]])
    tokens: list[int] = []
    while len(tokens) < 5:
        token = int((next_logits(model, 0, tokens).log_softmax(0) + 0.7 * other).argmax())
        if token == EOS:
            break
        tokens.append(token)
    assert result.hypotheses[0].tokens == tokens


def test_errors(path):
    with pytest.raises(ValueError, match="is it a model of words"):
        language_model(path, Texts())
    with pytest.raises(ValueError, match="`unit` must be"):
        language_model(path, Texts(), unit="letter")
    with pytest.raises(TypeError, match="`model` must be a path"):
        language_model(3)
    with pytest.raises(FileNotFoundError):
        language_model(path.with_name("none.arpa"))
    with pytest.raises(pybeam.DecodeError, match=r"must return log-probabilities \[R, V\]"):
        chain = [language_model(lambda rows: torch.zeros(1))]
        pybeam.Decoder(random_model(1), pybeam.greedy(max_length=2, processors=chain)).decode([[1]])


def test_words_may_have_bytes_that_are_no_text(path):
    """They are words of their own, and take no unknown word's place."""
    model = read_arpa(path)
    odd = NGrams([*model.words[:-1], "\udcff"], model.orders)
    chain = [language_model(odd, Texts(), weight=1.0, unit="word")]
    search = pybeam.fixed_beam(2, n_best=2, max_length=4, processors=chain)
    [result] = pybeam.Decoder(random_model(3, len(TEXTS)), search).decode([[1]])
    assert result.hypotheses
    [*_, unknown] = chain[0].endings.tensors
    assert int(unknown) == len(odd.words)


def test_tokens_that_no_word_names_are_unknown_and_eos_is_none(tmp_path):
    """Where n-grams hold <unk>, so that behind "king" an unknown token costs less than by back-off."""
    path, numbered = tmp_path / "unknown.arpa", tmp_path / "numbered.arpa"
    text = ARPA.replace("ngram 2=9", "ngram 2=10")
    text = text.replace("-0.3\t<s> the", "-0.4\tking <unk>\n-0.3\t<s> the")
    path.write_text(text, "utf-8")
    names = Names("nobody", None, "nothing")
    rule = language_model(path, names, weight=1.0)
    king = rule.automaton.walk([4]).state
    weights = [rule.automaton.step(king, token).weight / LN10 for token in (6, 8, 7)]
    # a token without a text backs off, as one beyond the vocabulary does
    assert weights == pytest.approx([-0.4, -0.4, -0.125 - 1.2], rel=1e-5)
    assert EOS not in rule.automaton.tokens
    rule.check(random_model(1, len(names.vocab())))
    numbered.write_text(text.replace("king", "4"), "utf-8")
    with pytest.raises(ValueError, match="which tokens are <unk>"):
        language_model(numbered)
