"""The vocabularies whose tokens the file of a shortlist names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pybeam.arguments import ArgumentError, ids
from pybeam.text.tokenizer import load_vocabularies
from pybeam.text.tokenizer_files import TokenizerFiles

Ids = Mapping[str, int]
# the folder of a model, or the ids of its source and of its target tokens
Vocabularies = str | os.PathLike[str] | tuple[Ids, Ids]
# what no output holds, by the settings and the tokens that name it
UNWRITTEN_SETTINGS = "eos_token_id", "bos_token_id", "decoder_start_token_id", "pad_token_id"
UNWRITTEN_TOKENS = b"<s>", b"</s>", b"<pad>"


class NamedIds(NamedTuple):
    """The ids of source and of target tokens by their bytes, and those that no output holds."""

    source: dict[bytes, int]
    target: dict[bytes, int]
    unwritten: frozenset[int]


def named_ids(vocabularies: Any) -> NamedIds:
    """Return the ids of vocabularies. In a folder, files name start, end and padding, too.

    Raises:
        TypeError, ValueError: they are no vocabularies.
    """
    if not isinstance(vocabularies, str | os.PathLike):
        return NamedIds(*_by_bytes(vocabularies), frozenset())
    found = load_vocabularies(vocabularies)
    if found is None:
        raise ArgumentError(
            "vocabularies",
            f"must be a folder with the files of a tokenizer, but {vocabularies} has none; give the ids of "
            "source and of target tokens",
        )
    source, target = _by_bytes(found)
    files = TokenizerFiles(Path(vocabularies))
    unwritten = [target[token] for token in UNWRITTEN_TOKENS if token in target]
    for setting in map(files.setting, UNWRITTEN_SETTINGS):
        unwritten += setting if isinstance(setting, list) else [setting]
    known = frozenset(target.values())
    return NamedIds(source, target, known.intersection(unwritten))


def _by_bytes(given: Any) -> tuple[dict[bytes, int], dict[bytes, int]]:
    if not (
        isinstance(given, tuple)
        and len(given) == 2
        and all(isinstance(one, Mapping) for one in given)
    ):
        raise TypeError(
            "`vocabularies` must be the folder of a model, or the ids of its source and of its target "
            f"tokens by token, but is {type(given).__name__}"
        )
    source, target = (
        # a vocabulary in JSON may hold half a pair of surrogates
        {
            token.encode("utf-8", "surrogatepass"): one
            for token, one in zip(own, ids("vocabularies", own.values()), strict=True)
        }
        for own in given
    )
    return source, target
