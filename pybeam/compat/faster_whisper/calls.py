"""`Calls`: the part that `WhisperModel` and `BatchedInferencePipeline` share."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from pybeam.compat.faster_whisper.audio import as_tensor
from pybeam.compat.faster_whisper.options import log, own_options, search_of
from pybeam.compat.faster_whisper.results import TranscriptionOptions
from pybeam.compat.faster_whisper.tokens import suppressed
from pybeam.engine.schedule import Fifo
from pybeam.models.base import Model
from pybeam.speech import whisper

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Spoken(NamedTuple):
    """The language of a recording; see `TranscriptionInfo`."""

    language: str
    probability: float
    probabilities: list[tuple[str, float]] | None


class Calls:
    """A model, what stands around it, and what a call asks of them.

    Args:
        model: a Whisper model.
        folder: its files.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.assets = whisper.WhisperAssets.load(folder)
        self.extract = self.assets.extract
        self.frames_per_second = round(self.assets.rate)

    @property
    def is_multilingual(self) -> bool:
        """Whether the model knows other languages than English."""
        return bool(self.assets.tokens.languages)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's folder, as the package tokenizers has it."""
        import tokenizers

        return tokenizers.Tokenizer.from_file(os.fspath(self.folder / "tokenizer.json"))

    def features(self, samples: np.ndarray) -> Tensor:
        """Return the features [E + 1, F] of samples; the last frame is behind their end."""
        return self.extract.recording(F.pad(as_tensor(samples), (0, self.extract.hop_length)))

    def known(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what the model makes of some arguments of a call."""
        if given["multilingual"] and not self.is_multilingual:
            log.warning("`multilingual` has no effect, since the model knows English alone")
        return {
            "multilingual": given["multilingual"] and self.is_multilingual,
            "suppress_tokens": suppressed(self.tokenizer, given["suppress_tokens"]),
        }

    def language_of(self, given: dict[str, Any], features: Tensor) -> Spoken:
        """Return the language that a call names, or else the one that is heard."""
        language = given["language"]
        if not self.is_multilingual:
            if language not in (None, "en"):
                log.warning("the model knows English alone, so %r is taken for English", language)
            return Spoken("en", 1, None)
        if language is not None:
            return Spoken(language, 1, None)
        names = ("language_detection_segments", "language_detection_threshold", "chunk_length")
        found = self.detected(features, **{name: given[name] for name in names})
        assert found is not None, "there is a frame, and there are languages"
        log.info("Heard %s with probability %.2f", found.code, found.probability)
        return Spoken(found.code, found.probability, list(found.probabilities.items()))

    def detected(self, features: Tensor, **options: Any) -> whisper.DetectedLanguage | None:
        """Return the language that is heard; None: the model knows English alone."""
        asked = whisper.TranscriptionOptions(temperatures=[0.0], **options)
        transcriber = whisper.Transcriber(self.model, self.assets, asked, schedule=Fifo(1))
        [found] = transcriber.detect_languages([features])
        return found

    def transcriber(
        self,
        options: TranscriptionOptions,
        language: str,
        task: str,
        *,
        num_windows: int,
        **changes: Any,
    ) -> whisper.Transcriber:
        """Return who transcribes with these options.

        Args:
            options: as faster-whisper has them.
            language, task: without effect for a model of English alone.
            num_windows: requests that are decoded at a time.
            changes: options of pybeam.
        """
        asked = (language, task) if self.is_multilingual else (None, None)
        return whisper.Transcriber(
            self.model,
            self.assets,
            own_options(options, *asked, **changes),
            algorithm=search_of(options, self.model.start_id, self.assets.tokens.no_timestamps),
            schedule=Fifo(num_windows),
        )
