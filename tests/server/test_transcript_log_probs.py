"""Log-probabilities of transcripts, in the shapes of OpenAI's answers and streams."""

from __future__ import annotations

import io
import json
import wave

import pytest

import pybeam
from pybeam.speech import read_wav
from pybeam.speech.whisper import beam_search
from support import server_app
from support.speech_models import tone

RATE = 16000


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("stream", ["false", "true"])
def test_each_token_that_has_text_has_one(tmp_path, stream):
    """In a stream it comes with its window, and again at the end."""
    served, content = server_app.whisper(tmp_path), io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", None))
        file.writeframes(tone(36000, seed=0).astype("<i2").tobytes())
    form = {"language": "en", "temperature": "0.4", "include[]": "logprobs", "stream": stream}

    async def send(client):
        files = {"file": ("a", content.getvalue())}
        return await client.post("/v1/audio/transcriptions", files=files, data=form)

    found = server_app.run(send, model=served)
    events = [json.loads(line[6:]) for line in found.text.split("\n") if line[:6] == "data: "]
    *deltas, whole = events or [found.json()]
    options = pybeam.TranscriptionOptions(language="en", temperatures=(0.4,))
    own = pybeam.Transcriber(
        served.decoder.model, served.directory, options, algorithm=beam_search(2)
    )
    [transcript] = own.transcribe([read_wav(io.BytesIO(content.getvalue()), RATE)])
    _, log_probs = served.transcripts.text_tokens(transcript.segments)
    assert [one["logprob"] for one in whole["logprobs"]] == log_probs
    data = bytes(byte for one in whole["logprobs"] for byte in one["bytes"])
    assert data.decode().strip() == whole["text"] == transcript.text != ""
    if events:
        assert len(deltas) > 1
        assert [one for delta in deltas for one in delta["logprobs"]] == whole["logprobs"]
