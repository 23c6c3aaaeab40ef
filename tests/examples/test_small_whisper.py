"""The small Whisper of the examples: two recordings, beside transformers, with timestamps."""

import dataclasses
import random
import shutil

import pytest
import torch
import transformers

import pybeam
from examples.speech import spoken_verses
from pybeam.cli import main
from pybeam.speech import load_feature_extractor, load_transcription, read_wav
from support.paths import ROOT

MODEL = ROOT / "examples" / "models" / "spoken-verses-en"
SPEECH = ROOT / "examples" / "speech" / "phrases"
SOUNDS = {"first.wav": "and he said unto them", "second.wav": "but i have said unto you"}
TIMES = 0.96, 2.25  # where first.wav was made to have its phrase, in seconds


def features_of(name: str) -> torch.Tensor:
    extract = load_feature_extractor(MODEL)
    return extract(read_wav(SPEECH / name, extract.sampling_rate))


def test_recordings_from_the_shell(tmp_path):
    paths = [str(SPEECH / name) for name in SOUNDS]
    output = tmp_path / "texts"
    options = ["--language", "en", "--scores", "--output", str(output)]
    assert main(["transcribe", "--model", str(MODEL), *options, *paths]) == 0
    texts = [line.split("\t")[1] for line in output.read_text().splitlines()]
    assert texts == list(SOUNDS.values())


@pytest.mark.slow
@torch.inference_mode()
def test_the_same_as_transformers():
    """Features of a window of 10 seconds, the tokenizer, and what `generate` finds."""
    original = transformers.WhisperForConditionalGeneration.from_pretrained(
        MODEL, dtype=torch.float32
    )
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(MODEL)
    tokenizer = transformers.WhisperTokenizer.from_pretrained(MODEL)
    decode, asked = pybeam.load_tokenizer(MODEL).decode, load_transcription(MODEL)
    samples = [read_wav(SPEECH / name, 16000).numpy() for name in SOUNDS]
    expected = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features
    found = torch.stack([features_of(name).t() for name in SOUNDS])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)

    search = pybeam.compat.huggingface.beam_search(5, max_new_tokens=30)
    search = pybeam.Decoder(
        pybeam.load_model(MODEL), dataclasses.replace(search, processors=asked.processors)
    )
    requests = [pybeam.Request(features.t(), prefix=asked.prefix) for features in found]
    theirs = original.generate(expected, num_beams=5, max_new_tokens=30)
    for result, tokens in zip(search.decode(requests), theirs, strict=True):
        spoken = tokenizer.decode(tokens, skip_special_tokens=True)
        assert decode(result.hypotheses[0].tokens) == spoken.strip()


def test_timestamps():
    """Without the token that forbids them, a phrase stands between its beginning and its end."""
    prefix = load_transcription(MODEL).prefix[:-1]
    decoder = pybeam.Decoder(pybeam.load_model(MODEL), pybeam.fixed_beam(5))
    [result] = decoder.decode([pybeam.Request(features_of("first.wav"), prefix=prefix)])
    tokenizer = transformers.WhisperTokenizer.from_pretrained(MODEL)
    offsets = tokenizer.decode(result.hypotheses[0].tokens, output_offsets=True)["offsets"]
    assert [one["text"].strip() for one in offsets] == ["and he said unto them"]
    assert offsets[0]["timestamp"] == pytest.approx(TIMES, abs=0.2)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("espeak-ng") and shutil.which("flite")),
    reason="needs `apt-get install espeak-ng flite`",
)
def test_word_errors_on_synthesised_phrases():
    """Voices that were not heard in training, moderate noise."""
    jiwer = pytest.importorskip("jiwer", reason="needs `pip install jiwer`")
    texts = ["and god said", "in the name of the lord", "the children of israel"]
    rng = random.Random(1)
    heard = [
        spoken_verses.recording([clip], rng, (20.0, 20.0))
        for clip in spoken_verses.clips(texts, "test", seed=1)
    ]
    extract, asked = load_feature_extractor(MODEL), load_transcription(MODEL)
    requests = [pybeam.Request(extract(one.samples), prefix=asked.prefix) for one in heard]
    search = pybeam.fixed_beam(5, processors=asked.processors)
    results = pybeam.Decoder(pybeam.load_model(MODEL), search).decode(requests)
    decode = pybeam.load_tokenizer(MODEL).decode
    found = [decode(result.hypotheses[0].tokens) for result in results]
    assert jiwer.wer([one.text for one in heard], found) < 0.5
