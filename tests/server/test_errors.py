"""Every status code, and the field at fault by its name."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from pybeam.server import messages
from pybeam.server.calls import Calls
from pybeam.server.endpoints.translate import TranslateBody
from pybeam.server.errors import APIError, from_service
from pybeam.server.openai_bodies import ChatBody, CompletionsBody
from pybeam.server.schemas import MAX_DEPTH, DecodeBody, TranslationsBody
from pybeam.serving import DeadlineExceeded
from support.example_lines import LINES
from support.server_app import run

WRONG = [-1] * 12
TRANSLATE = {"q": "Y el rey dijo.", "source": "es", "target": "en"}


def check(response, status, field=None):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    if isinstance(error, str):  # LibreTranslate's form
        assert error
        return
    assert error["param"] == field, error
    assert error["message"] and error["type"]
    if field is not None:
        assert f"`{field}`" in error["message"] or field in ("model", "source_lang")


@pytest.mark.parametrize(
    "path, body, field",
    [
        ("translations", {}, "text"),
        ("translations", {"text": 5}, "text"),
        ("translations", {"text": []}, "text"),
        ("translations", {"text": ["a"] * 65}, "text"),
        ("translations", {"text": "a " * 2000}, "text"),
        ("translations", {"text": "a", "width": 0}, "width"),
        ("translations", {"text": "a", "width": 33}, "width"),
        ("translations", {"text": "a", "n_best": 33}, "n_best"),
        ("translations", {"text": "a", "withd": 3}, "withd"),
        ("translations", {"text": "a", "timeout": -1}, "timeout"),
        ("translations", {"text": "a", "timeout": 1e9}, "timeout"),
        ("translations", {"text": "a", "priority": 1}, "priority"),
        ("translations", {"text": "a", "length_penalty": 1, "scoring": {}}, "length_penalty"),
        ("translations", {"text": "a", "source_lang": "de"}, "source_lang"),
        ("translations", {"text": ["a", "b"], "stream": True}, "text"),
        ("decode", {"source": [[1, 2], "a"]}, "source"),
        ("decode", {"source": [-1]}, "source"),
        ("decode", {"source": "a", "processors": [{"name": "exec"}]}, "processors"),
        ("decode", {"source": "a", "processors": [{"name": "language_model"}]}, "processors"),
        ("decode", {"source": "a", "model": "spoken-numbers-en"}, "model"),
        ("score", {"source": "a"}, "target"),
        ("completions", {"prompt": "a", "n": 4, "best_of": 3}, "best_of"),
        ("completions", {"prompt": "a", "n": 2, "use_beam_search": False}, "n"),
        ("completions", {"prompt": "a", "temperature": 0.7}, "temperature"),
        ("completions", {"prompt": "a", "stop": ["b", ""]}, "stop"),
        ("completions", {"prompt": "a", "stream_options": {}}, "stream_options"),
        ("completions", {"prompt": "a", "echo": True}, "echo"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_400(http, path, body, field):
    check(http.post(f"/v1/{path}", json=body), 400, field)


@pytest.mark.parametrize(
    "body",
    [
        {"q": "a"},
        {**TRANSLATE, "q": 5},
        {**TRANSLATE, "source": "de"},
        {**TRANSLATE, "source": "auto", "target": "de"},
        {**TRANSLATE, "format": "pdf"},
        {**TRANSLATE, "alternatives": 99},
        {**TRANSLATE, "q": ["a"] * 70},
        [],
    ],
    ids=str,
)
def test_400_for_libretranslate(http, body):
    check(http.post("/translate", json=body), 400)


@pytest.mark.parametrize("content", [b"", b"{", b'{"text": "\xff"}', b"[" * 9000, b"null"])
@pytest.mark.parametrize("path", ["/v1/translations", "/translate"])
def test_400_for_what_is_no_json(http, path, content):
    response = http.post(path, content=content, headers={"Content-Type": "application/json"})
    check(response, 400)


def test_401():
    async def test(client):
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic good"}):
            for path in ("translations", "decode", "score", "completions"):
                check(await client.post(f"/v1/{path}", json={}, headers=headers), 401)
            for path in ("/v1/models", "/v1/models/es-en"):
                response = await client.get(path, headers=headers)
                check(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
        check(await client.post("/translate", json=TRANSLATE), 401)
        check(await client.post("/translate", json={**TRANSLATE, "api_key": "no"}), 401)
        check(await client.post("/v1/audio/transcriptions", files={"file": b"a"}), 401)
        for key in ("good", "también"):
            body = {**TRANSLATE, "api_key": key}
            assert (await client.post("/translate", json=body)).status_code == 200
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        for path in ("/health", "/ready", "/metrics", "/version", "/languages"):
            assert (await client.get(path)).status_code == 200

    run(test, keys=("good", "también"))


def test_404(http):
    check(http.post("/v1/translations", json={"text": "a", "model": "b"}), 404, "model")
    check(http.get("/v1/models/b"), 404, "model")
    check(http.get("/nothing"), 404)
    check(http.get("/v1/translations"), 405)


def test_413(http):
    body = {"text": "a" * 20000}
    check(http.post("/v1/translations", json=body), 413)
    parts = (part for part in [b'{"text": "', b"a" * 30000, b'"}'])  # without a Content-Length
    check(http.post("/v1/translations", content=parts), 413)
    check(http.post("/translate", json={**TRANSLATE, "q": "a" * 20000}), 413)
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (TranslateBody, {"q": WRONG}),
        (TranslationsBody, {"text": WRONG}),
        (DecodeBody, {"source": WRONG, "prefix": WRONG, "processors": WRONG}),
        (DecodeBody, {"source": [["a"] * 12]}),
        (CompletionsBody, {"prompt": WRONG, "stop": WRONG}),
        (CompletionsBody, {"prompt": [WRONG]}),
        (ChatBody, {"messages": WRONG, "tools": WRONG, "modalities": WRONG}),
        (ChatBody, {"messages": [{"content": WRONG, "tool_calls": WRONG}]}),
    ],
)
def test_lists_of_mistakes_are_not_read_to_their_end(kind, body):
    """A megabyte of them would be a gigabyte of errors."""
    with pytest.raises(ValidationError) as found:
        kind.model_validate(body)
    assert found.value.error_count() <= 10


def test_429_for_bodies_that_are_too_large_together(monkeypatch):
    encode, is_there, held = Calls.encode, asyncio.Event(), asyncio.Event()

    async def wait(*args):
        is_there.set()
        await held.wait()
        return await encode(*args)

    monkeypatch.setattr(Calls, "encode", wait)

    async def test(client):
        body = {"content": json.dumps({"text": LINES[0]}) + " " * 600}
        body["headers"] = {"Content-Type": "application/json"}
        first = asyncio.ensure_future(client.post("/v1/translations", **body))
        await is_there.wait()
        found = await client.post("/v1/translations", **body)
        check(found, 429)
        assert "requests of 1000 bytes" in found.text and int(found.headers["retry-after"]) > 0
        held.set()
        both = [await first, await client.post("/v1/translations", **body)]
        assert [one.status_code for one in both] == [200, 200]

    run(test, max_bodies=1000)


def test_415_for_a_charset_that_is_slow_to_decode():
    """Python's punycode takes minutes for a megabyte; Starlette decodes forms in the charset they name."""
    plain, odd = (f"multipart/form-data; boundary=x{end}" for end in ("", "; Charset=PunyCode"))
    part = 'Content-Disposition: form-data; name="q"'
    content = f"--x\r\n{part}\r\n\r\n2n7c{'a' * 999}\r\n--x--\r\n".encode()

    async def test(client):
        for kinds in ([odd], [plain, odd], [odd, plain]):
            headers = [("Content-Type", one) for one in kinds]
            for path in ("/translate", "/translate_file", "/v1/audio/transcriptions"):
                check(await client.post(path, content=content, headers=headers), 415)

    run(test, keys=("good",))


@pytest.mark.parametrize(
    "path, body, field",
    [
        ("decode", {"source": [99999]}, "source"),
        ("decode", {"source": [[1.0, 2.0], [3.0]]}, None),
        ("decode", {"source": "a", "n_best": 9}, "n_best"),
        ("decode", {"source": "a", "width": 3, "threshold": -1}, "threshold"),
        ("decode", {"source": "a", "max_length": 9999}, "max_length"),
        ("decode", {"source": "a", "prefix": [99999]}, "prefix"),
        ("decode", {"source": "a", "scoring": {"alpha": 99}}, "alpha"),
        (
            "decode",
            {"source": "a", "processors": [{"name": "temperature", "temperature": -1}]},
            "processors",
        ),
        ("decode", {"source": "a", "processors": [{"name": "temperature"}]}, "processors"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_422(http, path, body, field):
    response = http.post(f"/v1/{path}", json=body)
    assert response.status_code == 422, response.text
    assert response.json()["error"]["message"]
    if field is not None:
        assert response.json()["error"]["param"] == field, response.text


@pytest.mark.parametrize("path, field", [("translations", "text"), ("completions", "prompt")])
def test_400_for_half_a_character(http, path, field):
    content = f'{{"{field}": "a\\ud800"}}'
    headers = {"Content-Type": "application/json"}
    check(http.post(f"/v1/{path}", content=content, headers=headers), 400, field)


TOOL = '{"type": "function", "function": {"name": "a", "%s": "%s"}}'
HALF = "a\\ud800"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", f"[{TOOL % ('parameters', HALF)}]"),
        ("tools", f"[{TOOL % (HALF, 'a')}]"),
        ("chat_template_kwargs", f'{{"a": ["{HALF}"]}}'),
        ("chat_template_kwargs", f'{{"a": {"[" * 300}{"]" * 300}}}'),
        ("tools", f'[{{"type": {"[" * 900}{"]" * 900}}}]'),
    ],
    ids=lambda value: str(value)[:60],
)
def test_400_for_what_no_template_can_write(http, field, value):
    content = f'{{"messages": [{{"role": "user", "content": "a"}}], "{field}": {value}}}'
    headers = {"Content-Type": "application/json"}
    check(http.post("/v1/chat/completions", content=content, headers=headers), 400, field)


@pytest.mark.parametrize("arguments", [f'["{HALF}"]', "[" * 300 + "]" * 300])
def test_400_for_arguments_that_no_template_can_write(arguments):
    with pytest.raises(APIError, match="`tool_calls`"):
        messages._arguments(arguments)


def test_400_for_an_id_that_is_nested_too_deep(http):
    def nested(depth: int) -> str:
        return f'{{"source": "a", "id": {"[" * depth}1{"]" * depth}}}'

    headers = {"Content-Type": "application/json"}
    for depth, status in ((MAX_DEPTH, 200), (MAX_DEPTH + 1, 400), (300, 400), (900, 400)):
        found = http.post("/v1/decode", content=nested(depth), headers=headers)
        check(found, status, "id") if status == 400 else found.raise_for_status()


@pytest.mark.parametrize("content", [b"", b"RIFF", b"no sound" * 99])
def test_422_for_what_is_no_recording(http, content):
    files = {"file": ("a.wav", content)}
    check(http.post("/v1/audio/transcriptions", files=files), 422)


def test_429_says_when_to_come_back():
    async def test(client):
        bodies = [{"text": LINES, "width": 32} for _ in range(8)]
        responses = await asyncio.gather(
            *(client.post("/v1/translations", json=body) for body in bodies)
        )
        full = [response for response in responses if response.status_code != 200]
        assert 0 < len(full) < 8
        for response in full:
            check(response, 429)
            assert int(response.headers["retry-after"]) >= 1
        # those that were refused have left nothing behind
        assert (await client.post("/v1/translations", json={"text": LINES[0]})).status_code == 200

    run(test, max_waiting=4)


@pytest.mark.slow
def test_64_requests_at_once_from_one_client():
    async def test(client):
        texts = [LINES[i % len(LINES)] for i in range(64)]
        responses = await asyncio.gather(
            *(client.post("/v1/translations", json={"text": text}) for text in texts)
        )
        assert {response.status_code for response in responses} == {200}

    run(test)


def test_429_for_too_much_work_and_narrow_beams_under_load():
    async def test(client):
        bodies = [{"text": LINES[i % 4]} for i in range(40)]
        responses = await asyncio.gather(
            *(client.post("/v1/translations", json=body) for body in bodies)
        )
        assert {response.status_code for response in responses} == {200, 429}
        done = [one for one in responses if one.status_code == 200]
        widths = {one.json()["translations"][0]["width"] for one in done}
        assert widths == {5, 2}

    run(test, max_waiting_work=1000, width_by_load=((2, 2),))


def test_pages_of_other_sites_may_ask_only_if_they_are_named():
    async def preflight(client):
        headers = {"Origin": "http://a", "Access-Control-Request-Method": "POST"}
        return (await client.options("/v1/translations", headers=headers)).headers

    assert "access-control-allow-origin" not in run(preflight)
    found = run(preflight, cors_origins=("http://a",))
    assert found["access-control-allow-origin"] == "http://a"


def test_504(http):
    body = {"text": LINES[3], "width": 32, "timeout": 1e-6}
    check(http.post("/v1/translations", json=body), 504, "timeout")
    check(http.post("/v1/translations", json={**body, "stream": True}), 504, "timeout")


def test_a_request_that_would_be_late_may_come_again():
    error = from_service(DeadlineExceeded("it is expected to be late", 3.2))
    assert (error.status, error.field, error.headers) == (503, "timeout", {"Retry-After": "4"})
    error = from_service(DeadlineExceeded("its time is over"))
    assert (error.status, error.headers) == (504, {})


def test_priorities_are_bounded():
    async def statuses(client):
        bodies = [{"text": LINES[0], "priority": one} for one in (-8, 0, 3, 4)]
        return [(await client.post("/v1/translations", json=one)).status_code for one in bodies]

    assert run(statuses) == [200, 200, 400, 400]
    assert run(statuses, max_priority=3) == [200, 200, 200, 400]


def test_not_ready_before_the_start():
    async def test(client):
        response = await client.get("/ready")
        assert (response.status_code, response.json()["status"]) == (503, "starting")
        assert (await client.get("/health")).status_code == 200

    run(test, warm=False)


def test_a_mistake_of_ours_is_a_500_without_details():
    async def test(client):
        client.app.state.calls = None
        response = await client.post("/v1/translations", json={"text": "a"})
        check(response, 500)

    run(test)
