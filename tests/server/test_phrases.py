"""Requests say which phrases their outputs must contain."""

from __future__ import annotations

import pickle
import threading
from functools import cached_property

import pytest

import pybeam
from pybeam.automata.automaton import Automaton
from pybeam.processors.phrases import MustContain
from pybeam.server.models import ServedModel
from pybeam.server.phrases import with_phrases
from pybeam.text.tokenizer import Tokenizers
from support import server_app
from support.paths import MODEL

TEXT = "Y dijo Dios: Sea la luz; y fué la luz."
PHRASES = ["there was", "come to pass"]


@pytest.fixture(scope="module")
def model():
    decoder = server_app.decoder()
    search = with_phrases(pybeam.fixed_beam(10, scoring=pybeam.scoring.power(1.0)))
    decoder = pybeam.Decoder(decoder.model, search, log_probs=True)
    return ServedModel("es-en", str(MODEL), decoder, Tokenizers(MODEL))


def sent(model, *bodies: dict) -> list:
    async def ask(http):
        return [await http.post("/v1/translations", json=body) for body in bodies]

    return server_app.run(ask, model=model)


def test_outputs_contain_the_phrases_of_a_request(model):
    # letters are tokens of their own
    long = [letter * 90 for letter in "abcdefgh"]
    plain, asked, wrong, many, large = sent(
        model,
        {"text": TEXT},
        {"text": TEXT, "must_contain": PHRASES},
        {"text": TEXT, "must_contain": [" "]},
        {"text": TEXT, "must_contain": ["a"] * 9},
        {"text": TEXT, "must_contain": long},
    )
    texts = [answer.json()["translations"][0]["text"] for answer in (plain, asked)]
    assert not any(phrase in texts[0] for phrase in PHRASES)
    assert all(phrase in texts[1] for phrase in PHRASES)
    assert wrong.status_code == 400 and "must not hold an empty one" in wrong.text
    assert large.status_code == 400 and "ask for fewer phrases" in large.text
    assert many.status_code in (400, 422) and "at most 8" in many.text


def test_an_engine_finds_nothing_that_takes_long(model, monkeypatch):
    """Nor does the loop of events. Steps of others would wait."""
    found, steps = list[str](), Automaton._steps.func

    def noted(self):
        found.append(threading.current_thread().name)
        return steps(self)

    kept = cached_property(noted)
    kept.__set_name__(Automaton, "_steps")
    monkeypatch.setattr(Automaton, "_steps", kept)
    [answer] = sent(model, {"text": TEXT, "must_contain": ["the night"]})
    assert answer.status_code == 200
    [name] = found
    assert name.startswith("asyncio_")


def test_a_processor_in_a_pickle_has_what_an_engine_asks():
    made = pybeam.processors.must_contain([[3, 4]])
    read = pickle.loads(pickle.dumps(made))
    assert "needed" in vars(read.automaton)


def test_a_server_that_takes_none_says_so():
    [answer] = sent(server_app.served(), {"text": TEXT, "must_contain": PHRASES})
    assert answer.status_code == 400
    assert "pybeam serve --phrases" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "search",
    [
        pybeam.sample(3, temperature=1.0),
        pybeam.diverse(pybeam.fixed_beam(2), 2, 0.5),
        pybeam.greedy(),
    ],
)
def test_phrases_stand_before_what_must_be_last(search):
    made = with_phrases(search)
    [place] = [i for i, one in enumerate(made.processors) if isinstance(one, MustContain)]
    assert [*made.processors[:place], *made.processors[place + 1 :]] == [*search.processors]
