"""Chat completions are the library's answers, in OpenAI's words, whole and in pieces."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

import pybeam
from pybeam import processors
from pybeam.server import continuations
from pybeam.server.biases import biases_of, with_biases
from pybeam.server.log_probs import bytes_of
from pybeam.server.models import ServedModel, ServedModels
from pybeam.text.chat import ChatTemplate
from pybeam.text.tokenizer import Tokenizers
from support import server_app
from support.text_folders import TEMPLATE, save_chat

CHAT = [{"role": "system", "content": "b"}, {"role": "user", "content": "ac"}]
SEARCH = pybeam.fixed_beam(3, max_length=12)
DRAWS = pybeam.sample(max_length=12)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat")
    save_chat(path)
    return path


@pytest.fixture(scope="module")
def generator(directory):
    return pybeam.load(directory, device="cpu", search=SEARCH)


def served(directory, search=SEARCH) -> ServedModel:
    decoder = pybeam.Decoder(pybeam.load_model(directory), with_biases(search), log_probs=True)
    return ServedModel("tiny", str(directory), decoder, Tokenizers(directory))


@pytest.fixture(scope="module")
def model(directory):
    return served(directory)


@pytest.fixture(scope="module")
def drawing(directory):
    return served(directory, DRAWS)


def chunks_of(text: str) -> list[dict]:
    """The chunks of a stream, which ends with [DONE]."""
    *blocks, last = text.removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def asked(model, *bodies: dict, path: str = "chat/completions") -> list:
    """The answers to these bodies: JSON, or the chunks of a stream."""
    given = {"messages": CHAT} if path == "chat/completions" else {}

    async def ask(http):
        answers = [await http.post(f"/v1/{path}", json={**given, **body}) for body in bodies]
        is_stream = [one.headers["content-type"].startswith("text/event") for one in answers]
        return [
            chunks_of(one.text) if streams else one.json()
            for one, streams in zip(answers, is_stream, strict=True)
        ]

    return server_app.run(ask, model=model)


def texts(answer: dict) -> list[str]:
    return [one["message"]["content"] for one in answer["choices"]]


def joined(chunks: list[dict]) -> dict[int, str]:
    """The texts of a stream by their index."""
    found: dict[int, str] = {}
    for choice in (one for chunk in chunks for one in chunk["choices"]):
        text = choice["delta"].get("content") or ""
        found[choice["index"]] = found.get(choice["index"], "") + text
    return found


def test_answers_are_those_of_the_library(model, generator):
    body = {"n": 2, "max_tokens": 9}
    one, two = asked(model, {}, body)
    expected = generator.generate(CHAT)
    assert texts(one) == [expected] and expected
    assert texts(two) == generator.generate(CHAT, n_best=2, max_length=9)
    prompt = generator.tokenizer.encode_target(generator.chat_template.render(CHAT))
    hypothesis = expected.hypothesis
    assert one["usage"]["prompt_tokens"] == len(prompt)
    assert one["usage"]["completion_tokens"] == len(hypothesis.tokens) + hypothesis.ended
    assert one["choices"][0]["finish_reason"] == ("stop" if hypothesis.ended else "length")
    assert one["object"] == "chat.completion" and one["choices"][0]["score"] == hypothesis.score


@pytest.mark.parametrize("kind", ["model", "drawing"])
def test_a_stream_is_the_answer_in_pieces(kind, request):
    model, options = request.getfixturevalue(kind), {"n": 2, "seed": 4}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    whole, chunks = asked(model, options, options | streamed)
    assert joined(chunks) == dict(enumerate(texts(whole)))
    assert len({chunk["id"] for chunk in chunks}) == 1
    *others, last = chunks
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in others)
    for i, choice in enumerate(whole["choices"]):
        own = [one for chunk in others for one in chunk["choices"] if one["index"] == i]
        assert own[0]["delta"]["role"] == "assistant"
        assert [one["finish_reason"] for one in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("kind", ["model", "drawing"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_text_ends_before_a_stop_string(kind, size, request):
    """Its characters come from several tokens, and no part of it is sent."""
    model, body = request.getfixturevalue(kind), {"seed": 4}
    [plain] = asked(model, body)
    [text] = texts(plain)
    stop = text[2 : 2 + size]
    expected = text[: text.index(stop)]
    body |= {"stop": [stop, "#"]}
    whole, chunks, scored = asked(
        model, body, body | {"stream": True}, body | {"logprobs": True, "n": 1}
    )
    for answer in (whole, scored):
        assert texts(answer) == [expected]
        assert answer["choices"][0]["finish_reason"] == "stop"
    assert joined(chunks) == {0: expected}
    content = scored["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == expected
    # it is given up, or cut afterwards
    assert whole["usage"]["completion_tokens"] <= plain["usage"]["completion_tokens"]


@pytest.mark.parametrize("kind", ["model", "drawing"])
def test_tokens_to_a_stop_string_do_not_depend_on_what_is_certain_when(kind, request, monkeypatch):
    model, body = request.getfixturevalue(kind), {"seed": 4}
    [plain] = asked(model, body)
    body |= {"stop": texts(plain)[0][2]}
    [left] = asked(model, body)
    # the result comes before anything is certain
    monkeypatch.setattr(continuations, "Certain", type(None))
    [late] = asked(model, body)
    assert texts(late) == texts(left)
    assert late["usage"] == left["usage"] != plain["usage"]


def test_drawn_answers_follow_from_their_seed(drawing):
    body = {"n": 3, "seed": 7, "temperature": 0.8, "top_p": 0.9}
    first, second, other = asked(drawing, body, body, body | {"seed": 8})
    assert texts(first) == texts(second) != texts(other)
    assert first["system_fingerprint"] == second["system_fingerprint"]


def test_biases_and_penalties_of_a_request(drawing, generator):
    """They are those of the library's processors, for this request alone."""
    [letter] = generator.tokenizer.encode_target("a")
    how = {"seed": 2, "temperature": 0.9, "frequency_penalty": 1.5, "presence_penalty": -0.5}
    biased, plain, bad, both = asked(
        drawing,
        how | {"logit_bias": {str(letter): 90}},
        how,
        {"logit_bias": {"a": 1}},
        how | {"logprobs": True, "top_logprobs": 1},
    )
    chain = [
        processors.count_penalty(1.5, -0.5),
        processors.sequence_bias({(letter,): 90.0}),
        processors.sample(0.9, 2),
    ]
    search = pybeam.greedy(max_length=12, processors=chain)
    assert texts(biased) == [generator.generate(CHAT, search=search)] != texts(plain)
    assert bad["error"]["param"] == "logit_bias" and both["error"]["param"] == "top_logprobs"
    algorithm = drawing.decoder.algorithm
    assert biases_of(algorithm, {str(letter): 90}, 1.5, -0.5) == [chain[1], chain[0]]
    assert biases_of(algorithm, {}, 0.0, 0.0) == [] and with_biases(SEARCH) is SEARCH
    own = with_biases(pybeam.sample(processors=[chain[0]])).processors
    assert [type(one) for one in own].count(type(chain[0])) == 1


def test_of_several_draws_those_with_the_most_probable_tokens_are_kept(drawing):
    body = {"prompt": "abc", "seed": 3, "max_tokens": 6, "logprobs": 1}
    drawn, best = asked(drawing, body | {"n": 5}, body | {"n": 2, "best_of": 5}, path="completions")

    def mean(one):
        num_tokens = len(one["logprobs"]["tokens"]) + (one["finish_reason"] == "stop")
        return one["score"] / num_tokens

    ranked = sorted(drawn["choices"], key=mean, reverse=True)
    assert [one["text"] for one in best["choices"]] == [one["text"] for one in ranked[:2]]
    assert [one["index"] for one in best["choices"]] == [0, 1]
    assert best["usage"] == drawn["usage"] and len({one["text"] for one in ranked}) > 2
    streamed, fewer = asked(
        drawing,
        body | {"best_of": 2, "stream": True},
        body | {"n": 3, "best_of": 2},
        path="completions",
    )
    for found in (streamed, fewer):
        assert found["error"]["param"] == "best_of"


def test_log_probs(model, generator):
    [found] = asked(model, {"logprobs": True, "top_logprobs": 4, "use_beam_search": False})
    [choice] = found["choices"]
    text, content = choice["message"]["content"], choice["logprobs"]["content"]
    assert bytes(itertools.chain(*(one["bytes"] for one in content))).decode() == text
    [best] = generator.decoder.decode([pybeam.Request(_prompt(generator), width=1, n_best=1)])[
        0
    ].hypotheses
    assert len(content) == len(best.tokens)
    for one in content:
        # a greedy answer has the most probable token everywhere
        top, *others = one["top_logprobs"]
        assert (top["token"], top["bytes"]) == (one["token"], one["bytes"])
        assert top["logprob"] == pytest.approx(one["logprob"], abs=1e-5)
        assert len(others) == 3 and all(two["logprob"] <= top["logprob"] for two in others)
    total = sum(one["logprob"] for one in content)
    assert total >= choice["score"] - 1e-4


def _prompt(generator) -> list[int]:
    return generator.tokenizer.encode_target(generator.chat_template.render(CHAT))


def test_a_stream_has_the_same_log_probs(model):
    body = {"logprobs": True, "top_logprobs": 2}
    whole, chunks = asked(model, body, body | {"stream": True})
    content = [
        token
        for chunk in chunks
        for one in chunk["choices"]
        for token in (one["logprobs"] or {}).get("content", [])
    ]
    assert content == whole["choices"][0]["logprobs"]["content"]


def test_tokens_that_are_parts_of_characters_have_their_bytes():
    assert bytes_of("<0xE2>") == b"\xe2" and bytes_of("Ġa") == b" a"
    assert bytes_of("âĤ¬") == "€".encode() and bytes_of("▁b") == "▁b".encode()


def test_messages_become_what_templates_read(model, directory):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "c"}]
    chat = [{"role": "developer", "content": "b"}, {"role": "user", "content": parts}]
    plain = [{"role": "system", "content": "b"}, {"role": "user", "content": "a\nc"}]
    one, two = asked(model, {"messages": chat}, {"messages": plain})
    assert texts(one) == texts(two) and one["usage"] == two["usage"]


def test_tools_reach_a_template_that_knows_them(directory, model):
    [refused] = asked(model, {"tools": [TOOL]})
    assert refused["error"]["param"] == "tools"
    seen = []

    class Seeing(ChatTemplate):
        def render(self, messages, /, **variables):
            seen.append((messages, variables))
            return super().render(messages, **variables)

    knowing = served(directory)
    text = "{% if tools %}{{ tools[0].function.name }}{% endif %}<tool_call>" + TEMPLATE
    knowing.chat_template = Seeing(text, {"bos_token": "<s>"})
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    nameless = {"type": "function", "function": {"name": "b", "arguments": ""}}
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call, nameless]},
        {"role": "tool", "tool_call_id": "x", "content": "2"},
    ]
    body = {"messages": chat, "tools": [TOOL], "max_tokens": 2}
    asked(knowing, body, body | {"tool_choice": "none", "chat_template_kwargs": {"a": 1}})
    (messages, variables), (_, without) = seen
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert messages[0] == {"role": "user", "content": "a"}
    assert messages[2] == {"role": "tool", "content": "2", "tool_call_id": "x", "name": "add"}
    assert variables == {"tools": [TOOL]} and without == {"a": 1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [*CHAT, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "ab " * 400}]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_tokens": 2, "max_completion_tokens": 2}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"n": 33}, "n"),
        ({"use_beam_search": False, "n": 2}, "n"),
        ({"temperature": 0.5}, "temperature"),
        ({"functions": []}, "functions"),
        ({"store": True}, "store"),
        ({"beam_width": 2, "n": 3}, "beam_width"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
    ],
)
def test_what_is_refused(model, body, field):
    [found] = asked(model, body)
    assert found["error"]["param"] == field, found
    assert found["error"]["type"] == "invalid_request_error"


def test_a_model_that_knows_no_chats():
    [found] = asked(server_app.served(), {})
    assert found["error"]["param"] == "messages" and "language model" in found["error"]["message"]


def test_a_language_model_is_asked_for_no_translation(model):
    models = ServedModels({"tiny": model, "es-en": server_app.served()})
    assert models.pick(None, "es", "en").name == "es-en" and models.pick(None).name == "tiny"
    assert models.targets() == {"es": ["en"]}


def test_a_client_may_ask_for_more_tokens_than_there_is_room_for(model, generator):
    [found] = asked(model, {"max_completion_tokens": 4096, "stop": None})
    assert texts(found) == [
        generator.generate(
            CHAT, search=pybeam.fixed_beam(3, max_length=64 - len(_prompt(generator)))
        )
    ]


@pytest.fixture(scope="module")
def address(drawing):
    with server_app.listening(drawing) as url:
        yield f"{url}/v1"


# the package takes seconds to import
@pytest.mark.slow
def test_openai_chats(address):
    package = pytest.importorskip("openai", reason="the package openai is in the extra `test`")
    how = {"model": "tiny", "messages": CHAT, "seed": 5, "max_completion_tokens": 8}
    with package.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        create = client.chat.completions.create
        whole = create(**how, n=2, logprobs=True, top_logprobs=2)
        first = whole.choices[0]
        assert first.message.role == "assistant" and first.message.tool_calls is None
        assert len(first.logprobs.content[0].top_logprobs) == 2
        assert whole.usage.total_tokens > whole.usage.completion_tokens > 0
        chunks = list(create(**how, stream=True, stream_options={"include_usage": True}))
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        assert text == first.message.content and chunks[-1].usage is not None
        raw = client.chat.completions.with_raw_response.create(**how)
        assert raw.headers["x-request-id"] and raw.parse().choices[0].message.content == text
        with pytest.raises(package.NotFoundError) as caught:
            create(**how | {"model": "gpt"})
        assert caught.value.code == "model_not_found"
        with pytest.raises(package.BadRequestError, match="response_format") as caught:
            create(**how, response_format={"type": "json_object"})
        assert caught.value.param == "response_format"

    async def ask():
        async with package.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(*(create(**how) for _ in range(3)))
            assert {one.choices[0].message.content for one in answers} == {text}
            stream = await create(**how, stream=True, stop=text[1])
            parts = [one.choices[0].delta.content or "" async for one in stream]
            assert "".join(parts) == text[: text.index(text[1])]

    asyncio.run(ask())


@pytest.mark.slow
def test_langchain_chats(address):
    package = pytest.importorskip(
        "langchain_openai", reason="the package langchain-openai is in the extra `test`"
    )
    model = package.ChatOpenAI(
        model="tiny", base_url=address, api_key="none", seed=5, max_completion_tokens=8
    )
    answer = model.invoke([("system", "b"), ("human", "ac")])
    assert answer.content and answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.usage_metadata["total_tokens"] > 0
    parts = list(model.stream([("system", "b"), ("human", "ac")]))
    assert "".join(part.content for part in parts) == answer.content
    assert model.bind(stop=[answer.content[1]]).invoke(CHAT).content == answer.content[0]
