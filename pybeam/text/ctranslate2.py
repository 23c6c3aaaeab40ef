"""The words of a folder that CTranslate2's converters have written: vocabularies and special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pybeam.text.json_files import read_json
from pybeam.text.model_files import MAX_TEXT_BYTES, regular_file
from pybeam.text.subwords import MappedPieces

# the weights of a folder that CTranslate2's converters have written
BINARY = "model.bin"
# how Marian's own file of that name begins: with version 1 in eight bytes, where CTranslate2's has four
MARIANS = (1).to_bytes(8, "little")
# of models whose config.json is silent
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
# which config.json of a Whisper model does not name
WHISPER_SPECIAL = {
    "unk_token": "<|endoftext|>",
    "bos_token": "<|startoftranscript|>",
    "eos_token": "<|endoftext|>",
    "decoder_start_token": "<|startoftranscript|>",
}
WHISPER_TASKS = ("transcribe", "translate")


def is_ctranslate2(directory: Path) -> bool:
    """Whether a folder has CTranslate2's weights, and no model of transformers beside them.

    Raises ValueError if config.json cannot be read.
    """
    binary, path = directory / BINARY, directory / "config.json"
    if not binary.exists() or (path.exists() and "model_type" in read_json(path)):
        return False
    if not binary.is_file():
        return True
    with open(binary, "rb") as file:
        return file.read(len(MARIANS)) != MARIANS


@dataclass(frozen=True)
class Words:
    """The vocabularies and special tokens of a folder.

    Attributes:
        directory: the folder.
        source, target: tokens in the order of their ids. They are one list for a shared vocabulary.
        config: what config.json says, with the names of special tokens.
        is_whisper, has_encoder: which kind of model this is.
    """

    directory: Path
    source: list[str]
    target: list[str]
    config: dict[str, Any]
    is_whisper: bool = False
    has_encoder: bool = True

    @cached_property
    def source_ids(self) -> dict[str, int]:
        """The id of each source token, the first of several; the unknown word may stand behind them all."""
        return self._ids(self.source)

    @cached_property
    def target_ids(self) -> dict[str, int]:
        """The id of each target token, the first of several."""
        return self.source_ids if self.target is self.source else self._ids(self.target)

    def _ids(self, tokens: Sequence[str]) -> dict[str, int]:
        ids: dict[str, int] = {}
        for i, token in enumerate(tokens):
            ids.setdefault(token, i)
        if (unknown := self.config.get("unk_token")) is not None:
            ids.setdefault(unknown, len(tokens))
        return ids

    def special_id(self, name: str) -> int | None:
        """Return the target id of a special token by its name in config.json; None: there is none."""
        return self.target_ids.get(self.config.get(name) or "")

    def pieces(self, names: Sequence[str]) -> MappedPieces:
        """Return the pieces of SentencePiece models, which may have these names, with our ids.

        Raises FileNotFoundError if there are none.
        """
        pairs = [("source.spm", "target.spm")]
        pairs += [(name, name) for name in ("sentencepiece.bpe.model", *names)]
        for pair in pairs:
            source, target = (self.directory / name for name in pair)
            if source.exists() and target.exists():
                return MappedPieces(source, target, self.source_ids, self.target_ids)
        raise FileNotFoundError(
            f"no tokenizer in {self.directory}: looked for tokenizer.json, source.spm with target.spm, "
            f"{', '.join(name for name, _ in pairs[1:])}; copy that of the model that it was converted from "
            "(`--copy_files` of CTranslate2's converter), or give token ids"
        )

    @property
    def transformers_config(self) -> dict[str, Any]:
        """The fields that config.json and generation_config.json of transformers would have for texts."""
        config: dict[str, Any] = {
            "eos_token_id": self.special_id("eos_token"),
            "bos_token_id": self.special_id("bos_token"),
            "decoder_start_token_id": self.special_id("decoder_start_token"),
        }
        if self.is_whisper:
            return config | self._whisper_config()
        # families that place the tags of languages differently
        if self.has_encoder and any(token.startswith(">>") for token in self.source):
            config["model_type"] = "marian"
        elif self.has_encoder and self.config.get("decoder_start_token", "") is None:
            config["model_type"] = "mbart"
        return config

    def _whisper_config(self) -> dict[str, Any]:
        ids = self.target_ids
        languages = self.config.get("lang_ids") or []
        if not isinstance(languages, list) or not all(
            type(one) is int and 0 <= one < len(self.target) for one in languages
        ):
            raise ValueError(
                f"`lang_ids` in {self.directory / 'config.json'} must be a list of token ids below "
                f"{len(self.target)}, but is {languages!r}"
            )
        tasks = {task: ids.get(f"<|{task}|>") for task in WHISPER_TASKS}
        config = {
            "model_type": "whisper",
            # models of English alone have the other tokens, too; CTranslate2 tells them apart by this one
            "is_multilingual": "" in ids,
            "lang_to_id": {self.target[one]: one for one in languages},
            "task_to_id": tasks,
            "no_timestamps_token_id": ids.get("<|notimestamps|>"),
            "prev_sot_token_id": ids.get("<|startofprev|>"),
            "suppress_tokens": self.config.get("suppress_ids"),
            "begin_suppress_tokens": self.config.get("suppress_ids_begin"),
            "alignment_heads": self.config.get("alignment_heads"),
        }
        return {name: value for name, value in config.items() if value is not None}


def transformers_config(directory: Path) -> dict[str, Any]:
    """Read `config.json`; of a folder of CTranslate2, what that of transformers would say about texts.

    Raises ValueError as `read_json`, or if the files of that folder are not sound.
    """
    if is_ctranslate2(directory):
        return read_words(directory).transformers_config
    return read_json(directory / "config.json")


def read_words(directory: Path, of_binary: Mapping[str, Any] | None = None) -> Words:
    """Read the vocabularies of a folder, and the special tokens that config.json names.

    Args:
        directory: the folder.
        of_binary: what `model.bin` says where config.json is silent, as it is in folders of old versions.

    Raises:
        ValueError: a file is missing or broken.
    """
    path = directory / "config.json"
    config = read_json(path) if path.exists() else {}
    for name in ("unk_token", "bos_token", "eos_token", "decoder_start_token"):
        if not isinstance(config.get(name, ""), str | None):
            raise ValueError(f"`{name}` in {path} must be a token or null, but is {config[name]!r}")
    is_whisper = "lang_ids" in config or "suppress_ids" in config
    defaults = WHISPER_SPECIAL if is_whisper else SPECIAL
    config = {**defaults, **(of_binary or {}), **config}
    config.setdefault("decoder_start_token", config["bos_token"])
    if (alone := _vocabulary(directory, "vocabulary")) is not None:
        return Words(directory, alone, alone, config, is_whisper, has_encoder=is_whisper)
    if (shared := _vocabulary(directory, "shared_vocabulary")) is not None:
        return Words(directory, shared, shared, config)
    source, target = (_vocabulary(directory, f"{side}_vocabulary") for side in ("source", "target"))
    if source is None or target is None:
        raise ValueError(
            f"{directory} has {BINARY}, but neither vocabulary, shared_vocabulary, nor source_vocabulary "
            "with target_vocabulary, .json or .txt; is the download complete?"
        )
    return Words(directory, source, target, config)


def _vocabulary(directory: Path, name: str) -> list[str] | None:
    """Read the tokens of a vocabulary file in the order of their ids; None: there is no such file."""
    for ending, read in READERS.items():
        path = directory / (name + ending)
        if path.exists():
            regular_file(path, MAX_TEXT_BYTES)
            try:
                return read(path.read_bytes().decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path} must be a vocabulary, but cannot be read: {error}"
                ) from error
    return None


def _from_json(content: str) -> list[str]:
    tokens = json.loads(content)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("there must be a list of tokens")
    return tokens


def _from_lines(content: str) -> list[str]:
    # a token may hold other ends of lines than this one
    lines = content.removesuffix("\n").split("\n")
    return [line[:-1] for line in lines] if all(line.endswith("\r") for line in lines) else lines


READERS: dict[str, Callable[[str], list[str]]] = {".json": _from_json, ".txt": _from_lines}
