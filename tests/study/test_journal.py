"""A journal gives a result only to what gave it: other weights, code and globals decode again."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

import pybeam
from pybeam.study.identity import digest, digest_and_unknown
from pybeam.study.journal import Journal
from support.paths import MODEL
from support.search_models import random_model

GREEDY = {"greedy": pybeam.greedy(max_length=4)}
# read by functions below
FACTOR, TABLE = 1.0, {"factor": [1.0]}


def outputs(journal, model, searches=GREEDY, sources=None) -> list:
    sources = [[1]] * 4 if sources is None else sources
    path = None if journal is None else str(journal)
    found = pybeam.compare(searches, model, sources, latency=0, journal=path, progress=False)
    return [one.output for one in next(iter(found.found.values()))]


def test_other_weights_decode_again_where_the_first_source_fails(tmp_path):
    sources = [pybeam.Request([1], prefix=[99]), [1], [1], [1]]
    first, second = random_model(7, vocab_size=7), random_model(8, vocab_size=7)
    own = outputs(None, second, sources=sources)
    assert outputs(tmp_path / "journal", first, sources=sources) != own
    assert outputs(tmp_path / "journal", second, sources=sources) == own


class Plain(pybeam.processors.Processor):
    """A processor whose numbers are neither fields nor in its text."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, logits, rows, data):
        logits[:, self.token] = -1e9
        return logits


@pytest.mark.slow
def test_objects_are_told_apart_by_their_attributes(tmp_path):
    model = random_model(7, vocab_size=7)
    found = []
    for token in range(7):
        search = {"greedy": pybeam.greedy(max_length=4, processors=[Plain(token)])}
        found.append(outputs(tmp_path / "journal", model, search))
        assert found[-1] == outputs(None, model, search)
    assert any(found[0] != other for other in found)
    assert digest(Plain(1)) == digest(Plain(1)) != digest(Plain(2))


def scaled(logits, rows):
    return helper(logits)


def helper(logits):
    return [one * FACTOR * TABLE["factor"][0] for one in logits]


def test_globals_of_functions_count_and_of_those_that_they_call(monkeypatch):
    before = digest(scaled)
    assert before == digest(scaled)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", 2.0)
        assert digest(scaled) != before
    with monkeypatch.context() as patch:
        patch.setitem(TABLE, "factor", [2.0])
        assert digest(scaled) != before
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "helper", lambda logits: logits)
        assert digest(scaled) != before
    assert digest(scaled) == before


def looped(logits, rows):
    return looped if rows else logits


def keyed(logits, rows, *, weight=1.0):
    return logits * weight


def test_code_of_classes_and_defaults_of_names_count():
    def made(weight):
        class Own:
            __slots__ = ("held",)

            def __call__(self, logits, rows):
                return logits * weight

        own = Own()
        own.held = weight
        return own

    assert digest(made(1.0)) == digest(made(1.0)) != digest(made(2.0))
    assert digest(looped) == digest(looped)
    before = digest(keyed)
    keyed.__kwdefaults__["weight"] = 2.0
    assert digest(keyed) != before
    keyed.__kwdefaults__["weight"] = 1.0


TOKENIZER = None


def shortened(logits, rows):
    """A function that names a tokenizer."""
    logits[:, TOKENIZER.encode("Jesús").tokens[:1]] -= 100.0
    return logits


def words(num: int):
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(num)}, "w0"))


def test_a_function_that_names_a_tokenizer_is_told_by_its_vocabulary(monkeypatch):
    found = []
    for make in [partial(words, 150), partial(words, 151), partial(pybeam.load_tokenizer, MODEL)]:
        for tokenizer in (make(), make()):
            monkeypatch.setitem(globals(), "TOKENIZER", tokenizer)
            found.append(digest_and_unknown(shortened))
    assert not any(unknown for _, unknown in found)
    assert found[::2] == found[1::2]
    assert len({text for text, _ in found}) == 3


def test_a_journal_says_what_it_cannot_keep(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", {"factor": (one for one in ())})
    search = {"greedy": pybeam.greedy(max_length=4, processors=[unread])}
    with pytest.warns(UserWarning, match="outputs of 'greedy' to another call: .* generator"):
        outputs(tmp_path / "journal", random_model(7, vocab_size=7), search)


def unread(logits, rows):
    return logits if TABLE else None


@pytest.mark.parametrize("value", [object(), (one for one in ()), iter([1])])
def test_what_cannot_be_told_apart_is_never_the_same(value):
    assert digest(value) != digest(value)


def test_what_is_no_state_is_left_out():
    assert digest(threading.Lock()) == digest(threading.Lock())
    assert digest({"a", "b"}, torch.float32) == digest({"b", "a"}, torch.float32)


def test_one_comparison_at_a_time_writes_a_journal(tmp_path):
    pytest.importorskip("fcntl")
    first = Journal(tmp_path / "journal")
    with pytest.raises(ValueError, match="no other comparison writes"):
        Journal(tmp_path / "journal")
    first.close()
    Journal(tmp_path / "journal").close()
