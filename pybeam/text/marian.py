"""The words of a folder of Marian: `decoder.yml` names the model and its two vocabularies."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any

from pybeam.text.json_files import LARGEST
from pybeam.text.model_files import MAX_TEXT_BYTES, named_file
from pybeam.text.needed_files import needed_file
from pybeam.text.subwords import MappedPieces, Pieces, SentencePieces, sentencepiece
from pybeam.text.yaml_files import Settings, read_settings

# what names the model and its vocabularies, and what Marian's training calls it
DECODER_SETTINGS, TRAINED_SETTINGS = "decoder.yml", "*.decoder.yml"
EOS, UNKNOWN = "</s>", "<unk>"
# of YAML's texts in double quotes
ESCAPE = re.compile(r"\\(x..|u.{4}|U.{8}|.)", re.DOTALL)
ESCAPED = {"0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def is_marian(directory: Path) -> bool:
    """Whether a folder is one of Marian: it has `decoder.yml`, and no config.json of another kind."""
    if (directory / "config.json").exists():
        return False
    return (directory / DECODER_SETTINGS).exists() or any(directory.glob(TRAINED_SETTINGS))


@dataclass(frozen=True)
class Words:
    """The vocabularies of a folder.

    Attributes:
        path: decoder.yml.
        settings: what stands in it.
        model: the file of the weights.
        vocabularies: the files of source and target.
    """

    path: Path
    settings: Settings
    model: Path
    vocabularies: tuple[Path, Path]

    has_encoder = True

    @cached_property
    def source_ids(self) -> dict[str, int]:
        """The id of each source token."""
        return _ids(self.vocabularies[0])

    @cached_property
    def target_ids(self) -> dict[str, int]:
        """The id of each target token."""
        source, target = self.vocabularies
        return self.source_ids if source == target else _ids(target)

    def pieces(self, names: Sequence[str] = ()) -> Pieces:
        """Return what splits texts: vocabularies that are SentencePiece models, or those beside the others.

        Raises FileNotFoundError if there are none.
        """
        source, target = self.vocabularies
        if source.suffix == ".spm" and source == target:
            return SentencePieces(source)
        if not source.suffix == target.suffix == ".spm":
            source, target = (self.path.parent / name for name in ("source.spm", "target.spm"))
        if not source.exists() or not target.exists():
            raise FileNotFoundError(
                f"no tokenizer in {self.path.parent}: the vocabularies are no SentencePiece models (.spm), "
                "and there are no source.spm and target.spm; give token ids"
            )
        return MappedPieces(source, target, self.source_ids, self.target_ids)

    @property
    def transformers_config(self) -> dict[str, Any]:
        """The fields that config.json of transformers would have for texts; EOS is that of sources."""
        return {"model_type": "marian", "eos_token_id": self.source_ids.get(EOS)}


def read_words(directory: Path) -> Words:
    """Read what a folder's `decoder.yml`, or its only ``*.decoder.yml``, names.

    Names may be paths of the machine that trained the model: the files are those of that name in the folder.

    Raises:
        ValueError: a file is missing or broken, or there are several models or vocabularies of factors.
    """
    path = directory / DECODER_SETTINGS
    if not path.exists():
        found = sorted(directory.glob(TRAINED_SETTINGS))
        if len(found) != 1:
            raise ValueError(
                f"{directory} must have a decoder.yml, but has {', '.join(one.name for one in found)}; copy "
                "the one to use to decoder.yml"
            )
        [path] = found
    settings = read_settings(path)
    [model] = _files(path, settings, "models", 1)
    source, target = _files(path, settings, "vocabs", 2)
    return Words(path, settings, model, (source, target))


def _files(path: Path, settings: Settings, name: str, num: int) -> list[Path]:
    named = settings.texts(name)
    if len(named) != num:
        several = ", each in a folder of its own for several" if num == 1 else ""
        raise ValueError(f"`{name}` in {path} must be {num}{several}, but is {named}")
    where = f"`{name}` in {path}"
    # both kinds of slashes
    return [named_file(path.parent, PureWindowsPath(one).name, where) for one in named]


def _ids(path: Path) -> dict[str, int]:
    """Read the ids of a vocabulary's tokens. Raises ValueError if the file is missing or broken."""
    if path.suffix == ".fsv":
        raise ValueError(f"{path} is a vocabulary of factors, which pybeam does not have")
    needed_file(path, MAX_TEXT_BYTES)
    if path.suffix == ".spm":
        model = sentencepiece(path)
        pieces = model.id_to_piece(list(range(model.get_piece_size())))
        return {piece: i for i, piece in enumerate(pieces)}
    try:
        text = path.read_text("utf-8")
        found = _from_yaml(text) if path.suffix in (".yml", ".yaml", ".json") else _from_lines(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a vocabulary, but cannot be read: {error}") from error
    odd = next((one for one in found.items() if not _is_id(one[1])), None)
    if odd is not None or len(set(found.values())) < len(found):
        raise ValueError(
            f"{path} must have a token id of its own for each token, but has "
            f"{'one id for two' if odd is None else odd}"
        )
    return found


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _from_lines(text: str) -> dict[str, int]:
    return {token: i for i, token in enumerate(text.removesuffix("\n").split("\n"))}


def _from_yaml(text: str) -> dict[str, int]:
    """Read lines ``token: id`` as Marian writes them, or JSON.

    A reader of YAML takes some tokens for numbers, and some for ends of lines.
    """
    if text.lstrip().startswith("{"):
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("there must be a table of ids")
        return found
    ids: dict[str, int] = {}
    key = None
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if line.startswith("? "):  # a long token, whose id stands on the next line
            key = line[2:]
        elif line.strip() and line != "---":
            token, _, number = line.rpartition(":")
            token = _unquoted(token if key is None else key)
            if token in ids:
                raise ValueError(f"{token!r} stands there twice")
            ids[token], key = int(number), None
    return ids


def _unquoted(token: str) -> str:
    if len(token) > 1 and token[0] == token[-1] == '"':
        return ESCAPE.sub(_escaped, token[1:-1])
    if len(token) > 1 and token[0] == token[-1] == "'":
        return token[1:-1].replace("''", "'")
    return token


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else ESCAPED.get(code, code)
