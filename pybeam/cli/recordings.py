"""Read sound files, whose names are lines of the input, and turn them into features."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from pybeam.cli.sources import LineReader, Sources
from pybeam.request import Request, Result
from pybeam.speech import FeatureExtractor, WhisperFeatureExtractor, read_wav
from pybeam.text.tokenizer import Tokenizer


class Recordings(Sources):
    """Make a request for every line, the name of a WAV file. An empty line is an empty recording.

    A file that cannot be read gives a result with an error, and the others go on.
    """

    def __init__(
        self,
        reader: LineReader,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        warn: Callable[[str], None],
        extract: FeatureExtractor | WhisperFeatureExtractor,
        prefix: Sequence[int],
    ) -> None:
        super().__init__(reader, tokenizer, max_tokens, warn)
        self._extract, self._prefix = extract, [*tokenizer.prefix, *prefix]
        self._errors: dict[int, Exception] = {}  # by index

    def complete(self, result: Result) -> Result:
        """Return the result, with the error of its file, if there was one."""
        error = self._errors.pop(result.index, result.error)
        if error is None:
            return result
        return dataclasses.replace(result, hypotheses=[], stop_reason="error", error=error)

    def _request(self, text: str) -> Request:
        features = torch.zeros(0, self._extract.num_mel_bins)  # [E, F]
        if text:
            try:
                features = self._extract(read_wav(text, self._extract.sampling_rate))
            except (OSError, ValueError) as error:
                self._errors[self.num_lines - 1] = error
        return Request(features, prefix=self._prefix)
