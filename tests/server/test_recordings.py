"""Recordings of any length and any format, through the server and a Whisper model."""

from __future__ import annotations

import asyncio
import io
import json
import mmap
import os
import time
import wave
from pathlib import Path

import pytest
import torch
from starlette.requests import HTTPConnection

import pybeam
from pybeam.server.auth import Keys
from pybeam.server.key_file import table_of
from pybeam.server.models import ServedModel
from pybeam.server.settings import KeyLimits
from pybeam.serving import Service
from pybeam.serving.sound_process import SoundProcesses
from pybeam.speech import SoundFile, VoiceActivity, format_transcript, read_sound, read_wav
from pybeam.speech.whisper import Recording, beam_search
from pybeam.text.tokenizer import Tokenizers
from support import server_app
from support.paths import ROOT
from support.served import wait_for
from support.server_app import run
from support.server_process import SPEECH_MODEL
from support.speech_models import tone

RATE = 16000
FIRST = ROOT / "examples" / "speech" / "first.wav"
PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> ServedModel:
    return server_app.whisper(tmp_path_factory.mktemp("whisper"))


def wav(num: int, seed: int = 0) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", None))
        file.writeframes(tone(num, seed=seed).astype("<i2").tobytes())
    return content.getvalue()


LONG = wav(36000)
# one try for each window, which is soon done
FAST = dict(language="en", temperature="0.4")


def expected(served, content=LONG, **options) -> pybeam.speech.Transcript:
    """The library's transcript; a window has a second."""
    asked = dict(language="en", temperatures=(0.4,)) | options
    asked = pybeam.TranscriptionOptions(**asked)
    own = pybeam.Transcriber(
        served.decoder.model, served.directory, asked, algorithm=beam_search(2)
    )
    [transcript] = own.transcribe([read_wav(io.BytesIO(content), RATE)])
    return transcript


async def send(client, content=LONG, **form):
    return await client.post(PATH, files={"file": ("a", content)}, data=FAST | form)


def sent(served, content=LONG, settings=None, **form):
    return run(lambda client: send(client, content, **form), model=served, **(settings or {}))


@pytest.mark.slow
def test_formats(served):
    transcript = expected(served, language="de")
    assert len(transcript.segments) > 1

    async def test(client):
        form = dict(language="de")
        found = await send(client, **form)
        assert found.json() == {"text": transcript.text}, found.text
        found = await send(client, response_format="text", **form)
        assert found.text == transcript.text + "\n"
        for name in ("srt", "vtt"):
            found = await send(client, response_format=name, **form)
            assert found.text == format_transcript(transcript, name)
        found = (await send(client, response_format="verbose_json", **form)).json()
        whole = json.loads(format_transcript(transcript, "json"))
        assert [found[name] for name in ("text", "language", "duration")] == [
            whole[name] for name in ("text", "language", "duration")
        ]
        for one in found["segments"]:
            assert one.pop("seek") == round(100 * one["start"])
        assert found["segments"] == whole["segments"] and "words" not in found

    run(test, model=served)


@pytest.mark.parametrize("stream", ["false", "true"])
def test_no_transcript_of_a_model_without_times_is_cut_at_the_deadline(monkeypatch, stream):
    """Nothing in the answer would say so, so that it would be taken for a whole one."""
    submit, found = Service._submit, []

    def heard(service, request, options, *others):
        found.append(options["on_deadline"])
        return submit(service, request, options, *others)

    monkeypatch.setattr(Service, "_submit", heard)
    model = pybeam.load_model(SPEECH_MODEL)
    decoder = pybeam.Decoder(model, pybeam.greedy(), log_probs=True)
    served = ServedModel("numbers", str(SPEECH_MODEL), decoder, Tokenizers(SPEECH_MODEL))
    form = {"files": {"file": ("a", FIRST.read_bytes())}, "data": {"stream": stream}}
    answer = run(lambda http: http.post(PATH, **form), model=served, on_deadline="best")
    assert "four zero seven" in answer.text and found == ["raise"]


@pytest.mark.slow
def test_several_temperatures_are_tried_unless_one_is_given(served):
    content = wav(5000)
    transcript = expected(served, content, temperatures=pybeam.TranscriptionOptions().temperatures)
    found = sent(served, content, temperature="0", response_format="verbose_json").json()
    assert [(one["tokens"], one["temperature"]) for one in found["segments"]] == [
        (list(one.tokens), one.temperature) for one in transcript.segments
    ]


@pytest.mark.slow
def test_options_of_a_request(served):
    asked = dict(task="translate", initial_prompt="bad", words=True, language=None)
    transcript = expected(served, **asked)
    form = {
        "task": "translate",
        "prompt": "bad",
        "language": "",
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    }
    found = sent(served, **form).json()
    words = [word for one in transcript.segments for word in one.words]
    assert words and found["language"] == transcript.language
    assert [(one["word"], one["start"], one["end"]) for one in found["words"]] == [
        (word.text, word.start, word.end) for word in words
    ]
    assert [one["tokens"] for one in found["segments"]] == [
        list(one.tokens) for one in transcript.segments
    ]


@pytest.mark.slow
def test_many_at_once_get_what_each_gets_alone(served):
    sounds = [wav(9000 + 8000 * i, seed=i) for i in range(4)]
    texts = [expected(served, one).text for one in sounds]

    async def test(client):
        found = await asyncio.gather(*(send(client, one) for one in sounds))
        assert [one.json()["text"] for one in found] == texts
        found = await send(client, stream="true")
        *deltas, done = [
            json.loads(block.removeprefix("data: ")) for block in found.text.strip().split("\n\n")
        ]
        assert len(deltas) > 1
        assert done == {"type": "transcript.text.done", "text": expected(served).text}
        assert "".join(one["delta"] for one in deltas).strip() == done["text"]

    run(test, model=served)


def test_films_and_compressed_sound(served, tmp_path):
    av = pytest.importorskip("av")
    frame = av.AudioFrame.from_ndarray(tone(20000, seed=1)[None], "s16", "mono")
    frame.sample_rate = RATE
    with av.open(str(tmp_path / "a.flac"), "w") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        resampler = av.AudioResampler(stream.format, "mono", RATE, frame_size=1024)
        for one in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(one))
        container.mux(stream.encode(None))
    found = sent(served, (tmp_path / "a.flac").read_bytes())
    assert found.json() == {"text": expected(served, wav(20000, seed=1)).text}


def test_recordings_count_by_their_seconds(served, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(table_of("a", "one", KeyLimits(audio_seconds_per_day=4, tokens_per_day=1)))

    async def test(client):
        client.headers["Authorization"] = "Bearer one"
        found = [await send(client) for _ in range(3)]
        assert [one.status_code for one in found] == [200, 200, 429]
        left = [one.headers["x-ratelimit-remaining-audio-seconds"] for one in found]
        assert left == ["1", "0", "0"]
        assert {one.headers["x-ratelimit-remaining-tokens"] for one in found} == {"1"}

    run(test, model=served, keys=Keys(path=str(path)))


def test_features_that_are_decoded_count_as_tokens_and_seconds(served, tmp_path):
    """Otherwise sound that a client prepares itself would be free."""
    path = tmp_path / "keys.toml"
    limits = KeyLimits(tokens_per_day=10000, audio_seconds_per_day=1)
    path.write_text(table_of("a", "one", limits))
    features = served.extractor(torch.zeros(RATE))

    async def test(client):
        client.headers["Authorization"] = "Bearer one"
        asked = [client.post("/v1/decode", json={"source": features.tolist()}) for _ in range(2)]
        found, refused = [await one for one in asked]
        assert (found.status_code, refused.status_code) == (200, 429), found.text
        left = int(found.headers["x-ratelimit-remaining-tokens"])
        assert 10000 - left > len(features) >= 100, found.json()
        assert found.headers["x-ratelimit-remaining-audio-seconds"] == "0"
        assert "may use 1 second of sound in a day" in refused.json()["error"]["message"]

    run(test, model=served, keys=Keys(path=str(path)))


@pytest.mark.slow
@pytest.mark.skipif(not SoundProcesses.are_possible(), reason="needs Linux and the package av")
def test_recordings_are_decoded_by_other_processes(served, monkeypatch):
    """A crash there costs one request."""
    read, fatal = SoundFile.blocks, wav(5000, seed=3)

    def blocks(self):
        with self._file() as file:
            if file.read() == fatal:
                os.abort()
        return read(self)

    processes = SoundProcesses()
    with monkeypatch.context() as patch:
        patch.setattr(SoundFile, "blocks", blocks)
        processes.start()

    async def test(client):
        found = await asyncio.gather(*(send(client, one) for one in (LONG, fatal, LONG)))
        assert [one.status_code for one in found] == [200, 422, 200]
        assert "its decoder crashed" in found[1].json()["error"]["message"]
        assert {found[0].json()["text"], found[2].json()["text"]} == {expected(served).text}

    try:
        run(test, model=served, sounds=processes)
    finally:
        processes.stop()


@pytest.mark.skipif(not SoundProcesses.are_possible(), reason="needs Linux and the package av")
def test_whoever_leaves_a_recording_pays_for_what_was_read_and_leaves_no_process(
    served, monkeypatch, tmp_path
):
    read, slow = SoundFile.blocks, wav(5000, seed=3)

    def blocks(self):
        with self._file() as file:
            is_slow = file.read() == slow
        for second in range(300 * is_slow):
            seconds[0] = min(second, 255)
            time.sleep(0.03)
            yield torch.zeros(RATE)
        yield from read(self)

    path, seconds = tmp_path / "keys.toml", mmap.mmap(-1, 1)  # of all processes
    path.write_text(table_of("a", "one", KeyLimits(audio_seconds_per_day=1000)))
    processes = SoundProcesses()
    with monkeypatch.context() as patch:
        patch.setattr(SoundFile, "blocks", blocks)
        processes.start()
    maker = processes._server._pid
    children = Path(f"/proc/{maker}/task/{maker}/children")

    async def test(client):
        client.headers["Authorization"] = "Bearer one"
        task = asyncio.ensure_future(send(client, slow))
        # a pipe holds less than two seconds, so the server has read some
        await asyncio.to_thread(wait_for, lambda: seconds[0] >= 6)
        assert children.read_text()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        start = time.monotonic()
        await asyncio.to_thread(wait_for, lambda: not children.read_text())
        assert time.monotonic() - start < 4
        after = await client.get("/v1/models")
        assert int(after.headers["x-ratelimit-remaining-audio-seconds"]) < 999

    try:
        run(test, model=served, sounds=processes, keys=Keys(path=str(path)))
    finally:
        processes.stop()


@pytest.mark.skipif(not SoundProcesses.are_possible(), reason="needs Linux and the package av")
def test_a_server_that_can_make_no_process_says_so(served):
    processes = SoundProcesses()
    processes.stop()
    found = run(send, model=served, sounds=processes)
    assert found.status_code == 503 and int(found.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("form", "settings", "status", "message"),
    [
        ({}, dict(max_audio_seconds=2.0), 422, "the recording must have at most 2 s of sound"),
        ({}, dict(max_recordings=0), 429, "at most 0 recordings are transcribed at a time"),
        ({}, dict(timeout=1e-3), 504, "the recording was not transcribed within 0.001 seconds"),
        ({"language": "xx"}, {}, 422, "must be one that the model"),
        ({"temperature": "2"}, {}, 400, "less than or equal to 1"),
        ({"timestamp_granularities[]": "word"}, {}, 400, "needs response_format=verbose_json"),
        ({"chunking_strategy": "none"}, {}, 400, "`chunking_strategy` must be"),
        ({"chunking_strategy": '{"type": "server_vad", "a": 1}'}, {}, 400, "must have no options"),
        (
            {"include[]": "logprobs", "response_format": "text"},
            {},
            400,
            "needs response_format=json",
        ),
        ({"stream": "true", "language": "xx"}, {}, 422, "must be one that the model"),
    ],
)
def test_what_is_refused(served, form, settings, status, message):
    found = sent(served, settings=settings, **form)
    assert found.status_code == status, found.text
    assert message in found.json()["error"]["message"]


def test_no_sound_is_refused(served):
    found = sent(served, b"no sound" * 99)
    assert found.status_code == 422 and "cannot be read as sound" in found.text


def test_a_client_that_goes_takes_its_windows_along(served):
    async def test(client):
        calls = client.app.state.calls
        task = asyncio.ensure_future(send(client, wav(400000)))
        while not any(calls.service.status(name).num_running for name in calls.service.models):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while any(calls.service.status(name).num_running for name in calls.service.models):
            await asyncio.sleep(0.01)
        with calls.recordings.one(HTTPConnection({"type": "http", "headers": []})):
            pass
        assert (await send(client)).json() == {"text": expected(served).text}

    run(test, model=served, max_recordings=1)


def test_an_upload_that_names_hosts_or_lasts_too_long_is_refused(served):
    session = (
        b"v=0\no=- 0 0 IN IP4 0.0.0.0\ns=x\nc=IN IP4 0.0.0.0\nt=0 0\nm=audio 45678 RTP/AVP 0\n"
    )
    for form in ({}, {"stream": "true"}):
        found = sent(served, session, **form)
        assert found.status_code == 422 and "cannot be read as sound" in found.text
        found = sent(served, LONG, settings={"max_audio_seconds": 1.0}, **form)
        assert found.status_code == 422 and "must have at most 1 s of sound" in found.text


@pytest.mark.slow
def test_translations_into_english(served):
    transcript = expected(served, task="translate", language=None)

    async def test(client):
        files, form = (
            {"file": ("a", LONG)},
            {"temperature": "0.4", "response_format": "verbose_json"},
        )
        found = await client.post("/v1/audio/translations", files=files, data=form)
        return found.json()

    found = run(test, model=served)
    assert (found["text"], found["task"]) == (transcript.text, "translate")


@pytest.mark.slow
def test_a_chunking_strategy_cuts_where_nobody_speaks(served):
    pytest.importorskip("silero_vad", reason="the package silero-vad is in the extra `vad`")
    pytest.importorskip("av", reason="the package av is in the extra `speech`")
    samples = read_sound(ROOT / "examples" / "speech" / "first.wav", RATE)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", None))
        file.writeframes((32767 * samples).numpy().astype("<i2").tobytes())
    sound = read_wav(io.BytesIO(content.getvalue()), RATE)
    stretches = VoiceActivity()(sound)
    assert stretches
    options = pybeam.TranscriptionOptions(language="en", temperatures=(0.4,), windows="batched")
    own = pybeam.Transcriber(
        served.decoder.model, served.directory, options, algorithm=beam_search(2)
    )
    [transcript] = own.transcribe([Recording(sound, stretches)])
    for strategy in ("auto", '{"type": "server_vad"}'):
        found = sent(served, content.getvalue(), chunking_strategy=strategy)
        assert found.json() == {"text": transcript.text}, found.text
