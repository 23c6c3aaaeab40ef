"""Speech models: `Recognizer` writes a recording as a whole, `WhisperRecognizer` one of any length."""

from __future__ import annotations

import asyncio

import pytest
import torch

import pybeam
from pybeam.speech import read_sound
from pybeam.speech.utterances import LIVE_RULES
from pybeam.speech.voice_activity import FRAME
from support.paths import ROOT
from support.speech_models import tone, write_wav
from support.spoken import frank_activity

MODELS = ROOT / "examples" / "models"
PHRASE = next((ROOT / "examples" / "speech" / "phrases").glob("*.wav"))
FILES = [ROOT / "examples" / "speech" / name for name in ("first.wav", "second.wav")]


@pytest.fixture(scope="module")
def numbers():
    pytest.importorskip("kaldi_native_fbank")
    return pybeam.load(MODELS / "spoken-numbers-en", device="cpu")


@pytest.fixture(scope="module")
def whisper():
    return pybeam.load(MODELS / "spoken-verses-en", device="cpu")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "tone.wav"
    write_wav(path, tone(40000, seed=3), 16000)
    return path


def expected_numbers(numbers):
    extract = pybeam.speech.load_feature_extractor(numbers.path)
    tokenizer = pybeam.load_tokenizer(numbers.path)
    features = [extract(read_sound(path, extract.sampling_rate)) for path in FILES]
    results = numbers.decoder.decode(features)
    return [tokenizer.decode(result.hypotheses[0].tokens) for result in results]


def test_texts_are_those_of_four_objects(numbers):
    expected = expected_numbers(numbers)
    assert numbers.transcribe(FILES) == expected and all(expected)
    assert numbers.transcribe(str(FILES[0])) == expected[0]
    samples = read_sound(FILES[1], numbers.sampling_rate)
    assert numbers.transcribe(samples) == numbers.transcribe(samples.numpy()) == expected[1]
    with open(FILES[0], "rb") as file:
        assert numbers.transcribe(file) == expected[0]
    assert "".join(numbers.stream(FILES[0])) == expected[0]
    assert asyncio.run(numbers.atranscribe(FILES)) == expected


def test_a_file_that_is_missing_harms_no_other(numbers):
    first, error = numbers.transcribe([FILES[0], "nowhere.wav"], on_error="return")
    assert first == numbers.transcribe(FILES[0]) and isinstance(error, FileNotFoundError)
    with pytest.raises(TypeError, match="`recordings` must be the name of a sound file"):
        numbers.transcribe([FILES[0], 7])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda samples: (samples * 32767).astype("int16"),
            "must be floats from -1 to 1, but are int16",
        ),
        (lambda samples: samples[None], r"must have samples \[n\], but has the shape \[1, "),
        (lambda samples: samples * float("nan"), "finite samples, but holds NaN"),
    ],
)
def test_samples_that_are_none(numbers, change, message):
    samples = read_sound(FILES[0], numbers.sampling_rate)
    with pytest.raises(ValueError, match=message):
        numbers.transcribe(change(samples.numpy()))


@pytest.mark.slow
def test_samples_of_other_kinds(numbers, whisper):
    samples = read_sound(FILES[0], numbers.sampling_rate).numpy()
    backwards = samples[::-1].copy()[::-1]
    expected = numbers.transcribe(samples)
    assert numbers.transcribe([backwards, samples.astype("float64")]) == [expected] * 2
    whole = whisper.transcribe(samples).transcript
    other = (samples * 32767).astype("int16")
    first, error = whisper.transcribe([backwards, other], on_error="return")
    assert first == whole and "must be floats from -1 to 1" in str(error)
    with pytest.raises(ValueError, match="`on_error` must be"):
        whisper.transcribe(samples, on_error="ignore")


@pytest.mark.slow
def test_segments_come_as_they_settle(whisper, sound):
    transcriber = pybeam.Transcriber(whisper.model, whisper.path)
    samples = read_sound(sound, 16000)
    [expected] = transcriber.transcribe([samples])
    found = whisper.transcribe(sound)
    assert tuple(found) == expected.segments and found.transcript == expected
    assert str(whisper.transcribe(samples)) == expected.text
    assert whisper.transcribe(samples.numpy()).transcript == expected
    again = whisper.transcribe(sound)
    assert again.transcript == expected and tuple(again) == expected.segments
    assert tuple(whisper.stream(sound)) == expected.segments


@pytest.mark.slow
def test_several_recordings_have_transcripts(whisper, sound):
    whole = whisper.transcribe(sound).transcript
    assert whisper.transcribe([sound, sound]) == [whole, whole]
    assert list(whisper.stream(iter([sound]))) == [whole]
    assert whisper.transcribe([]) == []
    first, error, last = whisper.transcribe([sound, "nowhere.wav", sound], on_error="return")
    assert (first, last) == (whole, whole) and isinstance(error, pybeam.TranscribeError)
    with pytest.raises(pybeam.TranscribeError, match="recording 1 failed"):
        whisper.transcribe([sound, "nowhere.wav"])


def test_options_of_a_transcription(whisper, sound):
    plain = pybeam.TranscriptionOptions(timestamps=False, temperatures=(0.0,))
    transcriber = pybeam.Transcriber(whisper.model, whisper.path, plain)
    [expected] = transcriber.transcribe([read_sound(sound, 16000)])
    found = whisper.transcribe(sound, timestamps=False, temperatures=(0.0,))
    assert found.transcript == expected
    with pytest.raises(TypeError, match="beam_size"):
        whisper.transcribe(sound, beam_size=5)
    narrow = whisper.transcribe(sound, search=pybeam.speech.whisper.beam_search(1))
    assert narrow.transcript.duration == whisper.transcribe(sound).transcript.duration


@pytest.mark.slow
def test_live_sound(whisper, monkeypatch):
    activity = frank_activity(monkeypatch, LIVE_RULES)
    phrase = read_sound(PHRASE, 16000)
    whole = torch.cat([phrase, torch.zeros(16000), phrase])
    whole = whole[: len(whole) // FRAME * FRAME].view(-1, FRAME)
    # the sound says itself where speech is
    whole[:, 0] = torch.where(whole.abs().amax(1) > 0, 0.9, 0.1)
    whole = whole.view(-1)
    how = dict(temperatures=(0.0,), no_speech_threshold=None)
    transcriber = pybeam.Transcriber(
        whisper.model, whisper.path, pybeam.TranscriptionOptions(**how)
    )
    expected = list(transcriber.live([whole], activity=activity))
    assert len(expected) > 1
    assert list(whisper.live(whole.split(999), activity=activity, **how)) == expected

    async def microphone():
        for chunk in whole.split(4000):
            yield chunk

    async def both():
        return [
            [one async for one in whisper.alive(chunks, activity=activity, **how)]
            for chunks in (microphone(), whole.split(9000))
        ]

    assert asyncio.run(both()) == [expected, expected]


@pytest.mark.slow
def test_asynchronous_callers_get_the_same(whisper, sound):
    async def main():
        segments = [one async for one in whisper.astream(sound)]
        return segments, await whisper.atranscribe(sound), await whisper.atranscribe([sound])

    segments, transcript, several = asyncio.run(main())
    assert transcript == whisper.transcribe(sound).transcript
    assert tuple(segments) == transcript.segments and several == [transcript]


def test_a_speech_model_that_is_wrapped(tmp_path):
    transformers = pytest.importorskip("transformers")
    from support.text_folders import VOCAB, save_letters

    config = transformers.MoonshineConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        eos_token_id=2,
        pad_token_id=1,
        bos_token_id=0,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    network = transformers.MoonshineForConditionalGeneration(config).eval()
    network.save_pretrained(tmp_path)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    save_letters(tmp_path)
    recognizer = pybeam.load(tmp_path, device="cpu")
    assert type(recognizer) is pybeam.tasks.Recognizer and recognizer.sampling_rate == 16000
    samples = torch.from_numpy(tone(8000, seed=1)) / 32768
    search = pybeam.compat.huggingface.beam_search(3, max_new_tokens=6)
    output = recognizer.transcribe(samples, search=search)
    extract = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)
    given = extract(samples.numpy(), sampling_rate=16000, return_tensors="pt")
    [expected] = network.generate(given.input_values, num_beams=3, max_new_tokens=6).tolist()
    tokens = output.hypothesis.tokens
    assert expected[1 : len(tokens) + 1] == tokens and tokens


def test_a_whisper_of_ctranslate2(tmp_path):
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    from support.ctranslate2_folders import convert_whisper
    from support.tiny_whisper import save_whisper, sounds

    original, converted = tmp_path / "original", tmp_path / "converted"
    original.mkdir()
    save_whisper(original)
    convert_whisper(original, converted)
    options = dict(language="en", temperatures=(0.0,), max_new_tokens=20)
    found = [
        pybeam.load(path, device="cpu").transcribe(sounds(150, 90), **options)
        for path in (original, converted)
    ]
    texts = [[transcript.text for transcript in one] for one in found]
    assert texts[0] == texts[1] and all(texts[0])


@pytest.mark.parametrize("recordings", [7, None, b"x", [7], {"a": 1}])
def test_what_is_no_recording_is_refused_at_the_door(whisper, recordings):
    with pytest.raises(TypeError, match="`recordings` must be the name of a sound file"):
        whisper.transcribe(recordings)
