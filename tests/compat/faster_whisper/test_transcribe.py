"""What `WhisperModel` and its pipeline do with recordings, and what they refuse, without faster-whisper."""

import io
import logging
import types

import numpy as np
import pytest
import torch

import pybeam
from pybeam.compat.ctranslate2.computing import Computing
from pybeam.compat.faster_whisper import (
    BatchedInferencePipeline,
    VadOptions,
    WhisperModel,
    decode_audio,
    download,
    download_model,
    tokens,
    transcribe,
)
from support.published_whisper import SYMBOLS
from support.speech_models import tone, write_wav

FAST = dict(language="en", temperature=0.0, beam_size=1)
# no window is skipped
LENIENT = dict(compression_ratio_threshold=None, log_prob_threshold=None, no_speech_threshold=None)


def test_segments_come_window_by_window(model, samples, monkeypatch):
    """Nothing is transcribed before segments are asked for, and then one window at a time."""
    stream, told = pybeam.Transcriber.stream, []

    def watched(self, recordings):
        for news in stream(self, recordings):
            told.append(news.position)
            yield news

    monkeypatch.setattr(pybeam.Transcriber, "stream", watched)
    segments, info = model.transcribe(samples, **FAST, no_speech_threshold=None)
    assert isinstance(segments, types.GeneratorType) and not told
    assert (info.duration, info.language, info.language_probability) == (41, "en", 1)
    first = next(segments)
    assert (first.id, first.seek) == (1, 0) and told and told[-1] < 41
    rest = list(segments)
    assert [one.id for one in rest] == list(range(2, 2 + len(rest)))
    assert told[-1] == 41 and rest[-1].seek > 0


def test_recordings_in_all_forms(model, tmp_path):
    whole = tone(30_000, 3)
    write_wav(tmp_path / "a.wav", whole, 16000)
    samples = whole.astype(np.float32) / 2**15
    expected = list(model.transcribe(samples, **FAST)[0])
    content = (tmp_path / "a.wav").read_bytes()
    for form in (
        str(tmp_path / "a.wav"),
        tmp_path / "a.wav",
        io.BytesIO(content),
        samples.astype(np.float64),
        torch.from_numpy(samples),
    ):
        assert list(model.transcribe(form, **FAST)[0]) == expected


def test_both_channels(tmp_path):
    pytest.importorskip("av")
    left, right = tone(4000, 1), tone(4000, 2)
    write_wav(tmp_path / "a.wav", np.stack([left, right], 1).ravel(), 16000, channels=2)
    found = decode_audio(str(tmp_path / "a.wav"), split_stereo=True)
    assert [one.dtype for one in found] == [np.float32] * 2
    for own, channel in zip(found, (left, right), strict=True):
        assert np.array_equal(own, channel.astype(np.float32) / 2**15)
    mixed = decode_audio(str(tmp_path / "a.wav"))
    assert mixed.shape == (4000,) and np.allclose(mixed, sum(found) / 2, atol=1e-4)


def test_nothing_is_heard_in_nothing(model):
    for one in (model, BatchedInferencePipeline(model)):
        segments, info = one.transcribe(np.zeros(0, np.float32), vad_filter=False)
        assert list(segments) == [] and info.duration == 0
        assert info.language in model.supported_languages
    assert model.detect_language(np.zeros(0, np.float32))[0] in model.supported_languages


def test_no_speech_at_all(model, samples, monkeypatch):
    monkeypatch.setattr(transcribe, "get_speech_timestamps", lambda *_: [])
    segments, info = model.transcribe(samples, vad_filter=True)
    assert list(segments) == [] and (info.duration, info.duration_after_vad) == (41, 0)
    assert info.vad_options == VadOptions()


@pytest.mark.slow
def test_the_batch_changes_nothing(model, samples):
    clips = [{"start": start, "end": start + 6.5} for start in range(0, 34, 6)]
    # a random model writes timestamps even where it is told not to
    asked = dict(language="en", clip_timestamps=clips, suppress_tokens=[*range(50364, 51865)])
    pipeline = BatchedInferencePipeline(model)
    alone = list(pipeline.transcribe(samples, batch_size=1, **asked)[0])
    assert alone == list(pipeline.transcribe(samples, batch_size=16, **asked)[0])
    assert [(one.start, one.end) for one in alone] == [(one["start"], one["end"]) for one in clips]


def test_text_behind_the_last_timestamps_is_kept(model, directory, samples):
    """faster-whisper drops it in batched windows."""
    asked = dict(
        language="en", clip_timestamps=[{"start": 0, "end": 12.5}], without_timestamps=False
    )
    segments, info = BatchedInferencePipeline(model).transcribe(samples, **asked)
    options = pybeam.TranscriptionOptions(
        language="en",
        windows="batched",
        temperatures=[0.0],
        compression_ratio_threshold=None,
        log_prob_threshold=None,
        no_speech_threshold=None,
        suppress_tokens=info.transcription_options.suppress_tokens,
    )
    features = model.calls.features(samples[:200_000])[:-1]
    [expected] = pybeam.Transcriber(model.model, directory, options).transcribe([features])
    found = [(one.tokens, one.start, one.end) for one in segments]
    assert found == [
        (list(one.tokens), round(one.start, 3), round(one.end, 3)) for one in expected.segments
    ]
    assert found


@pytest.mark.slow
def test_a_model_of_english_alone(english, samples, caplog):
    assert english.supported_languages == ["en"]
    asked = FAST | LENIENT
    segments, info = english.transcribe(
        samples[:160000], **asked | dict(language="de", multilingual=True)
    )
    assert (info.language, info.language_probability, info.all_language_probs) == ("en", 1, None)
    assert not info.transcription_options.multilingual
    found = list(segments)
    assert found and found == list(english.transcribe(samples[:160000], **asked)[0])
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.name for record in warnings] == ["faster_whisper"] * 2
    with pytest.raises(ValueError, match="knows English alone"):
        english.detect_language(samples[:16000])


def test_suppressed_tokens(model):
    tokenizer = model.hf_tokenizer
    assert tokens.suppressed(tokenizer, []) == [] and tokens.suppressed(tokenizer, None) is None
    control = {tokenizer.token_to_id(token) for token in tokens.CONTROL} - {None}
    assert set(tokens.suppressed(tokenizer, [300, 299])) == {299, 300} | control
    found = tokens.suppressed(tokenizer, [-1])
    symbols = {tokenizer.token_to_id(symbol) for symbol in SYMBOLS}
    assert symbols | control <= set(found) and list(found) == sorted(found)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(language="xx"), ValueError, "`language` must be one that the model .* knows"),
        (dict(task="sing"), ValueError, "`task` must be one"),
        (dict(chunk_length=31), ValueError, "`chunk_length` must be at most the 30 s"),
        (dict(clip_timestamps="1,a"), ValueError, "`clip_timestamps` must be seconds joined"),
        (dict(clip_timestamps=[5, 9, 2]), ValueError, "`clip_timestamps` must be in the order"),
        (dict(beam_size=0), ValueError, "`width` must be"),
        (dict(vad_filter=True, vad_parameters={"onset": 1}), TypeError, "onset"),
        (dict(language_detection_segments=0), ValueError, "`language_detection_segments`"),
    ],
)
def test_wrong_options(model, samples, options, error, message):
    with pytest.raises(error, match=message):
        model.transcribe(samples, **options)


@pytest.mark.parametrize(
    ("sound", "error", "message"),
    [
        (np.zeros(9, np.int16), TypeError, "`audio` must hold floats"),
        (np.zeros((2, 9), np.float32), ValueError, r"has the shape \[2, 9\]; mix channels down"),
        ("no.wav", FileNotFoundError, "no.wav"),
    ],
)
def test_what_is_no_recording(model, sound, error, message):
    with pytest.raises(error, match=message):
        model.transcribe(sound)


def test_long_recordings_need_windows(model, samples):
    pipeline = BatchedInferencePipeline(model)
    with pytest.raises(ValueError, match="`vad_filter` must be True for 30 s of sound or more"):
        pipeline.transcribe(samples, vad_filter=False)
    with pytest.raises(ValueError, match="`chunk_length` must be at most the 30 s"):
        pipeline.transcribe(samples, vad_filter=False, chunk_length=50)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(compute_type="int4"), ValueError, "Invalid compute type: int4; it must be one of"),
        (dict(device_index=[0, 1]), ValueError, "`device_index` must be one number"),
        (dict(files={"model.bin": b""}), ValueError, "`files` must be left out"),
        (dict(tensor_parallel=True), TypeError, "`tensor_parallel` must be left out"),
    ],
)
def test_wrong_models(directory, options, error, message):
    with pytest.raises(error, match=message):
        WhisperModel(directory, **options)


def test_devices():
    assert Computing.of("cuda", [2], "int8_float16") == Computing("cuda", 2, "float16")
    found = "cuda" if torch.cuda.is_available() else "cpu"
    assert Computing.of("auto", 0, "default") == Computing(found, 0, "auto")


def test_names_that_are_not_there(model):
    with pytest.raises(TypeError, match="`model` must be a WhisperModel of pybeam, but is 'tiny'"):
        BatchedInferencePipeline("tiny")
    with pytest.raises(AttributeError, match="WhisperModel has no `generate_segments`; it has"):
        model.generate_segments  # noqa: B018
    with pytest.raises(
        ValueError, match="`size_or_id` must be a folder, a name on the hub or one of"
    ):
        download_model("huge")


def test_names_of_models(directory, model, tmp_path, monkeypatch):
    """Sizes are names on the hub, and all arguments of a download are handed on."""
    asked = []

    def fetch(name, **options):
        asked.append((name, options))
        return directory

    monkeypatch.setattr(download, "fetch", fetch)
    plain = dict(revision=None, token=None, cache_dir=None, offline=False, progress=False)
    assert download_model("tiny.en") == str(directory)
    assert asked.pop() == ("Systran/faster-whisper-tiny.en", plain)
    found = WhisperModel(
        "me/own",
        "cpu",
        download_root="cache",
        local_files_only=True,
        revision="v1",
        use_auth_token="x",
    )
    assert repr(found) == repr(model)
    given = dict(revision="v1", token="x", cache_dir="cache", offline=True)
    assert asked.pop() == ("me/own", plain | given)
    for token, expected in ((True, None), (False, False)):
        download_model("a/b", use_auth_token=token)
        assert asked.pop() == ("a/b", plain | {"token": expected})
    target = tmp_path / "copy"
    assert download_model("turbo", str(target)) == str(target)
    assert asked == [("mobiuslabsgmbh/faster-whisper-large-v3-turbo", plain)]
    assert sorted(one.name for one in target.iterdir()) == sorted(
        one.name for one in directory.iterdir()
    )


def test_arguments_of_a_model(directory, model, samples):
    num_threads = torch.get_num_threads()
    try:
        other = WhisperModel(
            str(directory), "cpu", [0], "int8", 1, num_workers=2, flash_attention=False
        )
    finally:
        torch.set_num_threads(num_threads)
    assert (
        repr(other.model) == repr(pybeam.load_model(directory, dtype="int8")) != repr(model.model)
    )
    assert list(other.transcribe(samples[:80000], **FAST)[0])
