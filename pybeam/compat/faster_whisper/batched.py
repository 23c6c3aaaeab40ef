"""`BatchedInferencePipeline`: a recording is cut at its pauses, and many windows are decoded at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from pybeam.arguments import ArgumentError
from pybeam.compat.faster_whisper.audio import Audio, samples_of
from pybeam.compat.faster_whisper.options import log, options_of
from pybeam.compat.faster_whisper.results import (
    Segment,
    TranscriptionInfo,
    TranscriptionOptions,
    VadOptions,
    format_timestamp,
)
from pybeam.compat.faster_whisper.transcribe import SUPPRESSED, TEMPERATURES, WhisperModel
from pybeam.compat.faster_whisper.vad import (
    Pauses,
    gathered,
    get_speech_timestamps,
    joined,
    length,
)
from pybeam.speech import whisper
from pybeam.speech.whisper.windows import compression_ratio
from pybeam.speech.words import BEFORE_WORDS, BEHIND_WORDS

# what is true of batched windows, whatever the arguments are
FIXED = {
    "condition_on_previous_text": False,
    "prompt_reset_on_temperature": 0.5,
    "max_initial_timestamp": 0.0,
    "hallucination_silence_threshold": None,
}
# and of the search, which tries no second temperature and skips no window
SEARCH = {
    "windows": "batched",
    "temperatures": [0.0],
    "compression_ratio_threshold": None,
    "log_prob_threshold": None,
    "no_speech_threshold": None,
    "max_initial_timestamp": 1.0,
    "prefix": None,
}
# a shorter pause of speech does not end a window
PAUSE_MS = 160
# behind the sound in which the language is detected; silence, as there
SILENCE = -1.5


class Window(NamedTuple):
    """The samples of a window, and the seconds before it."""

    offset: float
    samples: np.ndarray


class BatchedInferencePipeline:
    """Transcribe recordings with a `WhisperModel`, many windows at a time.

    Args:
        model: this model.
    """

    def __init__(self, model: WhisperModel) -> None:
        if not isinstance(model, WhisperModel):
            raise TypeError(f"`model` must be a WhisperModel of pybeam, but is {model!r}")
        self.model, self._calls = model, model.calls

    # the arguments are those of the system that this stands for
    def transcribe(
        self,
        audio: Audio,
        language: str | None = None,
        task: str = "transcribe",
        log_progress: bool = False,
        beam_size: int = 5,
        best_of: int = 5,
        patience: float = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        temperature: float | Sequence[float] = TEMPERATURES,
        compression_ratio_threshold: float | None = 2.4,
        log_prob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
        condition_on_previous_text: bool = True,
        prompt_reset_on_temperature: float = 0.5,
        initial_prompt: str | Iterable[int] | None = None,
        prefix: str | None = None,
        suppress_blank: bool = True,
        suppress_tokens: list[int] | None = SUPPRESSED,
        without_timestamps: bool = True,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = BEFORE_WORDS,
        append_punctuations: str = BEHIND_WORDS,
        multilingual: bool = False,
        vad_filter: bool = True,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: int | None = None,
        clip_timestamps: list[dict[str, float]] | None = None,
        hallucination_silence_threshold: float | None = None,
        batch_size: int = 8,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
    ) -> tuple[Iterable[Segment], TranscriptionInfo]:
        """Return the segments of a recording, and what is known of it.

        The recording is cut at its pauses into windows, which are decoded `batch_size` at a time as their
        segments are asked for. No window sees another.

        Args:
            clip_timestamps: the windows: seconds at which they `start` and `end`. Without them, and without
                `vad_filter`, the recording must fit into one.
            vad_filter, vad_parameters: whether windows are cut at pauses, and at which: of 160 ms, unless
                there are parameters. They last `chunk_length` seconds at most.
            batch_size: windows that are decoded at a time.
            temperature: the first one is told of the segments. All are searched for.
            best_of, compression_ratio_threshold, log_prob_threshold, no_speech_threshold,
                condition_on_previous_text, prompt_reset_on_temperature, prefix, max_initial_timestamp,
                hallucination_silence_threshold: without effect, as in faster-whisper.
            audio, language, task, log_progress, beam_size, patience, length_penalty, repetition_penalty,
                no_repeat_ngram_size, initial_prompt, suppress_blank, suppress_tokens, without_timestamps,
                word_timestamps, prepend_punctuations, append_punctuations, multilingual, max_new_tokens,
                chunk_length, hotwords, language_detection_threshold, language_detection_segments: those of
                `WhisperModel.transcribe`.

        Raises:
            ValueError, TypeError: an option is out of range, or the model does not know the language.
        """
        # windows are as long as those of the model when its language is detected
        given = locals() | {"chunk_length": None}
        calls, rate = self._calls, self._calls.extract.sampling_rate
        samples = samples_of(audio, rate)
        duration = len(samples) / rate
        log.info("Transcribing %s of sound", format_timestamp(duration))
        seconds = chunk_length or calls.extract.chunk_length
        chunks = [{"start": 0, "end": len(samples)}]
        if clip_timestamps:
            chunks = [
                {name: int(place * rate) for name, place in clip.items()}
                for clip in clip_timestamps
            ]
        elif vad_filter:
            vad_parameters = window_rules(vad_parameters, seconds)
            chunks = get_speech_timestamps(samples, vad_parameters, rate)
        elif duration >= seconds:
            raise ArgumentError(
                "vad_filter",
                f"must be True for {seconds} s of sound or more, unless there are `clip_timestamps`",
            )
        log.info("Left out %s of silence", format_timestamp(duration - length(chunks) / rate))
        groups = [[chunk] for chunk in chunks]
        begins = [chunk["start"] for chunk in chunks]
        if not clip_timestamps:
            groups = gathered(chunks, seconds * rate)
            begins = [0, *itertools.accumulate(map(length, groups))]
        windows = [
            Window(begin / rate, joined(samples, group))
            for begin, group in zip(begins, groups, strict=False)
        ]
        options = options_of(given, **FIXED, **calls.known(given), clip_timestamps=chunks)
        options.temperatures = options.temperatures[:1]
        spoken = calls.language_of(given, self._beginning(windows, language_detection_segments))
        if isinstance(initial_prompt, str):
            # as there, without a space before it
            initial_prompt = calls.tokenizer.encode(initial_prompt, add_special_tokens=False).ids
        transcriber = calls.transcriber(
            options,
            spoken.language,
            task,
            num_windows=batch_size,
            initial_prompt=initial_prompt,
            chunk_length=chunk_length,
            **SEARCH,
        )
        segments = self._segments(transcriber, windows, options, log_progress)
        if not clip_timestamps:
            segments = Pauses(chunks, rate).restored(segments)
        info = TranscriptionInfo(
            language=spoken.language,
            language_probability=spoken.probability,
            duration=duration,
            duration_after_vad=length(chunks) / rate,
            all_language_probs=spoken.probabilities,
            transcription_options=options,
            vad_options=vad_parameters,
        )
        return segments, info

    def _features(self, window: Window) -> Tensor:
        """Return the features [E, F] of as many seconds of a window as the model hears."""
        extract = self._calls.extract
        features = self._calls.features(window.samples)[:-1]
        # as there, words may end in what is left of the last second
        seconds = ceil(len(window.samples) / extract.sampling_rate)
        size = min(seconds, extract.chunk_length) * self._calls.frames_per_second
        return F.pad(features, (0, 0, 0, size - len(features)))

    def _beginning(self, windows: Iterable[Window], num_windows: int) -> Tensor:
        """Return the features of the first windows, and of silence if there are none."""
        extract = self._calls.extract
        most = num_windows * extract.chunk_length * self._calls.frames_per_second
        parts: list[Tensor] = []
        for window in windows:
            if sum(map(len, parts)) >= most:
                break
            parts.append(self._calls.features(window.samples)[:-1])
        return torch.cat([*parts, torch.full((1, extract.num_mel_bins), SILENCE)])[:most]

    def _segments(
        self,
        transcriber: whisper.Transcriber,
        windows: Sequence[Window],
        options: TranscriptionOptions,
        log_progress: bool,
    ) -> Iterator[Segment]:
        recordings = (whisper.Recording(partial(self._features, window)) for window in windows)
        found = zip(windows, transcriber.transcribe(recordings), strict=True)
        numbers, frames_per_second = itertools.count(1), self._calls.frames_per_second
        for window, transcript in tqdm(found, total=len(windows), disable=not log_progress):
            for one in transcript.segments:
                seek = int(window.offset * frames_per_second)
                segment = Segment.of(next(numbers), seek, one, has_words=options.word_timestamps)
                if one.end == transcript.duration:
                    # frames end before the samples do
                    segment.end = len(window.samples) / self._calls.extract.sampling_rate
                segment.temperature = options.temperatures[0]
                segment.compression_ratio = compression_ratio(segment.text)
                # words are placed by frames
                begin = seek / frames_per_second if segment.words else window.offset
                yield moved(segment, begin)


def window_rules(given: VadOptions | dict[str, Any] | None, seconds: int) -> VadOptions:
    """Return what `vad_parameters` says of windows of so many seconds."""
    if isinstance(given, VadOptions):
        return given
    asked = {"min_silence_duration_ms": PAUSE_MS} if given is None else given
    return VadOptions(**asked | {"max_speech_duration_s": seconds})


def moved(segment: Segment, seconds: float) -> Segment:
    """Return a segment that comes so many seconds later."""
    for word in segment.words or ():
        word.start, word.end = round(word.start + seconds, 2), round(word.end + seconds, 2)
    segment.start, segment.end = round(segment.start + seconds, 3), round(segment.end + seconds, 3)
    return segment
