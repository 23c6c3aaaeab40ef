"""`RecordingLoop`: how one recording is transcribed, window by window."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence

from pybeam.arguments import ArgumentError
from pybeam.engine.failures import kept
from pybeam.models.base import Model
from pybeam.models.transformer.speech import SpeechTransformer
from pybeam.speech.transcript import Segment, Transcript
from pybeam.speech.whisper.assets import WhisperAssets
from pybeam.speech.whisper.languages import DetectedLanguage, LanguageDetector
from pybeam.speech.whisper.live import RunningTranscript
from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Progress, Recording, RecordingFeatures, Window
from pybeam.speech.whisper.requests import Answer, Question
from pybeam.speech.whisper.window_jobs import Asking
from pybeam.speech.whisper.windows import (
    HallucinationFilter,
    Piece,
    WindowResult,
    best_of_failed,
    compression_ratio,
    ends_alone,
    pieces_of,
    windows_of,
)

# what a `WordFinder` does
FindWords = Callable[..., list[Segment]]
# is told of frames that are done, and of the segments that were found in them
Report = Callable[[int, list[Segment]], None]
Stretches = Sequence[tuple[int, int]]


class RecordingLoop:
    """Transcribe recordings, each as a job that asks a decoder; see `pybeam.speech.whisper.window_jobs`.

    Args:
        model: a Whisper model.
        assets: what stands around it.
        options: how recordings are transcribed.
        find_words: gives segments their words; None: they have none.

    Attributes:
        prefix: tokens with which the first window's output begins.
    """

    def __init__(
        self,
        model: Model,
        assets: WhisperAssets,
        options: TranscriptionOptions,
        find_words: FindWords | None = None,
    ) -> None:
        assert model.max_positions is not None, "Whisper's positions are stored"
        self._model, self._options, self._find_words = model, options, find_words
        self._assets, self._extract, self._tokens = assets, assets.extract, assets.tokens
        self._filled, self._stride = assets.window, assets.stride
        self._rate, self._positions = assets.rate, model.max_positions
        self._window = self._frames_of(options.chunk_length)
        tokens = assets.tokens
        self._detector = LanguageDetector(model.start_id, tokens.languages, options)
        self._task, self._language = tokens.task_ids(options.task), tokens.code(options.language)
        # half of the positions are for what was said before
        self._half = self._positions // 2 - 1
        self._hotwords = self._encoded("hotwords", options.hotwords)[: self._half]
        self._first_prompt = self._encoded("initial_prompt", options.initial_prompt)
        self.prefix: list[int] = []
        if options.prefix is not None and options.prefix.strip():
            self.prefix = assets.tokens_of(options.prefix)[: self._half]
            if options.timestamps:
                self.prefix.insert(0, tokens.no_timestamps + 1)

    def _frames_of(self, chunk_length: int | None) -> int:
        """Return the frames of sound that a window has at most."""
        if chunk_length is None:
            return self._filled
        seconds = self._filled / self._rate
        if chunk_length > seconds:
            problem = (
                f"must be at most the {seconds:g} s that the model hears, but is {chunk_length}"
            )
            raise ArgumentError("chunk_length", problem)
        return round(chunk_length * self._rate)

    def _encoded(self, name: str, given: str | Sequence[int] | None) -> list[int]:
        if given is None:
            return []
        if self._tokens.previous is None:
            raise ValueError(
                f"`{name}` needs the token <|startofprev|>, but the model in {self._tokens.path.parent} has "
                "none; leave it out"
            )
        if isinstance(given, str):
            return self._assets.tokens_of(given)
        return list(given)

    def job(
        self, index: int, recording: Recording, tell: Callable[[Progress], None]
    ) -> Asking[None]:
        """Transcribe a recording. `tell` is called with each window, and with the end or the error."""
        try:
            yield from self._job(index, recording, tell)
        except Exception as error:
            tell(Progress(index, recording.id, 0.0, 0.0, error=kept(error)))

    def _job(
        self, index: int, recording: Recording, tell: Callable[[Progress], None]
    ) -> Asking[None]:
        sound = self._sound(recording)
        duration = sound.num_frames / self._rate
        stretches = self._stretches(recording, sound)
        language, probability = yield from self._language_of(recording, sound, stretches)
        position = 0

        def report(frames: int, segments: list[Segment]) -> None:
            nonlocal position
            position += frames
            seconds = min(position / self._rate, duration)
            tell(Progress(index, recording.id, seconds, duration, tuple(segments)))

        walk = self._batched if self._options.windows == "batched" else self._sequential
        said = [*self._first_prompt, *recording.previous]
        segments = yield from walk(sound, stretches, language, said, report)
        sound.close()
        code = language if self._tokens.languages else "en"
        transcript = Transcript(code, probability, duration, tuple(segments))
        tell(Progress(index, recording.id, duration, duration, transcript=transcript))

    def detect(self, recording: Recording) -> Asking[DetectedLanguage | None]:
        """Return the language of a recording; None: the model knows English alone, or there is no sound."""
        sound = self._sound(recording)
        try:
            return (yield from self._detect(sound, self._stretches(recording, sound)))
        finally:
            sound.close()

    def running(self) -> RunningTranscript:
        """Return the transcript of a stream that begins, whose utterances become recordings.

        Raises:
            ValueError: the options have a `prefix`, with which every utterance would begin.
        """
        if self.prefix:
            raise ArgumentError("prefix", "is for recordings; a stream may have an initial_prompt")
        return RunningTranscript(self._options, self._half)

    def _sound(self, recording: Recording) -> RecordingFeatures:
        is_shared = isinstance(self._model, SpeechTransformer)
        return RecordingFeatures.of(recording, self._extract, self._filled, is_shared=is_shared)

    def _stretches(self, recording: Recording, sound: RecordingFeatures) -> Stretches:
        """The stretches in frames, cut to the recording."""
        if recording.stretches is None:
            return [(0, sound.num_frames)] if sound.num_frames else []
        cut = [
            (round(one.start * self._rate), min(round(one.end * self._rate), sound.num_frames))
            for one in recording.stretches
        ]
        return [(start, end) for start, end in cut if start < end]

    def _language_of(
        self, recording: Recording, sound: RecordingFeatures, stretches: Stretches
    ) -> Asking[tuple[str | None, float | None]]:
        """Return the language of a recording, and its probability if it is detected."""
        if recording.language is not None:
            return self._tokens.code(recording.language), None
        found = None
        if self._language is None:
            found = yield from self._detect(sound, stretches)
        return (self._language, None) if found is None else (found.code, found.probability)

    def _detect(
        self, sound: RecordingFeatures, stretches: Stretches
    ) -> Asking[DetectedLanguage | None]:
        if not stretches or not self._tokens.languages:
            return None
        places = (
            (first, min(self._window, end - first))
            for start, end in stretches
            for first in range(start, end, self._window)
        )
        first_ones = itertools.islice(places, self._options.language_detection_segments)
        return (yield from self._detector.detect(sound.window(*place) for place in first_ones))

    def _spoken(self, window: Window, language: str | None) -> Asking[str | None]:
        """Return the language of a window, which is the recording's unless there may be several."""
        if not self._options.multilingual or not self._tokens.languages:
            return language
        probabilities = yield from self._detector.probabilities(window)
        return next(iter(probabilities))

    def _sequential(
        self,
        sound: RecordingFeatures,
        stretches: Stretches,
        language: str | None,
        said: list[int],
        report: Report,
    ) -> Asking[list[Segment]]:
        """Transcribe window by window. Each begins where the one before found a segment's end."""
        threshold = self._options.hallucination_silence_threshold
        was_said = HallucinationFilter(threshold, self._window, sound.num_frames, self._rate)
        prefix = self.prefix
        found: list[Segment] = []
        last, last_end = 0, 0.0
        for start, end in stretches:
            seek = max(start, last)
            if seek > last:
                report(seek - last, [])
            while seek < end:
                window = sound.window(seek, min(self._window, end - seek))
                language = yield from self._spoken(window, language)
                result = yield from self._transcribe(window, said, language, prefix)
                prefix = []
                segments, step = self._segments(result, window, keeps_rest=False)
                segments = self._with_words(segments, window, language, last_end)
                is_gap = False
                if self._find_words is not None and segments:
                    spoken = round(end_of_words(segments) * self._rate) - seek
                    # a word says better than a timestamp where speech has ended
                    if spoken > 0 and not ends_alone(result.tokens, self._tokens.no_timestamps + 1):
                        step = spoken
                    segments, skip, is_gap = was_said.kept(segments, window, last_end)
                    step = step if skip is None else skip
                    last_end = end_of_words(segments) if segments else last_end
                segments = lasting(segments)
                found += segments
                said += [token for segment in segments for token in segment.tokens]
                # nothing was found before a gap, and the same is looked at again
                if result.is_forgotten(self._options) and not is_gap:
                    said = []
                seek += step
                report(step, segments)
            last = seek
        return found

    def _batched(
        self,
        sound: RecordingFeatures,
        stretches: Stretches,
        language: str | None,
        said: list[int],
        report: Report,
    ) -> Asking[list[Segment]]:
        """Transcribe windows that are cut beforehand, all at a time. Their news come in the order of time."""
        ready: dict[int, tuple[int, list[Segment]]] = {}
        num_told = 0

        def one(place: int, start: int, end: int) -> Asking[list[Segment]]:
            nonlocal num_told
            window = sound.window(start, end - start)
            spoken = yield from self._spoken(window, language)
            result = yield from self._transcribe(window, said, spoken)
            segments, _ = self._segments(result, window, keeps_rest=True)
            segments = self._with_words(segments, window, spoken, start / self._rate)
            segments = lasting(segments)
            ready[place] = window.size, segments
            while num_told in ready:
                report(*ready.pop(num_told))
                num_told += 1
            return segments

        windows = windows_of(stretches, self._window)
        if not windows:
            return []
        parts = yield [one(place, *window) for place, window in enumerate(windows)]
        return [segment for part in parts for segment in part]

    def _with_words(
        self, segments: list[Segment], window: Window, language: str | None, last_end: float
    ) -> list[Segment]:
        """Return the segments of a window with their words, if these are wanted."""
        if self._find_words is None or not segments:
            return segments
        return self._find_words(
            segments,
            window.source,
            self._asked(language),
            language=language,
            offset=window.start / self._rate,
            num_frames=window.size,
            last_end=last_end,
        )

    def _asked(self, language: str | None) -> list[int]:
        """Return the tokens of language and task."""
        return [*self._tokens.language_ids(language), *self._task]

    def _transcribe(
        self, window: Window, said: Sequence[int], language: str | None, prefix: Sequence[int] = ()
    ) -> Asking[WindowResult]:
        """Find the text of a window, which begins with a prefix, at higher temperatures if it fails."""
        options = self._options
        prompt, back = self._prompt(said, [] if prefix else self._hotwords, language)
        # as many as CTranslate2 allows
        room = self._positions - len(prompt) + 1
        most = min(options.max_new_tokens or self._positions // 2, room)
        tried: list[WindowResult] = []
        for i, temperature in enumerate(options.temperatures):
            samples = 1 if temperature == 0 else options.best_of
            seeds = [seed_of(options.seed, window.start, i, sample) for sample in range(samples)]
            answers = yield [
                Question(window.source, prompt, back, most, temperature, seed, tuple(prefix))
                for seed in seeds
            ]
            found = [self._found(answer, temperature) for answer in answers]
            tried.append(max(found, key=lambda one: one.average_log_prob))
            if not tried[-1].fails(options):
                return tried[-1]
        return best_of_failed(tried, options)

    def _prompt(
        self, said: Sequence[int], hotwords: Sequence[int], language: str | None
    ) -> tuple[tuple[int, ...], int]:
        """Return the prompt of a window, and how many of its tokens follow the start of the transcript."""
        tokens = self._tokens
        before = list(hotwords)
        # a quarter of the positions is left for the output
        room = min(self._half, 3 * self._positions // 4 - len(before))
        if room > 0 and tokens.previous is not None:
            before += said[-room:]
        if before:
            assert tokens.previous is not None, "prompts are checked"
            before = [tokens.previous, *before]
        behind = self._asked(language)
        if not self._options.timestamps:
            behind.append(tokens.no_timestamps)
        return (*before, self._model.start_id, *behind), len(behind)

    def _found(self, answer: Answer, temperature: float) -> WindowResult:
        no_speech = None if self._tokens.no_speech is None else math.exp(answer.token_log_probs[0])
        tokens = answer.tokens
        text = self._assets.text(tokens).strip()
        average, ratio = answer.score / (len(tokens) + 1), compression_ratio(text)
        return WindowResult(tokens, average, no_speech, temperature, ratio, answer.log_probs)

    def _segments(
        self, found: WindowResult, window: Window, *, keeps_rest: bool
    ) -> tuple[list[Segment], int]:
        """Return the segments of a window, and how many frames later the next window begins."""
        if found.is_silent(self._options):
            return [], window.size
        pieces, step = [Piece(0, window.size, found.tokens)], window.size
        if self._options.timestamps:
            begin = self._tokens.no_timestamps + 1
            pieces, step = pieces_of(
                found.tokens, begin, self._stride, window.size, keeps_rest=keeps_rest
            )
        log_probs = iter(found.log_probs)
        segments = [
            Segment(
                (window.start + piece.start) / self._rate,
                (window.start + piece.end) / self._rate,
                self._assets.text(piece.tokens),
                tuple(piece.tokens),
                found.average_log_prob,
                found.no_speech_probability,
                found.temperature,
                found.compression_ratio,
                log_probs=tuple(itertools.islice(log_probs, len(piece.tokens))),
            )
            for piece in pieces
        ]
        return segments, step


def lasting(segments: Sequence[Segment]) -> list[Segment]:
    """Return those segments that have text and last."""
    return [one for one in segments if one.start < one.end and one.text.strip()]


def end_of_words(segments: Sequence[Segment]) -> float:
    """Return when the last word ends; the last segment, if there are no words."""
    words = [word for segment in segments for word in segment.words]
    return words[-1].end if words else segments[-1].end


def seed_of(*numbers: int) -> int:
    """Return a seed, 0 to 2**63 - 1, that follows from these numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
