"""Turn plain text into token ids and back, with the packages that read tokenizer files."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybeam.text.model_files import MAX_TEXT_BYTES, regular_file

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer

# Whisper's tokens for points in time
TIMESTAMP = re.compile(r"<\|\d+\.\d+\|>")
LANGUAGE = re.compile(r"__\w+__|>>\w+<<|[a-z]{2,3}_[A-Z][A-Za-z]+")

Vocabularies = tuple[dict[str, int], dict[str, int]]  # ids of the tokens of source and target


class Pieces(ABC):
    """Turn plain text into ids and back, without language tags and EOS."""

    @property
    def before(self) -> Sequence[int]:
        """Ids that the files themselves put before every text."""
        return ()

    @property
    def frame(self) -> tuple[Sequence[int], Sequence[int]]:
        """Ids that the files themselves put before and behind every text."""
        return (), ()

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...
    def encode_target(self, text: str) -> list[int]:
        return self.encode(text)

    @abstractmethod
    def decode(self, ids: Sequence[int], strips: bool = True) -> str: ...
    @abstractmethod
    def token_id(self, token: str) -> int | None: ...
    def target_id(self, token: str) -> int | None:
        return self.token_id(token)

    def languages(self) -> list[str]:
        return []

    @abstractmethod
    def vocabularies(self) -> Vocabularies: ...


def _package(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{path} needs the package {name}: `pip install {name}`") from error


class JsonPieces(Pieces):
    """The pieces of `tokenizer.json`, which the package tokenizers reads."""

    def __init__(self, path: Path) -> None:
        tokenizers = _package("tokenizers", path)
        regular_file(path, MAX_TEXT_BYTES)
        try:
            self._tokenizer: Tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise ValueError(f"{path} is not a sound tokenizer: {error}") from error
        self._path = path
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = self._tokenizer.get_added_tokens_decoder().items()
        # Whisper's files do not mark timestamps as special tokens
        self._timestamps = {i for i, token in added if TIMESTAMP.fullmatch(token.content)}

    @property
    def before(self) -> list[int]:
        """Special tokens that the tokenizer itself puts before a text: BART's `<s>`."""
        ids = self._ids("", True)
        return ids[:-1] if len(ids) > 1 else []

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """Special tokens that the tokenizer itself puts around a text: Llama's BOS before it."""
        plain = self.encode("a")
        whole = self._ids("a", True)
        for i in range(len(whole) - len(plain) + 1):
            if whole[i : i + len(plain)] == plain:
                return whole[:i], whole[i + len(plain) :]
        return [], []

    def encode(self, text: str) -> list[int]:
        return self._ids(text, False)

    def _ids(self, text: str, adds_special: bool) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special_tokens=adds_special).ids
        except TypeError:
            raise
        except Exception as error:  # the package raises bare Exception
            raise ValueError(f"{self._path} cannot split {text[:20]!r}: {error}") from error

    def decode(self, ids: Sequence[int], strips: bool = True) -> str:
        kept = [token for token in ids if token not in self._timestamps]
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True)
        return text.strip() if strips else text

    def token_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def languages(self) -> list[str]:
        added = self._tokenizer.get_added_tokens_decoder().values()
        return [token.content for token in added if LANGUAGE.fullmatch(token.content)]

    def vocabularies(self) -> Vocabularies:
        vocabulary = self._tokenizer.get_vocab()
        return vocabulary, vocabulary


class SentencePieces(Pieces):
    """A SentencePiece model whose ids are the model's ids."""

    def __init__(self, path: Path) -> None:
        self._model = sentencepiece(path)

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """BOS, if there is one, before a text: what Llama's and Mistral's first tokenizers did."""
        bos_id = self._model.bos_id()
        return ([bos_id] if bos_id >= 0 else []), []

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text)
        return ids

    def decode(self, ids: Sequence[int], strips: bool = True) -> str:
        size = self._model.get_piece_size()
        text: str = self._model.decode([token for token in ids if token < size])
        return text

    def token_id(self, token: str) -> int | None:
        return self._model.piece_to_id(token)

    def vocabularies(self) -> Vocabularies:
        pieces = self._model.id_to_piece(list(range(self._model.get_piece_size())))
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        return vocabulary, vocabulary


class MappedPieces(Pieces):
    """SentencePiece models, and a vocabulary that maps their pieces to ids."""

    def __init__(
        self,
        source_path: Path,
        target_path: Path,
        source_ids: dict[str, int],
        target_ids: dict[str, int],
    ) -> None:
        self._source, self._target = sentencepiece(source_path), sentencepiece(target_path)
        self._id, self._target_id = source_ids, target_ids
        self._piece = {token_id: piece for piece, token_id in target_ids.items()}
        if "<unk>" not in source_ids or "<unk>" not in target_ids:
            raise ValueError(f"the vocabulary beside {source_path} must have the piece '<unk>'")

    def encode(self, text: str) -> list[int]:
        return _ids(self._source.encode(text, out_type=str), self._id)

    def encode_target(self, text: str) -> list[int]:
        return _ids(self._target.encode(text, out_type=str), self._target_id)

    def decode(self, ids: Sequence[int], strips: bool = True) -> str:
        pieces = [self._piece.get(token, "<unk>") for token in ids]
        kept = [
            p for p in pieces if p not in ("<s>", "</s>", "<pad>") and not LANGUAGE.fullmatch(p)
        ]
        text: str = self._target.decode_pieces(kept)
        return text

    def token_id(self, token: str) -> int | None:
        return self._id.get(token)

    def target_id(self, token: str) -> int | None:
        return next((token_id for token_id, piece in self._piece.items() if piece == token), None)

    def languages(self) -> list[str]:
        return [piece for piece in self._id if LANGUAGE.fullmatch(piece)]

    def vocabularies(self) -> Vocabularies:
        return self._id, self._target_id


def _ids(pieces: Sequence[str], ids: dict[str, int]) -> list[int]:
    unknown = ids["<unk>"]
    return [ids.get(piece, unknown) for piece in pieces]


def sentencepiece(path: Path) -> SentencePieceProcessor:
    package = _package("sentencepiece", path)
    regular_file(path, MAX_TEXT_BYTES)
    try:
        model: SentencePieceProcessor = package.SentencePieceProcessor(model_file=str(path))
    # UnicodeDecodeError: the package's own message about the file is no text
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a sound SentencePiece model: {error}") from error
    return model
