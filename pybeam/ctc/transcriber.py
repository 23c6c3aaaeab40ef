"""`Transcriber`: recordings of any length in, transcripts with words and their times out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pybeam.arguments import number, whole
from pybeam.contracts import MAX_WIDTH
from pybeam.ctc.alignment import Span, align, most_probable
from pybeam.ctc.search import beam_search
from pybeam.ctc.vocabulary import SoundForm, Vocabulary
from pybeam.ctc.wav2vec2.model import Wav2Vec2
from pybeam.speech.sound import SoundFile
from pybeam.speech.transcript import Segment, Stretch, Transcript, Word
from pybeam.speech.whisper.recording import Progress, Recording
from pybeam.speech.whisper.transcriber import TranscribeError
from pybeam.speech.whisper.windows import compression_ratio

# of a window: what stands that near to its ends is heard better by its neighbours
MARGIN = 1 / 6
# that a beam searches in one piece, a minute of Wav2Vec2: the alignment takes their square in bytes
MOST_FRAMES = 3000
# that are searched at once, padded to the longest
MOST_PIECES = 16


class Part(NamedTuple):
    """A stretch of a recording, and the frames that were heard in it."""

    start: float  # seconds
    frames: Tensor  # [T, V]


class Transcriber:
    """Transcribe recordings with a CTC model: greedily, or with a prefix beam search.

    A recording is heard in windows that overlap, so that time and memory grow with its length and not with
    the square of it. The most probable path is that of all its frames. A wider beam searches at most 3,000
    frames at once, a minute of Wav2Vec2; longer stretches are cut where the blank is most probable.

    Args:
        model: from `pybeam.ctc.load_model`.
        path: the model's folder, with `vocab.json`.
        width: of the beam; 1: the most probable path is taken.
        window: seconds of a window. The outer sixths of neighbours overlap.
        pause: where words are this many seconds apart, or more, a new segment begins.
        backend: that of the search, see `pybeam.ctc.beam_search`.

    Attributes:
        sampling_rate: of samples, in Hz.

    Raises:
        FileNotFoundError, TypeError, ValueError: a file of the folder is missing or wrong, or an option is.
    """

    def __init__(
        self,
        model: Wav2Vec2,
        path: str | os.PathLike[str],
        *,
        width: int = 1,
        window: float = 30.0,
        pause: float = 1.0,
        backend: str = "auto",
    ) -> None:
        whole("width", width, 1, MAX_WIDTH)
        number("window", window, 0)
        number("pause", pause, 0)
        self.model, self._width, self._pause, self._backend = model, width, pause, backend
        self._vocabulary = Vocabulary.load(Path(path), model.config)
        self._form = SoundForm.load(Path(path))
        self.sampling_rate = self._form.sampling_rate
        self._seconds = model.stride / self.sampling_rate  # of a frame
        # in frames; there must be something between the margins
        frames = max(6, int(window / self._seconds))
        self._margin = int(MARGIN * frames)
        self._size = frames * model.stride

    def transcribe(self, recordings: Iterable[Any]) -> Iterator[Transcript]:
        """Yield the transcripts in the order of the recordings.

        Args:
            recordings: samples [n] float32 from -1 to 1, `pybeam.speech.SoundFile` objects, or
                `pybeam.Recording` objects of these. They are read as they are needed.

        Raises:
            pybeam.TranscribeError: a recording failed.
        """
        for news in self.stream(recordings):
            if news.error is not None:
                raise TranscribeError(news.index, news.id, str(news.error)) from news.error
            if news.transcript is not None:
                yield news.transcript

    def stream(self, recordings: Iterable[Any]) -> Iterator[Progress]:
        """Yield news of each recording when it is done, in their order: its segments, then its transcript.

        Args:
            recordings: as for `transcribe`. One that fails gives a `Progress` with an `error`; nothing is
                raised for it.
        """
        for i, given in enumerate(map(Recording.of, recordings)):
            try:
                transcript = self._transcript(given)
            except Exception as error:
                yield Progress(i, given.id, 0.0, 0.0, error=error)
                continue
            seconds = transcript.duration
            if transcript.segments:
                yield Progress(i, given.id, seconds, seconds, transcript.segments)
            yield Progress(i, given.id, seconds, seconds, transcript=transcript)

    def _transcript(self, recording: Recording) -> Transcript:
        samples = _samples(recording)
        duration = len(samples) / self.sampling_rate
        stretches = recording.stretches
        if stretches is None:
            stretches = [Stretch(0.0, duration)] if duration else []
        sound = self._form(samples)
        parts = [self._heard(sound, stretch) for stretch in stretches]
        segments = tuple(segment for part in self._said(parts) for segment in part)
        return Transcript(recording.language, None, duration, segments)

    def _heard(self, sound: Tensor, stretch: Stretch) -> Part:
        start, end = (round(one * self.sampling_rate) for one in (stretch.start, stretch.end))
        own, margin, stride = sound[start:end], self._margin, self.model.stride
        step = self._size - 2 * margin * stride
        places = [*range(0, max(1, len(own) - self._size + step), step)]
        windows = [own[place : place + self._size] for place in places]
        frames = self.model.log_probs(windows)
        kept = [one[margin if i else 0 :] for i, one in enumerate(frames)]
        inner = self._size // stride - margin
        kept[:-1] = [one[: inner - (margin if i else 0)] for i, one in enumerate(kept[:-1])]
        return Part(stretch.start, torch.cat(kept))

    def _said(self, parts: list[Part]) -> list[list[Segment]]:
        blank = self.model.blank
        if self._width == 1:
            spans = [most_probable(part.frames, blank, i)[0] for i, part in enumerate(parts)]
        else:
            spans = self._searched([_pieces(part.frames, blank) for part in parts])
        return [self._segments(own, part.start) for own, part in zip(spans, parts, strict=True)]

    def _searched(self, parts: list[list[Tensor]]) -> list[list[Span]]:
        """Return what a beam finds in the pieces of each part."""
        pieces = [piece for part in parts for piece in part]
        how: dict[str, Any] = dict(blank=self.model.blank, backend=self._backend)
        found: list[list[Span]] = []
        for i in range(0, len(pieces), MOST_PIECES):
            some = pieces[i : i + MOST_PIECES]
            frames, lengths = pad_sequence(some, batch_first=True), [len(one) for one in some]
            lists = beam_search(frames, lengths, width=self._width, **how)
            tokens = [best[0].tokens if best else () for best in lists]
            found += align(frames, tokens, lengths, **how)
        spans = iter(found)
        return [
            [
                span._replace(start=span.start + start, end=span.end + start)
                for start in accumulate(map(len, part[:-1]), initial=0)
                for span in next(spans)
            ]
            for part in parts
        ]

    def _segments(self, spans: list[Span], offset: float) -> list[Segment]:
        words = list(self._vocabulary.words(spans, offset, self._seconds))
        if not words:
            return []
        ends = [i + 1 for i, (a, b) in enumerate(pairwise(words)) if b.start - a.end >= self._pause]
        return [
            self._segment(words[first:last], spans, offset)
            for first, last in pairwise([0, *ends, len(words)])
        ]

    def _segment(self, words: list[Word], spans: list[Span], offset: float) -> Segment:
        text, start, end = "".join(word.text for word in words), words[0].start, words[-1].end
        own = [s for s in spans if start <= offset + s.start * self._seconds < end]
        return Segment(
            start=start,
            end=end,
            text=text,
            tokens=tuple(span.token for span in own),
            average_log_prob=sum(span.log_prob for span in own) / len(own),
            no_speech_probability=None,
            temperature=0.0,
            compression_ratio=compression_ratio(text),
            words=tuple(words),
        )


def _pieces(frames: Tensor, blank: int) -> list[Tensor]:
    """Cut frames [T, V] behind probable blanks, so that no piece has more than `MOST_FRAMES`."""
    pieces = []
    while len(frames) > MOST_FRAMES:
        least = MOST_FRAMES // 2
        end = least + int(frames[least:MOST_FRAMES, blank].argmax()) + 1
        pieces.append(frames[:end])
        frames = frames[end:]
    return [*pieces, frames]


def _samples(recording: Recording) -> Tensor:
    """Return the samples [n] of a recording. Raises whatever reading it raises."""
    sound = recording.samples() if callable(recording.samples) else recording.samples
    if isinstance(sound, SoundFile):
        return torch.cat([torch.zeros(0), *sound.blocks()])
    if not isinstance(sound, Tensor) or sound.ndim != 1:
        found = list(sound.shape) if isinstance(sound, Tensor) else type(sound).__name__
        raise TypeError(
            f"a recording must be samples [n] for a CTC model, but is {found}; it takes no features"
        )
    return sound
