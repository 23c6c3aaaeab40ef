"""`WhisperModel`: a recording in, a generator of segments out, and what is known of the recording."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from tqdm import tqdm

from pybeam.arguments import ArgumentError
from pybeam.compat.ctranslate2.computing import ComputeType, Computing
from pybeam.compat.faster_whisper.audio import Audio, as_tensor, samples_of
from pybeam.compat.faster_whisper.calls import Calls
from pybeam.compat.faster_whisper.download import download_model
from pybeam.compat.faster_whisper.options import clips_of, log, options_of
from pybeam.compat.faster_whisper.results import (
    Segment,
    TranscriptionInfo,
    VadOptions,
    format_timestamp,
)
from pybeam.compat.faster_whisper.vad import Chunk, Pauses, get_speech_timestamps, joined
from pybeam.speech import whisper
from pybeam.speech.features import WhisperFeatureExtractor
from pybeam.speech.words import BEFORE_WORDS, BEHIND_WORDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEMPERATURES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
SUPPRESSED = [-1]


class WhisperModel:
    """A Whisper model that transcribes one recording at a time.

    Args:
        model_size_or_path: a folder of transformers or of CTranslate2, a name on the hub, or one of
            `available_models`.
        device, device_index: `device` of `pybeam.load_model`; one number.
        compute_type: `dtype` of `pybeam.load_model`, by the names of CTranslate2. On a GPU all kinds of int8
            are the floats that are named beside it, and int16 is float32 everywhere.
        cpu_threads: torch's threads; 0: as they are.
        num_workers: changes nothing. Calls of several threads run beside one another.
        download_root, local_files_only, revision, use_auth_token: see `download_model`.
        files, model_kwargs: must be left out.

    Attributes:
        model: what `pybeam.load_model` returned.
        logger: the one of `faster_whisper`.
        feature_extractor, hf_tokenizer: those of the model's folder.

    Raises:
        ValueError, TypeError: an argument is not known or does not fit; see `pybeam.load_model`.
    """

    # the arguments are those of the system that this stands for
    def __init__(
        self,
        model_size_or_path: str,
        device: str = "auto",
        device_index: int | list[int] = 0,
        compute_type: ComputeType = "default",
        cpu_threads: int = 0,
        num_workers: int = 1,
        download_root: str | None = None,
        local_files_only: bool = False,
        files: dict[str, Any] | None = None,
        revision: str | None = None,
        use_auth_token: str | bool | None = None,
        **model_kwargs: Any,
    ) -> None:
        self.logger = log
        if files:
            raise ArgumentError(
                "files",
                "must be left out, as weights are read from a folder; write the files into one",
            )
        for name, value in model_kwargs.items():
            if value:
                raise TypeError(
                    f"`{name}` must be left out: it is an option of CTranslate2's alone"
                )
        if cpu_threads:
            torch.set_num_threads(cpu_threads)
        folder = Path(model_size_or_path)
        if not folder.is_dir():
            where = None, local_files_only, download_root, revision, use_auth_token
            folder = Path(download_model(os.fspath(model_size_or_path), *where))
        self.model = Computing.of(device, device_index, compute_type).load(folder)
        self.calls = Calls(self.model, folder)
        self.feature_extractor: WhisperFeatureExtractor = self.calls.extract

    def __repr__(self) -> str:
        return f"WhisperModel({self.model!r})"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"pybeam's WhisperModel has no `{name}`; it has `transcribe`, `detect_language` and "
            "`supported_languages`, and pybeam.Transcriber is behind it"
        )

    @property
    def supported_languages(self) -> list[str]:
        """The codes of the languages that the model knows."""
        return list(self.calls.assets.tokens.languages) or ["en"]

    @property
    def hf_tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's folder, as the package tokenizers has it."""
        return self.calls.tokenizer

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
        without_timestamps: bool = False,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = BEFORE_WORDS,
        append_punctuations: str = BEHIND_WORDS,
        multilingual: bool = False,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: int | None = None,
        clip_timestamps: str | list[float] = "0",
        hallucination_silence_threshold: float | None = None,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
    ) -> tuple[Iterable[Segment], TranscriptionInfo]:
        """Return the segments of a recording, and what is known of it.

        The language is detected at once. The segments are a generator, which transcribes a window when its
        segments are asked for.

        Args:
            audio: a sound file, a binary stream with its content, or samples [n] float32 at 16 kHz.
            log_progress: whether a bar on stderr shows the progress.
            beam_size, patience, length_penalty, repetition_penalty, no_repeat_ngram_size: of the search at
                temperature 0; see `pybeam.speech.whisper.beam_search` and `pybeam.processors`.
            temperature: one, or `temperatures` of `pybeam.TranscriptionOptions`.
            suppress_tokens: ids that are never written, control tokens with them; -1 stands for symbols that
                are mostly not spoken. None or nothing: all tokens may be.
            without_timestamps, word_timestamps: the contrary of `timestamps`, and `words`.
            vad_filter, vad_parameters: whether pauses are taken out of the sound, and where these are, see
                `VadOptions`. Not with `clip_timestamps`.
            clip_timestamps: seconds at which parts of the recording begin and end in turns, in a list or
                joined by commas; the last part may have no end. With "0" all of it is transcribed.
            language, task, best_of, compression_ratio_threshold, log_prob_threshold, no_speech_threshold,
                condition_on_previous_text, prompt_reset_on_temperature, initial_prompt, prefix,
                suppress_blank, max_initial_timestamp, prepend_punctuations, append_punctuations,
                multilingual, max_new_tokens, chunk_length, hallucination_silence_threshold, hotwords,
                language_detection_threshold, language_detection_segments: those of
                `pybeam.TranscriptionOptions`.

        Raises:
            ValueError, TypeError: an option is out of range, or the model does not know the language.
        """
        given = locals()
        calls, rate = self.calls, self.feature_extractor.sampling_rate
        samples = samples_of(audio, rate)
        duration = len(samples) / rate
        log.info("Transcribing %s of sound", format_timestamp(duration))
        chunks: list[Chunk] = []
        if vad_filter and clip_timestamps == "0":
            vad_parameters = VadOptions.of(vad_parameters)
            chunks = get_speech_timestamps(samples, vad_parameters, rate)
            samples = joined(samples, chunks)
            log.info("Left out %s of silence", format_timestamp(duration - len(samples) / rate))
        features = calls.features(samples)
        clips = clips_of(clip_timestamps, (len(features) - 1) / calls.frames_per_second)
        first = round(clips[0].start * calls.frames_per_second) if clips else 0
        options = options_of(given, **calls.known(given))
        # a part that begins behind the end says nothing about the language
        heard = features[first:] if first < len(features) - 1 else features
        spoken = calls.language_of(given, heard)
        transcriber = calls.transcriber(
            options,
            spoken.language,
            task,
            num_windows=best_of,
            chunk_length=chunk_length,
            # a part that begins later has no first words
            prefix=None if first else prefix,
        )
        recording = whisper.Recording(features[:-1], clips)
        seconds = len(samples) / rate
        segments = self._segments(transcriber, recording, seconds, word_timestamps, log_progress)
        info = TranscriptionInfo(
            language=spoken.language,
            language_probability=spoken.probability,
            duration=duration,
            duration_after_vad=seconds,
            all_language_probs=spoken.probabilities,
            transcription_options=options,
            vad_options=vad_parameters,
        )
        return Pauses(chunks, rate).restored(segments) if chunks else segments, info

    def detect_language(
        self,
        audio: np.ndarray | None = None,
        features: np.ndarray | None = None,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        language_detection_segments: int = 1,
        language_detection_threshold: float = 0.5,
    ) -> tuple[str, float, list[tuple[str, float]]]:
        """Return the language of a recording, its probability, and those of all languages.

        Args:
            audio: samples [n] float32 at 16 kHz.
            features: those of the recording [F, E], unless there is `audio`.
            vad_filter, vad_parameters: see `transcribe`.
            language_detection_segments, language_detection_threshold: see `pybeam.TranscriptionOptions`.

        Raises:
            ValueError: there is neither, or the model knows English alone.
        """
        if audio is not None:
            samples = samples_of(audio, self.feature_extractor.sampling_rate)
            if vad_filter:
                samples = joined(samples, get_speech_timestamps(samples, vad_parameters))
            seconds = language_detection_segments * self.feature_extractor.chunk_length
            heard = self.calls.features(samples[: seconds * self.feature_extractor.sampling_rate])
        elif features is not None:
            heard = as_tensor(features).t()
        else:
            raise ValueError("`audio` or `features` must be given")
        given = {
            "language_detection_segments": language_detection_segments,
            "language_detection_threshold": language_detection_threshold,
        }
        found = self.calls.detected(heard, **given)
        if found is None:
            raise ValueError(f"{self!r} knows English alone, so there is no language to detect")
        return found.code, found.probability, list(found.probabilities.items())

    def _segments(
        self,
        transcriber: whisper.Transcriber,
        recording: whisper.Recording,
        seconds: float,
        has_words: bool,
        log_progress: bool,
    ) -> Iterator[Segment]:
        done, numbers = 0.0, itertools.count(1)
        with tqdm(total=seconds, unit="seconds", disable=not log_progress) as bar:
            for news in transcriber.stream([recording]):
                if news.error is not None:
                    raise news.error
                seek = round(done * self.calls.frames_per_second)
                for one in news.segments:
                    yield Segment.of(next(numbers), seek, one, has_words=has_words)
                bar.update(news.position - done)
                done = news.position
