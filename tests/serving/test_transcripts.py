"""Transcripts of a service whose engines are processes are those of one whose engines are threads."""

from __future__ import annotations

import asyncio

import pytest

import pybeam
from pybeam.serving.transcripts import ServedTranscripts
from pybeam.speech.whisper import beam_search
from support.tiny_whisper import OPTIONS, save_whisper, sounds


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    # it hears several languages
    save_whisper(path, 4)
    return path


def transcripts(directory, recordings, **engines):
    """A service tells of recordings whose languages are not given."""
    model = pybeam.load_model(directory)
    served = ServedTranscripts(
        "w", model, str(directory), beam_search(2), pybeam.Fifo(2), options=OPTIONS
    )
    loop = served.recording_loop(OPTIONS)

    async def transcript(service, recording):
        found = served.transcribe(loop, pybeam.Recording.of(recording), service.decode)
        *_, last = [news async for news in found]
        return last.transcript

    async def all_of_them():
        service = pybeam.Service({"w": served.decoder}, **engines).start(warm_up=False)
        try:
            return await asyncio.gather(*(transcript(service, one) for one in recordings))
        finally:
            await asyncio.to_thread(service.close)

    return asyncio.run(all_of_them())


def test_processes_hear_what_threads_hear(directory):
    """The language, and whether anybody speaks, come from log-probabilities beside the results."""
    recordings = sounds(250, 64, seed=6)
    expected = transcripts(directory, recordings)
    assert transcripts(directory, recordings, engines=2, processes=True) == expected
    assert all(0 < one.language_probability < 1 for one in expected)
    heard = [segment.no_speech_probability for one in expected for segment in one.segments]
    assert heard and all(0 < one < 1 for one in heard)
