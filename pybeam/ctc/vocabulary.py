"""Tokens of a CTC model as texts and words, and its sound as it was trained on it: the files of a folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pybeam.ctc.alignment import Span
from pybeam.ctc.wav2vec2.config import Wav2Vec2Config
from pybeam.models.fields import Fields
from pybeam.speech.transcript import Word
from pybeam.text.json_files import read_json
from pybeam.text.tokenizer_files import TokenizerFiles

# by the name of the setting: tokens that are no text
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
DELIMITER = "|"
# of samples that never change
LEAST_VARIANCE = 1e-7
LARGEST_RATE = 1 << 20


@dataclass(frozen=True)
class Vocabulary:
    """The texts of tokens.

    Attributes:
        texts: by id; "" for what is no text.
        delimiter: the token between words; None: every token is a word.
        is_lower: whether texts are written in lower case.
    """

    texts: tuple[str, ...]
    delimiter: int | None
    is_lower: bool = False

    @classmethod
    def load(cls, directory: Path, config: Wav2Vec2Config) -> Vocabulary:
        """Read `vocab.json` and `tokenizer_config.json`, as transformers writes them.

        Raises:
            FileNotFoundError, ValueError: a file is missing or wrong.
        """
        path = directory / "vocab.json"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing, which says what tokens are")
        files = TokenizerFiles(directory)
        ids = files.vocabulary(path.name) | files.added_tokens()
        largest = max(ids.values(), default=-1)
        if largest >= config.vocab_size:
            raise ValueError(
                f"{path} must have ids below `vocab_size` = {config.vocab_size}, but has {largest}"
            )
        settings = files.tokenizer_config
        special = {_content(settings.get(name, default)) for name, default in SPECIAL.items()}
        delimiter = _content(settings.get("word_delimiter_token", DELIMITER))
        texts = [""] * config.vocab_size
        for token, i in ids.items():
            is_text = token not in special and token != delimiter and i != config.blank
            texts[i] = token if is_text else ""
        return cls(tuple(texts), ids.get(delimiter), bool(settings.get("do_lower_case", False)))

    def text(self, tokens: Sequence[int]) -> str:
        """Return what tokens say, with a space for each delimiter."""
        said = "".join(" " if one == self.delimiter else self.texts[one] for one in tokens)
        said = said.strip()
        return said.lower() if self.is_lower else said

    def words(self, spans: Sequence[Span], offset: float, seconds: float) -> Iterator[Word]:
        """Yield the words of an output.

        Args:
            spans: of its tokens.
            offset: seconds before the first frame.
            seconds: of a frame.
        """
        own: list[Span] = []
        for span in [*spans, None]:
            ends = span is None or span.token == self.delimiter
            if own and (ends or self.delimiter is None):
                yield self._word(own, offset, seconds)
                own = []
            if span is not None and not ends and self.texts[span.token]:
                own.append(span)

    def _word(self, spans: Sequence[Span], offset: float, seconds: float) -> Word:
        text = self.text([span.token for span in spans])
        probability = sum(math.exp(span.log_prob) for span in spans) / len(spans)
        start, end = (offset + seconds * place for place in (spans[0].start, spans[-1].end))
        return Word(text if self.delimiter is None else f" {text}", start, end, probability)


def _content(token: Any) -> Any:
    """Return a token's text, however the files write it."""
    return token.get("content") if isinstance(token, dict) else token


@dataclass(frozen=True)
class SoundForm:
    """How samples are handed to the network.

    Attributes:
        sampling_rate: in Hz.
        is_normalised: whether a recording has mean 0 and variance 1.
    """

    sampling_rate: int = 16000
    is_normalised: bool = True

    @classmethod
    def load(cls, directory: Path) -> SoundForm:
        """Read `preprocessor_config.json`; without it, sound is as in most models.

        Raises:
            ValueError: it is wrong, or describes something else.
        """
        path = directory / "preprocessor_config.json"
        if not path.exists():
            return cls()
        fields = Fields(path, read_json(path))
        fields.expect("feature_size", (1,))
        return cls(
            fields.size("sampling_rate", 16000, LARGEST_RATE), fields.flag("do_normalize", True)
        )

    def __call__(self, samples: Tensor) -> Tensor:
        """Return samples [n] float32 as the network takes them."""
        if not self.is_normalised or not len(samples):
            return samples.float()
        wide = samples.double()
        centred = wide - wide.mean()
        return (centred / (centred.square().mean() + LEAST_VARIANCE).sqrt()).float()
