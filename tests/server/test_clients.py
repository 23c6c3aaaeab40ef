"""Clients of others work unchanged, and so do ours."""

import asyncio
import json
import subprocess
import sys

import httpx
import pytest

from pybeam.engine.failures import Interrupted
from pybeam.serving.engine_thread import EngineThread
from pybeam_client import AsyncClient, Client, ServerError
from support.example_lines import LINES, translations
from support.paths import ROOT
from support.server_app import client as app_client


def test_our_client_needs_neither_torch_nor_pybeam():
    code = (
        "import sys, pybeam_client; "
        "print([name for name in ('torch', 'pybeam', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


FIRST = ROOT / "examples" / "speech" / "first.wav"


@pytest.fixture(scope="module")
def openai(server):
    package = pytest.importorskip("openai", reason="the package openai is in the extra `test`")
    with package.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.slow
def test_openai_completions(openai):
    found = openai.completions.create(
        model="bible-es-en",
        prompt=LINES[0],
        n=2,
        best_of=5,
        logprobs=1,
        temperature=0,
        extra_body={"use_beam_search": True, "length_penalty": 1.0},
    )
    assert found.choices[0].text == translations()[0]
    assert found.choices[0].finish_reason == "stop"
    assert len(found.choices) == 2 and found.usage.completion_tokens > 0
    assert all(value <= 0 for value in found.choices[0].logprobs.token_logprobs)


def test_openai_streams_completions(openai):
    chunks = openai.completions.create(model="bible-es-en", prompt=LINES[3], stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == translations()[3]


def test_openai_transcriptions(openai):
    with FIRST.open("rb") as file:
        found = openai.audio.transcriptions.create(model="spoken-numbers-en", file=file)
    assert found.text == "four zero seven"
    found = openai.audio.transcriptions.create(
        model="whisper-1", file=FIRST, response_format="verbose_json"
    )
    assert found.segments[0].text == "four zero seven"
    text = openai.audio.transcriptions.create(model="whisper-1", file=FIRST, response_format="srt")
    assert text.startswith("1\n00:00:00,000 --> ")
    found = openai.audio.transcriptions.create(model="whisper-1", file=FIRST, include=["logprobs"])
    assert bytes(int(byte) for one in found.logprobs for byte in one.bytes).decode() == found.text
    assert all(one.logprob <= 0 for one in found.logprobs)


def test_openai_streams_transcriptions(openai):
    how = {"model": "whisper-1", "file": FIRST, "include": ["logprobs"]}
    *deltas, done = openai.audio.transcriptions.create(**how, stream=True)
    assert (done.type, done.text) == ("transcript.text.done", "four zero seven")
    assert "".join(one.delta for one in deltas) == done.text
    whole = openai.audio.transcriptions.create(**how)
    assert [one.logprob for one in done.logprobs] == [one.logprob for one in whole.logprobs] != []


def test_openai_lists_models_and_understands_errors(openai):
    import openai as package

    assert [model.id for model in openai.models.list()] == ["bible-es-en", "spoken-numbers-en"]
    assert openai.models.retrieve("bible-es-en").owned_by == "pybeam"
    with pytest.raises(package.NotFoundError, match="must be one of bible-es-en"):
        openai.models.retrieve("gpt")
    with pytest.raises(package.BadRequestError) as caught:
        openai.completions.create(model="bible-es-en", prompt="a", temperature=0.7)
    assert caught.value.param == "temperature"
    with pytest.raises(package.NotFoundError):
        openai.completions.create(model="gpt", prompt="a")


# the package leaves its connections open
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_libretranslate(server):
    package = pytest.importorskip(
        "libretranslatepy", reason="the package libretranslatepy is in the extra `test`"
    )
    client = package.LibreTranslateAPI(server.url)
    assert [client.translate(line, "es", "en") for line in LINES] == translations()
    assert client.languages() == [{"code": "es", "name": "Spanish", "targets": ["en"]}]


def test_client(server):
    with Client(server.url) as client:
        assert client.translate(LINES) == translations()
        assert client.translate(LINES[0], source_lang="es", target_lang="en") == translations()[0]
        [found] = client.translations(LINES[:1], n_best=3)
        assert len(found["alternatives"]) == 2
        assert "".join(client.stream(LINES[3])) == translations()[3]
        tokens = client.decode(LINES[0])["hypotheses"][0]["tokens"]
        score = client.score(LINES[0], tokens)["hypotheses"][0]["score"]
        assert score == pytest.approx(
            client.score(LINES[0], translations()[0])["hypotheses"][0]["score"]
        )
        assert client.transcribe(FIRST) == "four zero seven"
        with FIRST.open("rb") as file:
            assert client.transcribe(file, model="spoken-numbers-en") == "four zero seven"
        assert [model["id"] for model in client.models()] == ["bible-es-en", "spoken-numbers-en"]
        for ask in (client.translate, lambda *a, **o: list(client.stream(*a, **o))):
            with pytest.raises(ServerError, match=r"400.*width") as caught:
                ask("a", width=1000)
            assert (caught.value.status, caught.value.field) == (400, "width")


@pytest.mark.parametrize("by_default", [False, True])
def test_the_best_so_far(monkeypatch, by_default):
    """The deadline passes behind the third step, and the request or the server takes the best so far."""
    server, own = dict(on_deadline="raise"), dict(on_deadline="best")
    if by_default:
        server, own = own, {}
    between_steps = EngineThread.between_steps

    def interrupting(engine, load):
        leaving = dict(between_steps(engine, load))
        engine.has_news[0] = engine.must_leave[0] = True  # so that each call is one step
        return leaving | ({i: Interrupted() for i in engine._tickets} if load.age == 3 else {})

    monkeypatch.setattr(EngineThread, "between_steps", interrupting)

    async def test():
        async with app_client(**server) as inner:
            transport = httpx.ASGITransport(inner.app)
            async with AsyncClient("http://localhost", transport=transport) as client:
                return await client.translations(LINES[3], timeout=30, **own)

    [found] = asyncio.run(test())
    assert (found["reason"], found["ended"]) == ("deadline", False)
    assert found["times"]["steps"] == 3 and found["text"] and not found["alternatives"]


@pytest.mark.slow
def test_async_client(server):
    async def test():
        async with AsyncClient(server.url) as client:
            found = await asyncio.gather(*(client.translate(line) for line in LINES))
            assert found == translations()
            text = "".join([delta async for delta in client.stream(LINES[0])])
            assert text == translations()[0] == (await client.translate(LINES[:1]))[0]
            tokens = (await client.decode(LINES[0]))["hypotheses"][0]["tokens"]
            assert (await client.score(LINES[0], tokens))["stop_reason"] == "target"
            assert await client.transcribe(FIRST) == "four zero seven"
            assert len(await client.models()) == 2
            with pytest.raises(ServerError, match="404"):
                await client.translate("a", model="b")
            with pytest.raises(ServerError, match="404"):
                [delta async for delta in client.stream("a", model="b")]

    asyncio.run(test())


def test_a_client_asks_again_when_it_may():
    asked = []

    def answer(request):
        asked.append(json.loads(request.content)["text"])
        if len(asked) < 3:
            return httpx.Response(429, json={"error": "full"}, headers={"Retry-After": "0"})
        return httpx.Response(200, json={"translations": [{"text": "b"}]})

    with Client("http://test", transport=httpx.MockTransport(answer)) as client:
        assert client.translate("a") == "b"
    assert asked == ["a"] * 3
    asked.clear()
    with Client("http://test", retries=1, transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(ServerError, match="429: full"):
            client.translate("a")

    async def test():
        asked.clear()
        async with AsyncClient("http://test", transport=httpx.MockTransport(answer)) as client:
            assert await client.translate("a") == "b"

    asyncio.run(test())


def test_a_client_does_not_wait_for_the_next_day():
    def answer(request):
        return httpx.Response(429, json={"error": "quota"}, headers={"Retry-After": "3600"})

    with Client("http://test", transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(ServerError, match="quota") as found:
            client.translate("a")
    assert found.value.retry_after == 3600


def test_keys_of_clients():
    async def test():
        async with app_client(keys=("good",)) as inner:
            transport = httpx.ASGITransport(inner.app)
            async with AsyncClient("http://localhost", "good", transport=transport) as client:
                assert await client.translate(LINES[0]) == translations()[0]
            async with AsyncClient("http://localhost", "bad", transport=transport) as client:
                with pytest.raises(ServerError, match="401"):
                    await client.translate(LINES[0])

    asyncio.run(test())
