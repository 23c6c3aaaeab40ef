"""Transcripts beside faster-whisper's, from the same tiny random weights converted for CTranslate2."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

import pybeam
from support.converted_whisper import convert
from support.speech_models import tone
from support.tiny_whisper import (
    BEGIN,
    NO_STAMPS,
    NUM_POSITIONS,
    SPACE,
    STAMPS,
    SUPPRESSED,
    WINDOW,
    save_whisper,
)

pytest.importorskip("ctranslate2")
faster_whisper = pytest.importorskip("faster_whisper")

OPTIONS = pybeam.TranscriptionOptions(
    language="en", temperatures=(0.0,), max_initial_timestamp=0.6, no_speech_threshold=None
)
SECONDS = (1.0, 0.5, 2.4, 5.3)
# a random model writes timestamps even where it is told not to
NO_STAMPS_AT_ALL = (*SUPPRESSED, *range(NO_STAMPS, BEGIN + len(STAMPS)))


class Multilingual:
    """CTranslate2 takes a model for one of English alone by the size of its vocabulary."""

    is_multilingual = True

    def __init__(self, model) -> None:
        self._model = model

    def __getattr__(self, name: str):
        return getattr(self._model, name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    directory, converted = tmp_path_factory.mktemp("whisper"), tmp_path_factory.mktemp("converted")
    # the converter takes one number of heads and of inner units for both stacks
    model = save_whisper(directory, decoder_attention_heads=2, decoder_ffn_dim=40)
    convert(model, directory, converted)
    theirs = faster_whisper.WhisperModel(str(converted), device="cpu", cpu_threads=1)
    theirs.model, theirs.max_length = Multilingual(theirs.model), NUM_POSITIONS
    # it fills windows up to 30 seconds, and those of this model have one
    pad = functools.partial(faster_whisper.transcribe.pad_or_trim, length=WINDOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faster_whisper.transcribe, "pad_or_trim", pad)
        yield directory, theirs


def sounds() -> list[np.ndarray]:
    return [
        tone(int(16000 * seconds), seed=i).astype(np.float32) / 2**15
        for i, seconds in enumerate(SECONDS)
    ]


def given(options: pybeam.TranscriptionOptions, width: int = 5) -> dict:
    """The same options by their names there."""
    return dict(
        language=options.language,
        task=options.task or "transcribe",
        beam_size=width,
        temperature=list(options.temperatures),
        compression_ratio_threshold=options.compression_ratio_threshold,
        log_prob_threshold=options.log_prob_threshold,
        no_speech_threshold=options.no_speech_threshold,
        condition_on_previous_text=options.condition_on_previous_text,
        initial_prompt=options.initial_prompt,
        hotwords=options.hotwords,
        suppress_tokens=list(options.suppress_tokens or SUPPRESSED),
        without_timestamps=not options.timestamps,
        max_initial_timestamp=options.max_initial_timestamp,
        word_timestamps=options.words,
        prefix=options.prefix,
        hallucination_silence_threshold=options.hallucination_silence_threshold,
    )


def assert_same(transcript, segments) -> None:
    segments = list(segments)
    assert [list(one.tokens) for one in transcript.segments] == [one.tokens for one in segments]
    for ours, theirs in zip(transcript.segments, segments, strict=True):
        assert ours.text == theirs.text
        assert (ours.start, ours.end) == pytest.approx((theirs.start, theirs.end), abs=1e-6)
        assert ours.average_log_prob == pytest.approx(theirs.avg_logprob, abs=1e-3)
        assert ours.compression_ratio == pytest.approx(theirs.compression_ratio)
        assert ours.no_speech_probability == pytest.approx(theirs.no_speech_prob, rel=1e-2)
        assert ours.temperature == theirs.temperature
        assert [one.text for one in ours.words] == [one.word for one in theirs.words or ()]
        for word, other in zip(ours.words, theirs.words or (), strict=True):
            assert (word.start, word.end) == pytest.approx((other.start, other.end), abs=1e-6)
            assert word.probability == pytest.approx(other.probability, abs=1e-3)


CASES = {
    "plain": OPTIONS,
    "each window alone": replace(OPTIONS, condition_on_previous_text=False),
    "translated": replace(OPTIONS, task="translate", language="de"),
    "prompted": replace(OPTIONS, initial_prompt="hello", hotwords="abc abd"),
    "words": replace(OPTIONS, words=True),
    "words between spaces": replace(
        OPTIONS, words=True, suppress_tokens=[token for token in SUPPRESSED if token != SPACE]
    ),
    "begun": replace(OPTIONS, prefix="bad cab", hotwords="abc", initial_prompt="hello"),
    "begun without timestamps": replace(
        OPTIONS, prefix="bad", timestamps=False, suppress_tokens=NO_STAMPS_AT_ALL
    ),
    "invented": replace(OPTIONS, words=True, hallucination_silence_threshold=0.05),
    "invented between spaces": replace(
        OPTIONS,
        words=True,
        hallucination_silence_threshold=0.2,
        suppress_tokens=[token for token in SUPPRESSED if token != SPACE],
    ),
    "prompted by ids": replace(OPTIONS, initial_prompt=[5, 6, 5]),
    "no timestamps": replace(OPTIONS, timestamps=False, suppress_tokens=NO_STAMPS_AT_ALL),
    "no limit on the first timestamp": replace(OPTIONS, max_initial_timestamp=1.0),
}


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("width", [5, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_same_transcripts(pair, case, width):
    directory, theirs = pair
    options = CASES[case]
    recordings = sounds()
    search = pybeam.speech.whisper.beam_search(width)
    model = pybeam.load_model(directory)
    transcriber = pybeam.Transcriber(model, directory, options, algorithm=search)
    found = list(transcriber.transcribe(map(torch.from_numpy, recordings)))
    for transcript, samples in zip(found, recordings, strict=True):
        segments, info = theirs.transcribe(samples, **given(options, width))
        assert info.duration == pytest.approx(transcript.duration, abs=0.01)
        assert_same(transcript, segments)
    assert sum(len(one.segments) for one in found) > 4


@pytest.mark.slow
def test_texts_look_invented_in_these_cases(pair):
    directory, _ = pair
    model, recordings = pybeam.load_model(directory), [*map(torch.from_numpy, sounds())]
    for case in ("invented", "invented between spaces"):
        options = CASES[case]
        found = [*pybeam.Transcriber(model, directory, options).transcribe(recordings)]
        options = replace(options, hallucination_silence_threshold=None)
        assert found != [*pybeam.Transcriber(model, directory, options).transcribe(recordings)]


def test_silence_is_skipped(pair):
    directory, theirs = pair
    model, recordings = pybeam.load_model(directory), sounds()
    sources = [*map(torch.from_numpy, recordings)]
    loud = [*pybeam.Transcriber(model, directory, OPTIONS).transcribe(sources)]
    heard = sorted({s.no_speech_probability for one in loud for s in one.segments})
    middle = sum(heard[len(heard) // 2 - 1 :][:2]) / 2
    options = replace(OPTIONS, no_speech_threshold=middle, log_prob_threshold=0.0)
    found = [*pybeam.Transcriber(model, directory, options).transcribe(sources)]
    for transcript, samples in zip(found, recordings, strict=True):
        assert_same(transcript, theirs.transcribe(samples, **given(options))[0])
    num_left = sum(len(one.segments) for one in found)
    assert 0 < num_left < sum(len(one.segments) for one in loud)


def test_same_batched_windows(pair):
    """Without timestamps, as there by default. Stretches of speech are given to both."""
    directory, theirs = pair
    batched = faster_whisper.BatchedInferencePipeline(theirs)
    options = replace(CASES["no timestamps"], windows="batched")
    for samples in sounds()[1:]:
        cuts = [i / 10 for i in range(0, len(samples) // 1600 + 1, 10)]
        clips = [
            {"start": start, "end": min(start + 1.0, len(samples) / 16000)}
            for start in cuts
            if start < len(samples) / 16000
        ]
        extract = pybeam.speech.load_feature_extractor(directory)
        transcriber = pybeam.Transcriber(pybeam.load_model(directory), directory, options)
        # there each clip has features of its own, whose loudest moment is its own
        pieces = [
            torch.from_numpy(samples[int(clip["start"] * 16000) : int(clip["end"] * 16000)])
            for clip in clips
        ]
        found = list(transcriber.transcribe(map(extract.recording, pieces)))
        segments, _ = batched.transcribe(
            samples, **given(options), clip_timestamps=clips, vad_filter=False, batch_size=3
        )
        tokens = [list(one.tokens) for transcript in found for one in transcript.segments]
        assert tokens == [one.tokens for one in segments]


def test_same_words_in_batched_windows(pair):
    """There the windows of a call share when the last word ended, and are aligned with whole seconds."""
    directory, theirs = pair
    options = replace(CASES["no timestamps"], windows="batched", words=True)
    own = pybeam.Transcriber(pybeam.load_model(directory), directory, options)
    for samples in (sounds()[0], sounds()[2][:16000]):
        clip = {"start": 0.0, "end": 1.0}
        segments, _ = faster_whisper.BatchedInferencePipeline(theirs).transcribe(
            samples, **given(options), clip_timestamps=[clip], vad_filter=False
        )
        [transcript] = own.transcribe([torch.from_numpy(samples)])
        found = [word for one in transcript.segments for word in one.words]
        expected = [word for one in segments for word in one.words]
        assert [word.text for word in found] == [word.word for word in expected] != []
        for word, other in zip(found, expected, strict=True):
            assert (word.start, word.end) == pytest.approx((other.start, other.end), abs=1e-6)
            assert word.probability == pytest.approx(other.probability, abs=1e-3)
