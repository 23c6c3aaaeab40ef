"""The tokens of FireRedASR: a Chinese character, or a SentencePiece of anything else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pybeam.text.model_files import MAX_TEXT_BYTES, regular_file
from pybeam.text.subwords import Pieces, Vocabularies, sentencepiece

CHINESE = re.compile(r"([\u3400-\u4dbf\u4e00-\u9fff])")
# commas, full stops, question and exclamation marks, the wide ones too
PUNCTUATION = re.compile("[\uff0c\u3002\uff1f\uff01,.?!]")
# how SentencePiece writes a space
SPACE = "▁"
UNKNOWN = "<unk>"
# tokens that no text shows
SPECIAL = frozenset(("<blank>", "<pad>", "<sos>", "<eos>", "<sil>"))


def read_dictionary(path: Path) -> list[str]:
    """Read the tokens of `dict.txt`, a line each: the token, and its number if the file has numbers.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not UTF-8, numbers are not 0, 1, 2, …, a token is there twice, or `<unk>` is
            missing.
    """
    tokens: list[str] = []
    try:
        # only line feeds end a line: a token may be another separator
        lines = (
            regular_file(path, MAX_TEXT_BYTES)
            .read_bytes()
            .decode("utf-8")
            .removesuffix("\n")
            .split("\n")
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8, but cannot be read: {error}") from error
    for i, line in enumerate(lines):
        # an empty line is the space
        token, *number = line.split() or [" "]
        if number and number[0] != str(i):
            raise ValueError(f"line {i + 1} of {path} must have the number {i}, but is {line!r}")
        tokens.append(" " if token == "<space>" else token)
    known = set(tokens)
    if len(known) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        raise ValueError(f"{path} must have every token once, but has {twice!r} twice")
    if UNKNOWN not in known:
        raise ValueError(f"{path} must have the token {UNKNOWN!r}")
    return tokens


class CharacterPieces(Pieces):
    """The pieces of `dict.txt`, and a SentencePiece model that splits what is not Chinese.

    Texts become upper case, and punctuation becomes spaces, as in the training of FireRedASR.
    """

    def __init__(self, dictionary: Path, model: Path) -> None:
        self._tokens = read_dictionary(dictionary)
        self._id = {token: i for i, token in enumerate(self._tokens)}
        self._model = sentencepiece(model)

    def encode(self, text: str) -> list[int]:
        pieces: list[str] = []
        for part in CHINESE.split(PUNCTUATION.sub(" ", text.upper())):
            if CHINESE.fullmatch(part):
                pieces.append(part)
            elif part.strip():
                pieces += self._model.encode(part.strip(), out_type=str)
        unknown = self._id[UNKNOWN]
        return [self._id.get(piece, unknown) for piece in pieces]

    def decode(self, ids: Sequence[int], strips: bool = True) -> str:
        tokens = [self._tokens[i] if 0 <= i < len(self._tokens) else UNKNOWN for i in ids]
        text = "".join(token for token in tokens if token not in SPECIAL)
        text = text.replace(SPACE, " ")
        return text.strip() if strips else text

    def token_id(self, token: str) -> int | None:
        return self._id.get(token)

    def vocabularies(self) -> Vocabularies:
        return self._id, self._id
