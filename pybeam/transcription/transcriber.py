"""`Transcriber`: recordings of any length in, transcripts out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.speech.transcript import Transcript
from pybeam.transcription.options import TranscriptionOptions
from pybeam.transcription.recording import Progress, Recording


class TranscribeError(RuntimeError):
    """Raised when a recording failed; its cause is the error.

    Attributes:
        index: position of the recording among those handed over.
        id: the recording's own id.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"recording {progress.index} failed: {progress.error}")
        self.index, self.id = progress.index, progress.id


class Transcriber:
    """Transcribe recordings of any length with a Whisper model, window by window.

    Windows of all recordings share one stream of the decoder: the next window of a recording is submitted
    when the one before it is known, beside windows of other recordings. Results are those of each recording
    alone, on a CPU to the last bit.

    Args:
        model: from `pybeam.load_model`.
        path: the model's directory, with `generation_config.json`, `tokenizer.json` and
            `preprocessor_config.json`.
        options: how recordings are transcribed; None: `TranscriptionOptions()`.
        algorithm: the search at temperature 0.0; its processors come first. None:
            ``pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))``, as faster-whisper searches.
        schedule, backend, memory_limit: those of `pybeam.Decoder`. They change no result.

    Attributes:
        sampling_rate: of samples, in Hz.
        languages: codes of the languages that the model knows, such as "en"; empty: English alone.

    Raises:
        ValueError, TypeError: the model is no Whisper model, a file is missing or wrong, or options do not
            fit the model.
    """

    sampling_rate: int
    languages: tuple[str, ...]

    def __init__(
        self,
        model: Model,
        path: str | os.PathLike[str],
        options: TranscriptionOptions | None = None,
        *,
        algorithm: Algorithm | None = None,
        schedule: Schedule | None = None,
        backend: str = "auto",
        memory_limit: int | None = None,
    ) -> None:
        raise NotImplementedError

    def transcribe(self, recordings: Iterable[Any]) -> Iterator[Transcript]:
        """Yield the transcripts in the order of the recordings, each once it and all before it are known.

        Args:
            recordings: samples [n] float32, features [E, F], or `Recording` objects. They are read as they
                are needed, some ahead.

        Raises:
            TranscribeError: a recording failed. It is raised in that recording's place.
        """
        raise NotImplementedError

    def stream(self, recordings: Iterable[Any | Recording]) -> Iterator[Progress]:
        """Yield news of the recordings: each window as it is ready, and each transcript, in any order.

        Args:
            recordings: as for `transcribe`. One that fails gives a `Progress` with an `error`; nothing is
                raised for it.
        """
        raise NotImplementedError
