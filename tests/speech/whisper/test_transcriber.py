"""`Transcriber`: its laws, and what it does with recordings that are out of the ordinary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import pybeam
from pybeam.engine.engine import Engine
from pybeam.speech.transcript import Stretch
from pybeam.state.step import Step
from support.speech_models import tone
from support.tiny_whisper import (
    BEGIN,
    EN,
    NO_STAMPS,
    OPTIONS,
    PREVIOUS,
    SOT,
    TRANSCRIBE,
    save_whisper,
    sounds,
    transcribed,
)

LENGTHS = (250, 64, 100, 318)
# every window fails, so that all temperatures are tried
FAILING = replace(OPTIONS, log_prob_threshold=0.0, no_speech_threshold=None)
KINDS = {
    "sequential": OPTIONS,
    "sampled": replace(FAILING, temperatures=(0.7, 1.2), prompt_reset_on_temperature=0.9),
    "batched": replace(FAILING, windows="batched", temperatures=(0.0, 0.8)),
    "no timestamps": replace(OPTIONS, timestamps=False, hotwords="abc", language="fr"),
    "begun": replace(
        FAILING, prefix="bad", words=True, hallucination_silence_threshold=0.1, stage="log_probs"
    ),
    "prompted": replace(OPTIONS, initial_prompt="hello", condition_on_previous_text=False),
}


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_transcripts_are_those_of_each_recording_alone(model, directory, kind):
    """Whatever is transcribed beside it, and whatever the schedule: texts, times and numbers."""
    recordings = sounds(*LENGTHS, seed=6)
    options = KINDS[kind]
    alone = [transcribed(model, directory, [one], options)[0] for one in recordings]
    segments = [segment for one in alone for segment in one.segments]
    assert len(segments) > 8
    assert all(len(one.log_probs) == len(one.tokens) > 0 for one in segments)
    for schedule in (pybeam.Fifo(3), pybeam.Streaming(4, row_budget=11), pybeam.Batch(16)):
        assert transcribed(model, directory, recordings, options, schedule=schedule) == alone


@pytest.mark.slow
def test_windows_step_without_the_engine(model, directory, monkeypatch):
    """But for samples, and with the same transcripts."""
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    recordings, counts, go_on = sounds(*LENGTHS, seed=6), [], Step.go_on

    def noted(*given):
        done = go_on(*given)
        counts.append(done[0])
        return done

    monkeypatch.setattr(Step, "go_on", noted)
    many = transcribed(model, directory, recordings)
    assert sum(counts) > 2 * len(counts) > 0
    monkeypatch.setattr(Engine, "_most_steps", lambda engine: 1)
    assert transcribed(model, directory, recordings) == many


@pytest.mark.slow
@pytest.mark.parametrize("options", [dict(dtype="int8"), dict(cache_dtype="bfloat16")], ids=str)
def test_models_with_other_numbers(directory, options):
    """With weights in int8, and with rounded keys and values of the encoder."""
    recordings = sounds(150, 64, 230, seed=6)
    model = pybeam.load_model(directory, **options)
    for kind in ("sequential", "sampled", "batched"):
        alone = [transcribed(model, directory, [one], KINDS[kind])[0] for one in recordings]
        assert transcribed(model, directory, recordings, KINDS[kind]) == alone
        assert alone != transcribed(
            pybeam.load_model(directory), directory, recordings, KINDS[kind]
        )


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", ["sequential", "sampled"])
def test_backends_agree(model, directory, backend, kind):
    recordings = sounds(150, 64, seed=6)
    expected = transcribed(model, directory, recordings, KINDS[kind])
    found = transcribed(model, directory, recordings, KINDS[kind], backend=backend)
    for ours, theirs in zip(found, expected, strict=True):
        assert [s.tokens for s in ours.segments] == [s.tokens for s in theirs.segments]
        assert [(s.start, s.end) for s in ours.segments] == [
            (s.start, s.end) for s in theirs.segments
        ]


def test_windows_are_encoded_once(model, directory, monkeypatch):
    """Whatever is tried for them, and for the language."""
    from pybeam.models.transformer.model import TransformerSession

    encoded, states = [], TransformerSession.encoder_states

    def counted(self, sources):
        encoded.extend(sources)
        return states(self, sources)

    monkeypatch.setattr(TransformerSession, "encoder_states", counted)
    recordings = sounds(150, 240, seed=6)
    options = replace(KINDS["sampled"], condition_on_previous_text=False)
    transcriber = pybeam.Transcriber(model, directory, options)
    news = list(transcriber.stream(recordings))
    windows = [one for one in news if one.transcript is None]
    assert len(encoded) == len(windows) > 3


def test_news_tell_of_every_window(model, directory):
    recordings = sounds(230, 0, 118, seed=6)
    named = [pybeam.Recording(one, id=f"file {i}") for i, one in enumerate(recordings)]
    transcriber = pybeam.Transcriber(model, directory, OPTIONS)
    news = list(transcriber.stream(named))
    for index, features in enumerate(recordings):
        own = [one for one in news if one.index == index]
        assert {one.id for one in own} == {f"file {index}"}
        *windows, last = own
        positions = [one.position for one in own]
        assert (
            positions == sorted(positions) and last.position == last.duration == len(features) / 100
        )
        assert last.transcript.segments == tuple(s for one in windows for s in one.segments)
        assert last.transcript == transcribed(model, directory, [features])[0]
    assert news[-1].transcript is not None


@pytest.mark.slow
def test_a_recording_that_fails_fails_alone(model, directory):
    good = sounds(240, seed=6)[0]

    def broken():
        raise OSError("no such file")

    stereo = torch.zeros(2, 900)
    recordings = [good, broken, stereo, good.to(torch.int32), pybeam.Recording(good, language="xx")]
    recordings = [pybeam.Recording(one) if callable(one) else one for one in recordings]
    news = list(pybeam.Transcriber(model, directory).stream([*recordings, lambda: good, None]))
    errors = {one.index: str(one.error) for one in news if one.error is not None}
    assert sorted(errors) == [1, 2, 3, 4, 6]
    assert errors[1] == "no such file"
    assert "mix channels down" in errors[2]
    assert "float tensor" in errors[3] and "float tensor" in errors[6]
    assert "`language` must be one" in errors[4] and "(en, de, fr), but is 'xx'" in errors[4]
    done = {one.index: one.transcript for one in news if one.transcript is not None}
    assert sorted(done) == [0, 5] and done[0] == done[5]
    with pytest.raises(pybeam.TranscribeError, match="recording 1 failed: no such file") as caught:
        list(pybeam.Transcriber(model, directory).transcribe(recordings))
    assert caught.value.index == 1 and isinstance(caught.value.__cause__, OSError)


@pytest.mark.slow
def test_an_iterable_that_raises(model, directory):
    def recordings():
        yield from sounds(240, 100, seed=6)
        raise RuntimeError("the disk is gone")

    transcriber = pybeam.Transcriber(model, directory)
    found = []
    with pytest.raises(RuntimeError, match="the disk is gone"):
        for transcript in transcriber.transcribe(recordings()):
            found.append(transcript)
    assert found == transcribed(model, directory, sounds(240, 100, seed=6), None)


def test_a_stream_that_is_given_up_gives_all_back(model, directory, monkeypatch):
    monkeypatch.setattr("pybeam.speech.whisper.transcriber.SPARE_LINES", 2)
    options = replace(OPTIONS, temperatures=(0.0,))
    transcriber = pybeam.Transcriber(model, directory, options, schedule=pybeam.Fifo(2))
    recordings = sounds(150, 64, 90, seed=6)
    expected = list(transcriber.transcribe(recordings))
    for _ in range(5):
        stream = transcriber.stream(recordings)
        next(stream)
        stream.close()
    assert list(transcriber.transcribe(recordings)) == expected


def test_few_recordings_are_open_at_a_time(model, directory):
    opened, closed = [], 0

    def recordings():
        for features in sounds(64, 150, 40, 100, 90, 60, seed=6):
            opened.append(features)
            yield features

    options = replace(OPTIONS, temperatures=(0.0,))
    transcriber = pybeam.Transcriber(model, directory, options, schedule=pybeam.Fifo(3))
    for news in transcriber.stream(recordings()):
        closed += news.transcript is not None
        assert len(opened) - closed <= 3 + 1


def test_stretches(model, directory):
    """Only they are transcribed, one after another or gathered into windows."""
    [features] = sounds(500, seed=6)
    stretches = [Stretch(0.5, 0.9), Stretch(1.0, 1.3), Stretch(2.0, 4.5), Stretch(4.8, 9.0)]
    recording = pybeam.Recording(features, stretches)
    for options in (OPTIONS, replace(OPTIONS, windows="batched")):
        news = list(pybeam.Transcriber(model, directory, options).stream([recording]))
        segments = news[-1].transcript.segments
        assert len(segments) > 3
        for segment in segments:
            assert segment.start >= 0.5
        begins = [segment.start for segment in segments]
        assert begins == sorted(begins)
    # the first two fit in one window, the third needs three, and the last one fits behind it
    assert len(news) == 1 + 3 + 1


def test_batched_windows_lose_no_text(model, directory):
    """A recording of one window has the same text in both modes, and the rest behind its last segment."""
    for features in sounds(100, 90, seed=9):
        plain = transcribed(model, directory, [features])[0].segments
        found = transcribed(model, directory, [features], replace(OPTIONS, windows="batched"))[0]
        tokens = [token for segment in found.segments for token in segment.tokens]
        first = plain[0].tokens
        assert tuple(tokens[: len(first)]) == first


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("num", [0, 1, 159, 160, 9001, 20000])
def test_samples_of_any_length(model, directory, num):
    samples = torch.from_numpy(tone(num, seed=1).astype(np.float32) / 2**15)
    [found] = transcribed(model, directory, [samples])
    assert found.duration == num // 160 / 100
    if num < 160:
        assert found.segments == () and found.text == ""
    else:
        extract = pybeam.speech.load_feature_extractor(directory)
        assert found == transcribed(model, directory, [extract.recording(samples)])[0]


def test_the_prompt(model, directory, monkeypatch):
    """Hotwords, then what was said, as much as half of the positions hold."""
    asked = []
    decode = pybeam.Decoder.stream

    def stream(self, requests):
        take = requests.next

        def noted(may_wait):
            arrived = take(may_wait)
            if arrived is not None:
                asked.append(arrived[1])
            return arrived

        requests.next = noted
        return decode(self, requests)

    monkeypatch.setattr(pybeam.Decoder, "stream", stream)
    options = replace(
        OPTIONS, language="en", hotwords="abc", initial_prompt=[5, 6], temperatures=(0.0,)
    )
    [found] = transcribed(model, directory, sounds(500, seed=6), options)
    start = [EN, TRANSCRIBE]
    space = 27
    assert (asked[0].start, asked[0].prefix) == (
        PREVIOUS,
        [space, 0, 1, 2, 5, 6, SOT, *start],
    )
    said = [5, 6, *(token for segment in found.segments for token in segment.tokens)]
    for request in asked:
        assert request.prefix[:4] == [space, 0, 1, 2] and request.prefix[-3:] == [SOT, *start]
        shown = request.prefix[4:-3]
        assert (len(shown) <= 31 - 4 and shown == said[: len(said)][-len(shown) :]) or any(
            said[i : i + len(shown)] == shown for i in range(len(said))
        )
    assert max(len(request.prefix) for request in asked) == 4 + 31 + 3
    asked.clear()
    options = replace(
        options,
        hotwords=None,
        initial_prompt=None,
        condition_on_previous_text=False,
        timestamps=False,
    )
    transcribed(model, directory, sounds(240, seed=6), options)
    assert {(one.start, tuple(one.prefix)) for one in asked} == {(None, (*start, NO_STAMPS))}


def test_any_search(model, directory):
    """Width, thresholds and processors of the algorithm count."""
    recordings = sounds(240, 100, seed=6)
    never = pybeam.processors.suppress_tokens_at_start([BEGIN])
    for search in (
        pybeam.greedy(processors=[never]),
        pybeam.variable_beam(8, threshold=2.0, n_best=3),
        pybeam.compat.ctranslate2.beam_search(3, patience=2),
    ):
        found = transcribed(model, directory, recordings, algorithm=search)
        assert all(transcript.segments for transcript in found)
    with pytest.raises(ValueError, match="`algorithm` must search"):
        pybeam.Transcriber(model, directory, algorithm=pybeam.stochastic_beam(3))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(language="xx"), ValueError, "`language` must be one .* but is 'xx'"),
        (dict(task="sing"), ValueError, "`task` must be one .* but is 'sing'"),
        (dict(windows="some"), ValueError, "`windows` must be 'sequential' or 'batched'"),
        (dict(temperatures=0.0), TypeError, r"`temperatures` must be a list.* write \[0.0\]"),
        (dict(temperatures=[]), ValueError, "`temperatures` must hold 1 to 100, but holds 0"),
        (dict(temperatures=[0.1] * 101), ValueError, "`temperatures` must hold 1 to 100, but"),
        (dict(best_of=4097), ValueError, "`best_of` must be 1 to 4096, but is 4097"),
        (dict(temperatures=[-1]), ValueError, "`temperatures` must be finite, greater than 0"),
        (dict(best_of=0), ValueError, "`best_of` must be 1 to 4096"),
        (dict(prefix=[5]), TypeError, "`prefix` must be a text"),
        (dict(prefix="a", windows="batched"), ValueError, "`prefix` needs windows='sequential'"),
        (
            dict(hallucination_silence_threshold=1.0),
            ValueError,
            "`hallucination_silence_threshold` needs words=True",
        ),
        (dict(stage="x"), ValueError, "`stage` must be 'logits' or 'log_probs'"),
        (dict(no_speech_threshold=-1), ValueError, "`no_speech_threshold` must be finite"),
        (dict(log_prob_threshold="a"), TypeError, "`log_prob_threshold` must be a number"),
        (dict(suppress_tokens=[-1]), ValueError, "`suppress_tokens` must hold token ids"),
        (dict(initial_prompt=[0.5]), TypeError, "`initial_prompt` must hold token ids"),
        (dict(max_new_tokens=0), ValueError, "`max_new_tokens` must be at least 1"),
    ],
)
def test_options_that_are_refused(model, directory, options, error, message):
    with pytest.raises(error, match=message):
        pybeam.Transcriber(model, directory, pybeam.TranscriptionOptions(**options))


def test_arguments_that_are_refused(model, directory, tmp_path):
    with pytest.raises(TypeError, match="`options` must be TranscriptionOptions"):
        pybeam.Transcriber(model, directory, {})
    transcriber = pybeam.Transcriber(model, directory)
    with pytest.raises(TypeError, match="`recordings` must be a list"):
        transcriber.stream(torch.zeros(900))
    (tmp_path / "config.json").write_text('{"model_type": "speech_to_text"}')
    with pytest.raises(ValueError, match="must be a Whisper model"):
        pybeam.Transcriber(model, tmp_path)


def test_an_empty_list(model, directory):
    assert transcribed(model, directory, []) == []


def test_ensembles_transcribe_without_words(model, directory, tmp_path):
    save_whisper(tmp_path, seed=5)
    recordings, options = sounds(160, 64, seed=6), replace(OPTIONS, temperatures=(0.0,))

    def tokens(found):
        return [[one.tokens for one in transcript.segments] for transcript in found]

    plain = transcribed(model, directory, recordings, options)
    twice = pybeam.load_model([directory, directory])
    assert tokens(transcribed(twice, directory, recordings, options)) == tokens(plain)
    both = pybeam.load_model([directory, tmp_path])
    found = transcribed(both, directory, recordings, options)
    assert tokens(found) != tokens(plain)
    assert found == [transcribed(both, directory, [one], options)[0] for one in recordings]
    options = replace(OPTIONS, words=True)
    with pytest.raises(
        ValueError, match="words take their times from its attention, but is Ensemble"
    ):
        transcribed(both, directory, recordings, options)
