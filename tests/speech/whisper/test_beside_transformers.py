"""Transcripts of a tiny random Whisper beside those of transformers' `generate`, option by option."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import pybeam
from support.tiny_whisper import (
    BEGIN,
    DE,
    EOT,
    NO_SPEECH,
    NO_STAMPS,
    PREVIOUS,
    SOT,
    STAMPS,
    SUPPRESSED,
    TRANSCRIBE,
    WINDOW,
    save_whisper,
    sounds,
)

# of one window and less, of several, and of odd parts of one
LENGTHS = (100, 64, 240, 318)
PLAIN = pybeam.TranscriptionOptions(
    language="de",
    temperatures=(0.0,),
    compression_ratio_threshold=None,
    log_prob_threshold=None,
    no_speech_threshold=None,
    condition_on_previous_text=False,
    max_initial_timestamp=0.6,
    max_new_tokens=24,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    return directory, save_whisper(directory)


def transcribed(saved, recordings, options, num_beams=1) -> list:
    """Our transcripts, with the search of transformers."""
    search = pybeam.compat.huggingface.beam_search(num_beams, max_new_tokens=24)
    if num_beams > 1:
        options = replace(options, stage="log_probs")
    model = pybeam.load_model(saved[0])
    transcriber = pybeam.Transcriber(model, saved[0], options, algorithm=search)
    return list(transcriber.transcribe(recordings))


def generated(model, features: torch.Tensor, **options) -> list[dict]:
    """The segments that transformers finds in one recording."""
    given = dict(language="de", temperature=0.0, max_new_tokens=24, num_beams=1) | options
    outputs = model.generate(
        features.t()[None], return_timestamps=True, return_segments=True, **given
    )
    return outputs["segments"][0]


def assert_same(transcript, segments, begin=BEGIN) -> None:
    """Tokens and times. transformers leaves the second of two timestamps at the end of a window."""
    # an output of timestamps alone is no segment here
    segments = [one for one in segments if min(one["tokens"].tolist(), default=EOT) < EOT]
    assert len(transcript.segments) == len(segments)
    for ours, theirs in zip(transcript.segments, segments, strict=True):
        tokens = theirs["tokens"].tolist()
        if len(tokens) > 2 and tokens[-2] >= begin and tokens[-1] >= begin:
            tokens.pop()
        assert list(ours.tokens) == tokens
        assert ours.start == pytest.approx(float(theirs["start"]), abs=1e-6)
        assert ours.end == pytest.approx(float(theirs["end"]), abs=1e-6)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("sees_text", [False, True])
def test_tokens_and_times(saved, num_beams, sees_text):
    """Short and long recordings, alone and with the text before each window as its prompt."""
    recordings = sounds(*LENGTHS)
    options = replace(PLAIN, condition_on_previous_text=sees_text)
    found = transcribed(saved, recordings, options, num_beams)
    for transcript, features in zip(found, recordings, strict=True):
        theirs = generated(
            saved[1], features, num_beams=num_beams, condition_on_prev_tokens=sees_text
        )
        assert_same(transcript, theirs)
        assert transcript.duration == len(features) / 100
    # the rules matter: several segments in a window, and several letters in a segment
    assert max(len(one.segments) for one in found) > 8
    assert len({len(segment.tokens) for one in found for segment in one.segments}) > 2


def test_the_text_before_matters(saved):
    """So that the test above says something."""
    recordings = sounds(*LENGTHS)
    one, other = (
        transcribed(saved, recordings, replace(PLAIN, condition_on_previous_text=sees))
        for sees in (False, True)
    )
    assert [t.segments for t in one] != [t.segments for t in other]


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 3])
def test_an_initial_prompt(saved, num_beams):
    recordings = sounds(100, 330, 250, seed=4)
    prompt = [4, 7, 4, 9, 1]
    options = replace(PLAIN, initial_prompt=prompt, condition_on_previous_text=True)
    found = transcribed(saved, recordings, options, num_beams)
    plain = transcribed(saved, recordings, replace(options, initial_prompt=None), num_beams)
    assert [t.segments for t in found] != [t.segments for t in plain]
    for transcript, features in zip(found, recordings, strict=True):
        theirs = generated(
            saved[1],
            features,
            num_beams=num_beams,
            prompt_ids=torch.tensor([PREVIOUS, *prompt]),
            condition_on_prev_tokens=True,
        )
        assert_same(transcript, theirs)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_detected_languages_and_tasks(tmp_path, task):
    model = save_whisper(tmp_path, seed=4)
    recordings = sounds(100, 100, 130, 90, seed=2)
    options = replace(PLAIN, language=None, task=task)
    found = transcribed((tmp_path, model), recordings, options)
    for transcript, features in zip(found, recordings, strict=True):
        window = torch.zeros(WINDOW, features.shape[1])
        window[: len(features)] = features[:WINDOW]
        [expected] = model.detect_language(window.t()[None]).tolist()
        code = {token: name for name, token in model.generation_config.lang_to_id.items()}[expected]
        assert transcript.language == code.strip("<|>")
        assert 1 / 3 < transcript.language_probability <= 1
        assert_same(transcript, generated(model, features, language=code, task=task))
    assert len({transcript.language for transcript in found}) > 1


@pytest.mark.slow
def test_silence(saved):
    """A window that may be silent and is unlikely is skipped."""
    recordings = sounds(*LENGTHS, seed=3)
    loud = transcribed(saved, recordings, PLAIN)
    windows = sorted({s.no_speech_probability for one in loud for s in one.segments})
    middle = len(windows) // 2
    threshold = sum(windows[middle - 1 : middle + 1]) / 2
    options = replace(PLAIN, no_speech_threshold=threshold, log_prob_threshold=0.0)
    found = transcribed(saved, recordings, options)
    for transcript, features in zip(found, recordings, strict=True):
        theirs = generated(saved[1], features, no_speech_threshold=threshold, logprob_threshold=0.0)
        assert_same(transcript, theirs)
    assert (
        0 < sum(map(len, (t.segments for t in found))) < sum(map(len, (t.segments for t in loud)))
    )


def test_probabilities_are_those_of_the_model(saved):
    """The average log-probability counts EOS, the probability of silence stands behind the start token."""
    options = replace(PLAIN, timestamps=False, suppress_tokens=(), suppress_blank=False)
    for features in sounds(60, 90, 100, seed=5):
        [found] = transcribed(saved, [features], options)
        [segment] = found.segments
        window = torch.zeros(WINDOW, features.shape[1])
        window[: len(features)] = features
        line = [SOT, DE, TRANSCRIBE, NO_STAMPS, *segment.tokens]
        if len(segment.tokens) < 24:
            line.append(EOT)
        with torch.inference_mode():
            given = torch.tensor([line])
            logits = saved[1](window.t()[None], decoder_input_ids=given).logits[0]
        log_probs = logits.log_softmax(1)
        each = [float(log_probs[i - 1, line[i]]) for i in range(4, len(line))]
        num = len(segment.tokens)
        assert segment.log_probs == pytest.approx(each[:num], abs=1e-5)
        average = sum(each) / (num + 1)
        assert segment.average_log_prob == pytest.approx(average, abs=1e-5)
        silence = float(log_probs[0, NO_SPEECH].exp())
        assert segment.no_speech_probability == pytest.approx(silence, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("distil", dict(decoder_layers=1)), ("turbo", dict(decoder_layers=1, num_mel_bins=128))],
)
def test_distil_and_turbo(tmp_path, name, options):
    """Few decoder layers, and 128 mel bins."""
    model = save_whisper(tmp_path, seed=3, **options)
    recordings = sounds(240, 100, seed=1, num_features=model.config.num_mel_bins)
    for transcript, features in zip(
        transcribed((tmp_path, model), recordings, PLAIN, 3), recordings, strict=True
    ):
        assert_same(transcript, generated(model, features, num_beams=3))


def test_without_timestamps(saved):
    """Short recordings, as one segment that lasts as long as they do."""
    recordings = sounds(100, 60, 80)
    # generate cuts at timestamps even then
    banned = [*SUPPRESSED, *range(NO_STAMPS, BEGIN + len(STAMPS))]
    options = replace(PLAIN, timestamps=False, suppress_tokens=banned)
    found = transcribed(saved, recordings, options)
    for transcript, features in zip(found, recordings, strict=True):
        window = torch.zeros(WINDOW, features.shape[1])
        window[: len(features)] = features
        [line] = saved[1].generate(
            window.t()[None],
            language="de",
            max_new_tokens=24,
            num_beams=1,
            return_timestamps=False,
            suppress_tokens=banned,
        )
        [segment] = transcript.segments
        assert list(segment.tokens) == [token for token in line.tolist() if token < EOT]
        assert (segment.start, segment.end) == (0, len(features) / 100)
