"""Requests hold outputs to JSON, patterns, choices and grammars, in OpenAI's words and in vLLM's."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest
from starlette.requests import HTTPConnection

import pybeam
from pybeam.automata.grammars import Grammar
from pybeam.automata.vocabulary import Vocabulary
from pybeam.processors.grammars import GrammarConstraint
from pybeam.server import grammars
from pybeam.server.errors import APIError
from pybeam.server.grammars import Asked, asked, with_grammars
from pybeam.server.models import ServedModel
from pybeam.serving import Service
from pybeam.text.tokenizer import Tokenizers
from support import server_app
from support.text_folders import save_chat

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

CHAT = [{"role": "user", "content": "ac"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "d"]}},
    "required": ["a"],
    "additionalProperties": False,
}
BODY = {"prompt": "ac", "guided_choice": ["bb"]}
# letters of the tiny model that stand for JSON's own characters
SIGNS = dict(zip("qwxyzAB", '{}[]":,', strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat")
    save_chat(path)
    file = path / "tokenizer.json"
    found = json.loads(file.read_text())
    vocabulary = found["model"]["vocab"]
    found["model"]["vocab"] = {SIGNS.get(name, name): i for name, i in vocabulary.items()}
    file.write_text(json.dumps(found))
    tokenizers = Tokenizers(path)
    search = with_grammars(pybeam.fixed_beam(3, max_length=40), tokenizers.of(), continues=True)
    decoder = pybeam.Decoder(pybeam.load_model(path), search, log_probs=True)
    return ServedModel("tiny", str(path), decoder, tokenizers)


def sent(model, *calls: tuple[str, dict]) -> list:
    """The answers to these bodies."""

    async def ask(http):
        return [await http.post(f"/v1/{path}", json=body) for path, body in calls]

    return server_app.run(ask, model=model)


def is_json(text):
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


NAMED = {"name": "one", "schema": SCHEMA, "strict": True}
FORMS = [
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, is_json),
    ({"guided_json": SCHEMA}, is_json),
    ({"guided_json": json.dumps(SCHEMA)}, is_json),
    ({"structured_outputs": {"json": SCHEMA}}, is_json),
    ({"guided_regex": "[a-d]{2}d?"}, re.compile("[a-d]{2}d?").fullmatch),
    ({"structured_outputs": {"regex": "d+"}}, re.compile("d+").fullmatch),
    ({"guided_choice": ["ad", 'd"d', "bb"]}, ["ad", 'd"d', "bb"].__contains__),
    ({"structured_outputs": {"choice": ["ad"]}}, ["ad"].__contains__),
    ({"guided_grammar": 'start: "d" | "a" start "b"'}, re.compile("a*db*").fullmatch),
    ({"structured_outputs": {"grammar": 'start: "da"'}}, ["da"].__contains__),
]


# a process reads each grammar first
@pytest.mark.parametrize("forms", [FORMS[::3], pytest.param(FORMS, marks=pytest.mark.slow)])
def test_outputs_have_the_form_that_is_asked_for(model, forms):
    calls = []
    for form, _ in forms:
        calls.append(("chat/completions", {"messages": CHAT, "n": 2, "max_tokens": 24, **form}))
        calls.append(("completions", {"prompt": "ac", "max_tokens": 24, **form}))
    answers = sent(model, *calls)
    for i, (form, is_valid) in enumerate(forms):
        for answer in answers[2 * i : 2 * i + 2]:
            assert answer.status_code == 200, (form, answer.text)
            choices = answer.json()["choices"]
            assert choices
            for one in choices:
                text = one["message"]["content"] if "message" in one else one["text"]
                assert is_valid(text), (form, text)
                assert one["finish_reason"] == "stop"


def test_decode_and_translations_take_them(model):
    own = {"structured_outputs": {"choice": ["ad", "bb"]}}
    decoded, translated = sent(
        model,
        ("decode", {"source": "ac", "n_best": 2, "max_length": 8, **own}),
        ("translations", {"text": "ac", "max_length": 8, **own}),
    )
    assert {one["text"] for one in decoded.json()["hypotheses"]} <= {"ad", "bb"}
    assert len(decoded.json()["hypotheses"]) == 2
    assert translated.json()["translations"][0]["text"] in ("ad", "bb")


def test_nothing_that_fits_is_a_choice_that_was_cut(model):
    form = {"guided_json": SCHEMA, "max_tokens": 3}
    [answer] = sent(model, ("completions", {"prompt": "ac", **form}))
    [choice] = answer.json()["choices"]
    assert choice["text"] == "" and choice["finish_reason"] == "length"


REFUSED = [
    ({"guided_json": {"type": "foo"}}, "guided_json", "Invalid type: foo"),
    ({"guided_json": {"not": {}}}, "guided_json", "Unimplemented keys"),
    ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
    ({"guided_json": "[" * 5000}, "guided_json", "must be a JSON schema"),
    ({"guided_grammar": "start: missing"}, "guided_grammar", "unknown name"),
    ({"guided_grammar": "a" * 70_000}, "guided_grammar", "at most 65536 characters"),
    ({"guided_regex": "(a"}, "guided_regex", "one that llguidance knows"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "give either"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "must have a `schema`"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
]


def test_what_cannot_be_held_to_is_refused(model):
    answers = sent(model, *(("completions", {"prompt": "ac", **body}) for body, _, _ in REFUSED))
    for answer, (body, field, problem) in zip(answers, REFUSED, strict=True):
        error = answer.json()["error"]
        assert answer.status_code in (400, 422), body
        assert field in error["param"] and problem in error["message"], (body, error)


def test_a_server_without_the_processor_says_why():
    [answer] = sent(None, ("completions", {"prompt": "a", "guided_regex": "a"}))
    assert answer.status_code == 400 and "llguidance" in answer.json()["error"]["message"]


def test_columns_stay_alone():
    """Beside another processor a catalogue would compute all of the vocabulary."""
    catalogue = pybeam.Catalogue.build([[3, 4]])
    search = pybeam.fixed_beam(2, processors=[pybeam.catalogue.allowed_items(catalogue)])
    assert with_grammars(search, object(), continues=False) is search
    chain = with_grammars(pybeam.greedy(), object(), continues=False).processors
    assert [type(one) for one in chain] == [GrammarConstraint]


def test_a_pattern_may_have_slashes_and_ends_of_lines():
    assert asked("regex", "regex", "a/b\\/c\n\\\\/").text == "start: /a\\/b\\/c\\n\\\\\\//"


# what ends lines, strings and patterns in llguidance's dialect, escaped or not
STRANGE = ["\n", "\\\n", "\\\\\n", "/", "\\/", "\x7f", "\\\x7f", "\r", "\\\\", '"', "\0"]


class Bytes:
    """A tokenizer whose tokens are bytes of ASCII, and EOS."""

    def vocab(self):
        return [*(bytes([i]) for i in range(128)), None]


@pytest.mark.parametrize("kind", ["regex", "choice"])
def test_strange_characters_are_what_they_are(kind):
    """As `re` reads a pattern, and as they stand in a choice."""
    vocabulary = Vocabulary.of(Bytes())
    for text in (f"a{one}b" for one in STRANGE):
        wish = asked("x", kind, text if kind == "regex" else [text])
        grammar = Grammar.of(wish.text, vocabulary)
        is_valid = re.compile(text).fullmatch if kind == "regex" else text.__eq__
        for output in (f"a{one}b" for one in [*STRANGE, "n", "\\n"]):
            state = grammar.start()
            for byte in output.encode():
                state = grammar.step(state, byte)
            ends = state.matcher is not None and bool(grammar.masks([state]).may_end[0])
            assert ends == bool(is_valid(output)), (text, output)


def test_reading_a_grammar_takes_of_the_requests_time(model, monkeypatch):
    """A reader that never ends holds up nobody for longer than they wait for an answer."""

    async def read(text):
        await asyncio.sleep(60 if "bb" in text else 0.2)

    monkeypatch.setattr(grammars, "_read", read)
    left = []

    async def ask(http):
        slow = [http.post("/v1/completions", json=BODY | {"timeout": 0.2}) for _ in range(3)]
        own = http.post("/v1/completions", json={**BODY, "guided_choice": ["dab"]})
        return await asyncio.gather(*slow, own)

    submit = Service.submit
    monkeypatch.setattr(
        Service, "submit", lambda *a, **o: left.append(o["since"]) or submit(*a, **o)
    )
    began = time.monotonic()
    *slow, own = server_app.run(ask, model=model)
    for answer in slow:
        error = answer.json()["error"]
        assert answer.status_code == 504 and "not read within 0.2 seconds" in error["message"]
    assert own.json()["choices"][0]["text"] == "dab"
    # before its grammar was read, and none of the others was submitted
    [since] = left
    assert began <= since < time.monotonic() - 0.2


def test_whoever_leaves_is_read_for_no_more(model, monkeypatch):
    """Three have left, of whom one had no reader yet."""
    reading = []

    async def read(text):
        reading.append(text)
        try:
            await asyncio.sleep(60 if "bb" in text else 0)
        finally:
            reading.remove(text)

    monkeypatch.setattr(grammars, "_read", read)
    content, sent = json.dumps(BODY | {"guided_choice": ["bbb"]}).encode(), []

    async def ask(http):
        has_left = asyncio.Event()

        def leaving():
            messages = iter([{"type": "http.request", "body": content}])

            async def receive():
                if (found := next(messages, None)) is not None:
                    return found
                await has_left.wait()
                return {"type": "http.disconnect"}

            return receive

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http"}
        scope |= {"path": "/v1/completions", "raw_path": b"", "query_string": b"", "root_path": ""}
        scope |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80)}
        gone = [asyncio.ensure_future(http.app(dict(scope), leaving(), send)) for _ in range(3)]
        while len(reading) < 2:
            await asyncio.sleep(0.01)
        has_left.set()
        await asyncio.wait_for(asyncio.gather(*gone), 10)
        assert not reading
        own = {**BODY, "guided_choice": ["dad"]}
        return await http.post("/v1/completions", json=own)

    own = server_app.run(ask, model=model)
    assert own.json()["choices"][0]["text"] == "dad"
    assert [one["status"] for one in sent if "status" in one] == [499] * 3


def asking(address):
    return HTTPConnection({"type": "http", "headers": [], "client": (address, 1), "state": {}})


def test_one_client_leaves_a_reader_to_others(monkeypatch):
    monkeypatch.setattr(grammars, "MOST_WAITING", 3)
    readers, read, may_end = grammars._Readers(["127.0.0.1"]), [], asyncio.Event()

    async def reading(address, text):
        async with readers.one(asking(address), Asked("guided_regex", text)):
            read.append(text)
            await may_end.wait()

    async def come(address, *texts):
        tasks = [asyncio.ensure_future(reading(address, text)) for text in texts]
        for _ in range(9):
            await asyncio.sleep(0)
        return tasks

    async def test():
        # the same one may wait for its reader many times
        tasks = await come("9.9.9.9", "a", "b", "c", "d", "d", "d")
        assert read == ["a"]
        with pytest.raises(APIError, match="3 new grammars of this client") as error:
            await reading("9.9.9.9", "e")
        assert error.value.status == 429 and error.value.retry_after
        tasks += await come("8.8.8.8", "x")
        assert read == ["a", "x"]
        # those who count for nobody, and have no bound
        tasks += await come("127.0.0.1", *"123456")
        tasks[1].cancel()
        may_end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert "b" not in read and "".join(one for one in read if one.isdigit()) == "123456"
        assert read.index("c") < read.index("d") and not readers._waiting

    asyncio.run(test())


def test_a_grammar_that_many_wait_for_is_read_once(model, monkeypatch):
    read = []

    async def reading(text):
        read.append(text)
        await asyncio.sleep(0.05)

    monkeypatch.setattr(grammars, "_read", reading)
    body = {**BODY, "guided_choice": ["dac"]}

    async def ask(http):
        return await asyncio.gather(*(http.post("/v1/completions", json=body) for _ in range(6)))

    answers = server_app.run(ask, model=model)
    assert [one.status_code for one in answers] == [200] * 6
    # there are two readers, and these clients count for nobody
    assert 1 <= len(read) <= 2


# it takes a second of a CPU
@pytest.mark.slow
def test_a_schema_that_explodes_is_given_up(model, monkeypatch):
    """Llguidance builds an automaton of their least common multiple, in version 1.9.1."""
    assert grammars.READER.count("RLIMIT_CPU, 4") == 1
    monkeypatch.setattr(
        grammars, "READER", grammars.READER.replace("RLIMIT_CPU, 4", "RLIMIT_CPU, 1")
    )
    schema = {"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}
    calls = [
        ("completions", {"prompt": "ac", "guided_json": schema}),
        ("completions", {"prompt": "ac", "guided_choice": ["ad"]}),
    ]
    first, second = sent(model, *calls)
    assert first.status_code == 400 and "too complex" in first.json()["error"]["message"]
    assert second.json()["choices"][0]["text"] == "ad"


# the package takes seconds to import
@pytest.mark.slow
def test_openai_asks_for_json(model):
    package = pytest.importorskip("openai", reason="the package openai is in the extra `test`")
    with (
        server_app.listening(model) as url,
        package.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        how = {"model": "tiny", "messages": CHAT, "max_completion_tokens": 30}
        form = {"type": "json_schema", "json_schema": NAMED}
        answer = client.chat.completions.create(**how, response_format=form)
        assert is_json(answer.choices[0].message.content)
        extra = {"structured_outputs": {"choice": ["bb"]}}
        answer = client.chat.completions.create(**how, extra_body=extra)
        assert answer.choices[0].message.content == "bb"
        with pytest.raises(package.BadRequestError, match="Invalid type") as caught:
            client.chat.completions.create(**how, extra_body={"guided_json": {"type": "foo"}})
        assert caught.value.param == "guided_json"


def test_no_module_of_the_working_directory_reads_a_grammar(tmp_path, monkeypatch):
    (tmp_path / "llguidance.py").write_text("open('run', 'w').close()")
    monkeypatch.chdir(tmp_path)
    asyncio.run(grammars._read('start: "a"'))
    assert not (tmp_path / "run").exists()
