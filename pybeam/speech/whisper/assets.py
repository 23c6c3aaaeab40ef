"""`WhisperAssets`: what stands around a Whisper model, from its directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pybeam.speech.features import WhisperFeatureExtractor, load_feature_extractor
from pybeam.speech.whisper.tokens import WhisperTokens
from pybeam.text.json_files import positive, read_json
from pybeam.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class WhisperAssets:
    """Features, special tokens and texts of a Whisper model.

    Attributes:
        extract: turns samples into features.
        tokens: special tokens.
        tokenizer: turns tokens into text.
        window: frames that the model reads at a time.
        stride: frames from one timestamp to the next.
    """

    extract: WhisperFeatureExtractor
    tokens: WhisperTokens
    tokenizer: Tokenizer
    window: int
    stride: int

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WhisperAssets:
        """Read the files of a model's directory.

        Raises:
            ValueError: it is no Whisper model, or a file is missing or wrong.
        """
        tokens = WhisperTokens.load(path)
        extract = load_feature_extractor(path)
        if not isinstance(extract, WhisperFeatureExtractor):
            raise ValueError(
                f"the features of a Whisper model must be Whisper's, but preprocessor_config.json in {path} "
                "names others"
            )
        config = Path(path) / "config.json"
        positions = positive(config, read_json(config), "max_source_positions")
        window = extract.chunk_length * extract.sampling_rate // extract.hop_length
        if window % positions:
            raise ValueError(
                f"the {window} frames of a window (preprocessor_config.json in {path}) must be a multiple of "
                f"`max_source_positions`, which is {positions}"
            )
        return cls(extract, tokens, load_tokenizer(path), window, window // positions)

    @property
    def recorded_tokens(self) -> tuple[int, ...]:
        """The tokens whose log-probabilities are recorded where a transcript starts: no speech, languages."""
        tokens = self.tokens
        no_speech = () if tokens.no_speech is None else (tokens.no_speech,)
        return *no_speech, *tokens.languages.values()

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens of a text that stands within others."""
        return self.tokenizer.encode_target(" " + text.strip())

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens with the spaces around it; timestamps and control tokens have none."""
        # the files of older models do not know timestamps
        known = [token for token in tokens if token < self.tokens.no_timestamps]
        return self.tokenizer.decode(known, strips=False)

    @property
    def rate(self) -> float:
        """Frames per second."""
        return self.extract.sampling_rate / self.extract.hop_length
