"""Transcripts of a CTC model: texts, words and times, as transformers finds them, and long recordings."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import pybeam
from pybeam import ctc
from pybeam.ctc import transcriber as transcriber_module
from pybeam.ctc.vocabulary import SoundForm, Vocabulary
from pybeam.speech import Stretch
from support.speech_models import write_wav
from support.wav2vec2_files import sounds, write_wav2vec2

pytest.importorskip("transformers")
RATE = 16000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wav2vec2")
    # sound changes what is said
    write_wav2vec2(path, seed=4, initializer_range=0.2)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return ctc.load_model(folder)


SOUND = torch.cat(sounds(9000, 4000))


def test_texts_and_times_are_those_of_transformers(folder, model):
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

    extract = Wav2Vec2FeatureExtractor.from_pretrained(folder)
    samples = torch.tensor(extract(SOUND.numpy(), sampling_rate=RATE).input_values[0])
    torch.testing.assert_close(SoundForm.load(folder)(SOUND), samples, rtol=1e-4, atol=1e-4)
    [frames] = model.log_probs([SoundForm.load(folder)(SOUND)])
    # tokens that are no text cannot be said: transformers writes their names
    frames[:, 1:4] = -math.inf
    tokenizer = Wav2Vec2CTCTokenizer.from_pretrained(folder)
    expected = tokenizer.decode(frames.argmax(1), output_word_offsets=True)
    vocabulary = Vocabulary.load(folder, model.config)
    [best] = ctc.greedy(frames[None])
    assert len(set(best.tokens)) > 3
    assert vocabulary.text(best.tokens) == expected.text
    [spans] = ctc.align(frames[None], [best.tokens])
    words = list(vocabulary.words(spans, 1.5, 0.25))
    assert [word.text for word in words] == [f" {one['word']}" for one in expected.word_offsets]
    for word, one in zip(words, expected.word_offsets, strict=True):
        assert word.start == 1.5 + 0.25 * one["start_offset"]
        assert word.end == 1.5 + 0.25 * one["end_offset"]
        assert 0 < word.probability <= 1


def test_a_transcript_has_what_is_heard(folder, model):
    transcriber = ctc.Transcriber(model, folder, pause=0.02)
    [transcript] = transcriber.transcribe([SOUND])
    [frames] = model.log_probs([SoundForm.load(folder)(SOUND)])
    tokens = ctc.greedy(frames[None])[0].tokens
    vocabulary = Vocabulary.load(folder, model.config)
    assert transcript.text == " ".join(vocabulary.text(tokens).split())
    assert transcript.duration == len(SOUND) / RATE
    words = [word for segment in transcript.segments for word in segment.words]
    assert len(transcript.segments) > 1
    for segment in transcript.segments:
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
        assert segment.text == "".join(word.text for word in segment.words)
        assert vocabulary.text(segment.tokens).split() == segment.text.split()
        gaps = [b.start - a.end for a, b in itertools.pairwise(segment.words)]
        assert all(gap < 0.02 for gap in gaps)
    assert all(a.end <= b.start for a, b in itertools.pairwise(words))
    assert words[-1].end <= transcript.duration


def test_a_beam_finds_what_is_more_probable(folder, model):
    wide = ctc.Transcriber(model, folder, width=16)
    [transcript] = wide.transcribe([SOUND])
    [frames] = model.log_probs([SoundForm.load(folder)(SOUND)])
    [[best]] = ctc.beam_search(frames[None], width=16)
    text = Vocabulary.load(folder, model.config).text(best.tokens)
    assert transcript.text == " ".join(text.split())


def test_a_beam_searches_long_stretches_in_pieces(folder, model, monkeypatch):
    """Cut behind blanks that are nearly certain, frames say what they say as a whole."""
    frames = torch.full((3, 40, model.vocab_size), -30.0)
    path = torch.randint(4, 9, (3, 40), generator=torch.Generator().manual_seed(1))
    path[:, 2::3] = model.blank
    frames.scatter_(2, path[..., None], 0.0)
    parts = [transcriber_module.Part(float(i), one[: 40 - i]) for i, one in enumerate(frames)]
    wide, narrow = (ctc.Transcriber(model, folder, width=width) for width in (8, 1))
    whole = wide._said(parts)
    monkeypatch.setattr(transcriber_module, "MOST_FRAMES", 10)
    monkeypatch.setattr(transcriber_module, "MOST_PIECES", 4)
    pieces = transcriber_module._pieces(parts[0].frames, model.blank)
    assert len(pieces) > 3 and torch.equal(torch.cat(pieces), parts[0].frames)
    assert all(len(piece) <= 10 for piece in pieces)
    assert all(piece[-1].argmax() == model.blank for piece in pieces[:-1])
    assert wide._said(parts) == whole
    assert [[s.text for s in part] for part in narrow._said(parts)] == [
        [s.text for s in part] for part in whole
    ]
    times = [[(w.start, w.end) for s in part for w in s.words] for part in whole]
    assert times == [[(w.start, w.end) for s in p for w in s.words] for p in narrow._said(parts)]


def test_windows_are_joined_where_they_overlap(folder, model):
    """Far from the ends of a window, a frame is heard as in the whole recording, or nearly so."""
    transcriber = ctc.Transcriber(model, folder, window=0.06)
    sound = SoundForm.load(folder)(SOUND)
    part = transcriber._heard(sound, Stretch(0.0, len(SOUND) / RATE))
    assert len(part.frames) == model.num_frames(len(SOUND))
    whole = ctc.Transcriber(model, folder, window=10.0)._heard(sound, Stretch(0.0, 1.0))
    assert len(whole.frames) == len(part.frames)
    # windows begin where frames do
    size, margin, stride = transcriber._size, transcriber._margin, model.stride
    step = size - 2 * margin * stride
    second = model.log_probs([sound[step : step + size]])[0]
    begin = step // stride + margin
    inner = size // stride - 2 * margin
    assert torch.equal(part.frames[begin : begin + inner], second[margin : margin + inner])


def test_stretches_files_and_what_fails(folder, model, tmp_path):
    path = tmp_path / "a.wav"
    write_wav(path, (32767 * SOUND.clamp(-1, 1)).short().numpy(), RATE)
    transcriber = ctc.Transcriber(model, folder)
    stretches = [Stretch(0.1, 0.3), Stretch(0.5, 0.8)]
    given = [
        pybeam.Recording(SOUND, stretches, id="stretches"),
        pybeam.Recording(lambda: pybeam.speech.SoundFile(path, RATE), id="file"),
        torch.zeros(0),
        torch.zeros(20),
        pybeam.Recording(lambda: pybeam.speech.SoundFile(tmp_path / "none.wav", RATE)),
        torch.zeros(3, 80),
    ]
    news = [one for one in transcriber.stream(given) if one.transcript or one.error]
    first, file, empty, short, missing, features = news
    assert all(0.1 <= s.start < s.end <= 0.8 for s in first.transcript.segments)
    assert not any(0.3 < word.start < 0.5 for s in first.transcript.segments for word in s.words)
    assert file.transcript.text and file.id == "file"
    assert empty.transcript.segments == short.transcript.segments == ()
    assert isinstance(missing.error, OSError)
    assert "takes no features" in str(features.error)
    with pytest.raises(pybeam.TranscribeError, match="recording 1 failed"):
        list(transcriber.transcribe([torch.zeros(0), torch.zeros(3, 80)]))
