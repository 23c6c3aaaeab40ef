"""A small Whisper of the examples learns from these: phrases, recordings of them, and their tokens."""

import random
import shutil

import pytest
import torch

from examples.speech import spoken_verses, whisper_layout
from examples.speech.training_windows import IGNORED, Material
from examples.speech.whisper_layout import (
    ENGLISH,
    EOS,
    FIRST_TIME,
    NO_SPEECH,
    NO_TIMES,
    PREVIOUS,
    START,
    TRANSCRIBE,
)

VERSES = ["And God said, Let there be a man: and there was light.", "But Esarhaddon, his son"]


def test_phrases_have_frequent_words_only():
    texts = spoken_verses.phrases([*VERSES, VERSES[0]], num_words=300)
    assert texts == ["and god said", "let there be a man"]
    assert spoken_verses.phrases(VERSES, num_words=50) == ["and god said"]


def clip(text: str = "and god said", seconds: float = 1.0) -> spoken_verses.Clip:
    samples = torch.full((round(seconds * spoken_verses.RATE),), 1000, dtype=torch.int16)
    return spoken_verses.Clip(samples, text, ("a", "n", "d"))


def test_a_recording_says_where_its_phrases_are():
    whole = spoken_verses.recording([clip(), clip()], random.Random(1), (50.0, 50.0))
    assert [round(end - start, 6) for start, end, _ in whole.phrases] == [1.0, 1.0]
    assert whole.text == "and god said and god said" and whole.cut is None
    loud = whole.samples > whole.samples.max() / 2
    found = torch.zeros_like(loud)
    for start, end, _ in whole.phrases:
        found[round(16000 * start) : round(16000 * end)] = True
    assert torch.equal(loud, found)


def test_a_recording_is_cut():
    whole = spoken_verses.recording([clip(), clip()], random.Random(1))
    cut = spoken_verses.recording([clip(), clip()], random.Random(1), seconds=2)
    assert len(cut.samples) == 32000
    assert cut.phrases == whole.phrases[:1] and cut.cut == whole.phrases[1][0]


def test_noise_alone():
    silent = spoken_verses.recording([], random.Random(1))
    assert len(silent.samples) >= 16000 and not silent.phrases and silent.samples.std() > 0


def test_resampling_keeps_a_tone():
    def tone(rate: int) -> torch.Tensor:
        return (2 * torch.pi * 440 * torch.arange(rate, dtype=torch.float64) / rate).sin().float()

    torch.testing.assert_close(
        spoken_verses.resampled(tone(22050), 22050), tone(16000), rtol=0, atol=1e-5
    )


@pytest.fixture(scope="module")
def material() -> Material:
    tokenizer = whisper_layout.train_tokenizer(sorted(spoken_verses.WORDS))
    return Material([clip(), clip("let there be a man")], tokenizer, seed=1)


def test_tokens_of_a_window(material):
    first, second = (material.encode(text) for text in ("and god said", "let there be a man"))
    at = [FIRST_TIME + i for i in (20, 60, 100, 200, 480)]
    phrases = [(0.4, 1.2, "and god said"), (2.0, 4.0, "let there be a man")]
    heard = spoken_verses.Recording(torch.zeros(1), phrases)
    inputs, targets = material.tokens(heard, [], has_times=True)
    body = [at[0], *first, at[1], at[2], *second, at[3]]
    assert inputs == [START, ENGLISH, TRANSCRIBE, *body]
    assert targets == [ENGLISH, IGNORED, *body, EOS]

    inputs, targets = material.tokens(heard, first, has_times=False)
    assert inputs == [PREVIOUS, *first, START, ENGLISH, TRANSCRIBE, NO_TIMES, *first, *second]
    prompt = [IGNORED] * (1 + len(first))
    assert targets == [*prompt, ENGLISH, IGNORED, IGNORED, *first, *second, EOS]

    cut = spoken_verses.Recording(torch.zeros(1), phrases, cut=9.6)
    assert material.tokens(cut, [], has_times=True)[1] == [ENGLISH, IGNORED, *body, at[4], EOS]


def test_tokens_of_silence(material):
    silent = spoken_verses.Recording(torch.zeros(1), [])
    inputs, targets = material.tokens(silent, [], has_times=True)
    assert inputs == [START, ENGLISH, TRANSCRIBE, FIRST_TIME]
    assert targets == [NO_SPEECH, IGNORED, FIRST_TIME, EOS]
    assert material.tokens(silent, [], has_times=False)[1] == [NO_SPEECH, IGNORED, IGNORED, EOS]


def test_a_late_phrase_begins_where_whisper_lets_it(material):
    late = spoken_verses.Recording(torch.zeros(1), [(1.7, 2.4, "and god said")])
    assert material.tokens(late, [], has_times=True)[0][3] == FIRST_TIME + 50


@pytest.mark.parametrize("missing", ["espeak-ng", "flite"])
def test_missing_program_is_named(monkeypatch, missing):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else name)
    with pytest.raises(FileNotFoundError, match=f"`apt-get install {missing}`"):
        next(spoken_verses.clips(["a"], "test", seed=1))
