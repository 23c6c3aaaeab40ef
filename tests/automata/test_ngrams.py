"""Language models: every form says the same, and automata give the scores of back-off exactly."""

from __future__ import annotations

import gzip
import math
import random
from pathlib import Path

import numpy as np
import pytest

from pybeam.automata.arpa import read_arpa
from pybeam.automata.kenlm import _places_of, is_kenlm, read_kenlm
from pybeam.automata.ngrams import NGrams, Order
from support.ngrams import ARPA, BINARY, backed_off

LN10 = math.log(10)
WORDS = ["the", "old", "king", "reads", "é", "nobody"]
# the scores of kenlm 0.3.0 for ARPA and for the "probing" binary on 2026-11-27; it takes a minute to compile
KENLM = {
    "": -1.2999999523162842,
    "the king": -1.5499999523162842,
    "the old king reads the é": -3.8000001907348633,
    "é é nobody": -5.900000095367432,
    "nobody nobody the": -4.700000286102295,
    "old é é é reads": -7.400000095367432,
    "king the the old old king": -6.775000095367432,
    "reads the é é the old king": -6.8000006675720215,
}


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "own.arpa"
    path.write_text(ARPA, "utf-8")
    return path


def sentences() -> list[list[str]]:
    draw = random.Random(0)
    found = [draw.choices(WORDS, k=draw.randrange(8)) for _ in range(200)]
    return [*found, "reads the é é the old king".split(), []]


def score(model: NGrams, sentence: list[str], weight: float = 1.0) -> float:
    """The weight of a sentence in the automaton whose tokens are the model's words."""
    automaton = model.automaton(np.arange(len(model.words), dtype=np.int32), weight)
    # an id beyond all words is a word that the model lacks
    return automaton.score([model.numbers.get(word, len(model.words)) for word in sentence])


def test_weights_are_those_of_back_off(arpa):
    model = read_arpa(arpa)
    assert repr(model) == "NGrams(8 words, 8 + 9 + 4 n-grams)"
    for sentence in sentences():
        expected = 0.3 * LN10 * backed_off(model, sentence)
        assert score(model, sentence, 0.3) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("sentence", KENLM)
def test_kenlm_says_the_same(arpa, sentence):
    found = score(read_arpa(arpa), sentence.split())
    assert found == pytest.approx(LN10 * KENLM[sentence], abs=1e-5)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", BINARY)
def test_binary_files_hold_the_same(arpa, tmp_path, kind):
    path = tmp_path / "own.binary"
    path.write_bytes(BINARY[kind])
    assert is_kenlm(path)
    assert not is_kenlm(arpa)
    model = read_kenlm(path)
    assert sorted(model.words) == sorted(read_arpa(arpa).words)
    for sentence in sentences():
        assert score(model, sentence) == pytest.approx(score(read_arpa(arpa), sentence), rel=1e-6)


def test_tokens_may_share_a_word_and_unknown_ones_are_one_word(arpa):
    model = read_arpa(arpa)
    the, king = model.numbers["the"], model.numbers["king"]
    automaton = model.automaton(np.array([the, -1, the, king, -1], dtype=np.int32))
    assert automaton.score([0, 3]) == automaton.score([2, 3])
    assert automaton.score([1, 3]) == automaton.score([4, 3]) == automaton.score([9, 3])
    unknown = LN10 * backed_off(model, ["nobody", "king"])
    assert automaton.score([1, 3]) == pytest.approx(unknown, rel=1e-6)


def test_unknown_words_have_longer_ngrams_where_the_model_has_them():
    words = ["<unk>", "<s>", "</s>", "a"]
    numbers = np.array([-1.0, -99.0, -0.5, -0.25], dtype=np.float32)
    unigrams = Order(np.arange(4, dtype=np.int32)[:, None], numbers, 0 * numbers)
    pair = Order(
        np.array([[3, 0]], np.int32), np.array([-0.125], np.float32), np.zeros(1, np.float32)
    )
    model = NGrams(words, [unigrams, pair])
    assert model.has_unknown_in_ngrams
    automaton = model.automaton(np.array([3, -1, -1, -2], dtype=np.int32))
    assert automaton.tokens.tolist() == [0, 1, 2]
    for token in (1, 2):
        assert automaton.score([0, token]) == pytest.approx(LN10 * (-0.25 - 0.125 - 0.5), rel=1e-6)
    assert automaton.score([1, 1]) == pytest.approx(LN10 * (-1.0 - 1.0 - 0.5), rel=1e-6)


def test_a_packed_file_is_read(arpa, tmp_path):
    path = tmp_path / "own.arpa.gz"
    path.write_bytes(gzip.compress(arpa.read_bytes()))
    assert read_arpa(path).words == read_arpa(arpa).words
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="no sound ARPA file"):
        read_arpa(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "", "must have a line"),
        ("ngram 1=8", "ngram 1=9", "line 16, must have 9 1-grams, as announced, but has 8"),
        ("ngram 2=9", "ngram 2=x", "line 3, must have a line such as"),
        ("ngram 3=4", "ngram 4=4", "must announce orders"),
        ("\\2-grams:", "\\3-grams:", "must have \\\\2-grams:"),
        ("-0.6\tthe king", "-0.6\tthe queen", "among the 1-grams, but has 'queen'"),
        ("-0.6\tthe king", "x\tthe king", "numbers at both ends"),
        ("-0.6\tthe king", "nan\tthe king", "finite numbers"),
        ("-0.6\tthe king\t-0.15", "-0.6\tking", "must have a number, 2 words"),
        ("-0.35\treads the é", "-0.35\té the é", "lacks that of 'é the é'"),
        ("-0.35\treads the é", "-0.45\tthe king </s>", "has one twice"),
        ("\\end\\", "", "the file ends"),
    ],
)
def test_errors_name_the_line(tmp_path, old, new, message):
    path = tmp_path / "own.arpa"
    path.write_text(ARPA.replace(old, new), "utf-8")
    with pytest.raises(ValueError, match=message):
        read_arpa(path).automaton(np.arange(8, dtype=np.int32))


@pytest.mark.parametrize("kind", BINARY)
def test_unsound_binary_files_are_refused(tmp_path, kind):
    path = tmp_path / "own.binary"
    content = BINARY[kind]
    quantised = bytearray(content)
    quantised[96] = 3
    cases = {
        b"": "is empty",
        content[:90]: "ends within its header",
        content[:150]: "bytes or more by its header",
        content[:-10]: "must have 8 words",
        content.replace(b"version 5", b"version 4"): "must be of KenLM's binary version 5",
        bytes(quantised): "a quantised trie",
    }
    for changed, message in cases.items():
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=message):
            read_kenlm(path)


def test_an_unsound_trie_is_refused_before_its_numbers_overflow(tmp_path):
    content = bytearray(BINARY["trie"])
    # the first two-word n-gram of every word: the differences of these numbers wrap around to positive ones
    odd = [0, 2**62, 2**63 - 1, 2**64 - 2**62, 2**64 - 3, 4, 5, 6, 10]
    start = content.index(np.float32(-1.2).tobytes())
    for i, number in enumerate(odd):
        content[start + 16 * i + 8 : start + 16 * i + 16] = number.to_bytes(8, "little")
    path = tmp_path / "own.binary"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no sound trie"):
        read_kenlm(path)


def test_a_table_without_an_empty_place_is_refused():
    full = np.arange(1, 2001, dtype=np.uint64)
    with pytest.raises(ValueError, match="an empty place"):
        _places_of(full, np.array([5000], dtype=np.uint64), Path("own.binary"))


def test_words_may_hold_spaces_that_are_no_ascii(tmp_path):
    path = tmp_path / "own.arpa"
    text = ARPA.replace("\té\t", "\t10\u00a0000\t").replace("é", "10\u00a0000")
    path.write_text(text, "utf-8")
    assert "10\u00a0000" in read_arpa(path).words
    path.write_text(ARPA.replace("-0.7", "-0.7" + "0" * 70_000), "utf-8")
    with pytest.raises(ValueError, match="fewer than 65,536 characters"):
        read_arpa(path)
    path.write_text(ARPA.replace("-0.7", "1e400"), "utf-8")
    with pytest.raises(ValueError, match="finite numbers"):
        read_arpa(path)


@pytest.mark.parametrize("kind", BINARY)
def test_a_changed_byte_never_does_worse_than_a_message(tmp_path, kind):
    path = tmp_path / "own.binary"
    draw = random.Random(1)
    for _ in range(150):
        changed = bytearray(BINARY[kind])
        changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            read_kenlm(path).automaton(np.arange(8, dtype=np.int32))
        except ValueError as error:
            assert str(error)
