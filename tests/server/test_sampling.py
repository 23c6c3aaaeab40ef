"""A server that samples: what bodies may ask of it, and what one that searches answers."""

from __future__ import annotations

import pytest

import pybeam
from pybeam import processors
from pybeam.server.models import ServedModel
from pybeam.text.tokenizer import Tokenizers
from support import server_app
from support.paths import MODEL

LINES = ["Y dijo Dios: Sea la luz; y fué la luz.", "Jesús lloró."]
SEARCH = pybeam.sample(top_k=40, max_length=24)


@pytest.fixture(scope="module")
def model() -> ServedModel:
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), SEARCH, log_probs=True)
    return ServedModel("es-en", str(MODEL), decoder, Tokenizers(MODEL))


def asked(model: ServedModel, *bodies: dict, path: str = "completions") -> list[dict]:
    """The answers of a server to these bodies."""

    async def ask(http):
        return [(await http.post(f"/v1/{path}", json=body)).json() for body in bodies]

    return server_app.run(ask, model=model)


def texts(answer: dict) -> list[str]:
    assert [one["index"] for one in answer["choices"]] == list(range(len(answer["choices"])))
    return [one["text"] for one in answer["choices"]]


def expected(model: ServedModel, line: str, width: int = 1, **options) -> list[str]:
    requests = [
        pybeam.Request(
            model.plain_tokenizer.encode(line),
            width=width,
            n_best=width,
            processors=[processors.sample(options.get("temperature", 1.0), **own)],
        )
        for own in options["own"]
    ]
    results = model.decoder.decode(requests)
    return [model.text(one.tokens) for result in results for one in result.hypotheses]


def test_completions_are_the_draws_of_their_seed(model):
    body = {"prompt": LINES, "n": 3, "seed": 5, "temperature": 0.7, "top_p": 0.9}
    [found] = asked(model, body)
    own = [dict(seed=5, top_k=40, top_p=0.9, draw=draw) for draw in range(3)]
    assert texts(found) == [
        text for line in LINES for text in expected(model, line, temperature=0.7, own=own)
    ]
    [alone] = asked(model, body | {"n": 1})
    assert found["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"] > 0


def test_without_a_seed_each_request_has_a_new_one(model):
    bodies = [{"prompt": LINES[0]}] * 6
    assert len({texts(found)[0] for found in asked(model, *bodies)}) > 1


def test_temperature_zero_searches_with_a_beam(model):
    [found] = asked(model, {"prompt": LINES[0], "temperature": 0, "n": 4})
    assert texts(found) == expected(model, LINES[0], 4, temperature=0.0, own=[{}])


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_server_that_draws_several_outputs_leaves_no_choice_to_n(model, temperature):
    """The best of its draws would be no draw."""
    several = pybeam.Decoder(model.decoder.model, pybeam.sample(3, max_length=24), log_probs=True)
    served = ServedModel("es-en", str(MODEL), several, Tokenizers(MODEL))
    [found] = asked(served, {"prompt": LINES[1], "n": 2, "temperature": temperature})
    assert found["error"]["param"] == "n" and "this server draws 3" in found["error"]["message"]


@pytest.mark.parametrize("path", ["decode", "translations"])
def test_decode_and_translations(model, path):
    name = "source" if path == "decode" else "text"
    body = {name: LINES[0], "seed": 2, "temperature": 0.8, "min_p": 0.05, "top_k": 9}
    named = {"name": "sample", "temperature": 0.8, "seed": 2, "min_p": 0.05, "top_k": 9}
    found, other = asked(model, body, {name: LINES[0], "processors": [named]}, path=path)
    one, another = (
        answer["hypotheses" if path == "decode" else "translations"][0]["text"]
        for answer in (found, other)
    )
    own = [dict(seed=2, min_p=0.05, top_k=9)]
    assert [one] == [another] == expected(model, LINES[0], temperature=0.8, own=own)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"best_of": 33}, "best_of"),
        ({"n": 33}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 1.0}, "length_penalty"),
        ({"top_p": 1.5}, "top_p"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_what_a_server_that_samples_refuses(model, body, field):
    [found] = asked(model, {"prompt": "a", **body})
    assert found["error"]["param"] == field


@pytest.mark.parametrize(
    ("body", "field"),
    [({"temperature": 0.5}, "temperature"), ({"top_p": 0.9}, "top_p"), ({"top_k": 5}, "top_k")],
)
def test_what_a_server_that_searches_refuses(body, field):
    found, neutral = asked(
        server_app.served(),
        {"prompt": LINES[1], **body},
        {"prompt": LINES[1], "temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "seed": 3},
    )
    assert found["error"]["param"] == field
    assert "--algorithm sample" in found["error"]["message"]
    assert texts(neutral)
