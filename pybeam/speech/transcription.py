"""Prefix and processors of a speech model: how outputs begin, and which tokens it never writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pybeam import processors
from pybeam.arguments import ArgumentError
from pybeam.processors import Processor
from pybeam.text.json_files import positive, read_json
from pybeam.text.model_files import blaming

SUPPRESSED = {
    "suppress_tokens": processors.suppress_tokens,
    "begin_suppress_tokens": processors.suppress_tokens_at_start,
}
REMEDY = "take generation_config.json from the model's current release"


@dataclass(frozen=True)
class Transcription:
    """How a speech model is asked to transcribe.

    Attributes:
        prefix: the `Request.prefix` of every request.
        processors: processors for the algorithm, behind its own.
    """

    prefix: tuple[int, ...] = ()
    processors: tuple[Processor, ...] = ()


def load_transcription(
    path: str | os.PathLike, language: str | None = None, task: str | None = None
) -> Transcription:
    """Load the prefix and the processors of a speech model's directory, for outputs without timestamps.

    For a Whisper model they are those of transformers' ``generate``, from `generation_config.json`. The
    prefix is the language (`lang_to_id`), the task (`task_to_id`) and `no_timestamps_token_id`. A model
    that knows English only has the last one alone. `suppress_tokens` and `begin_suppress_tokens` act on
    log-probabilities. The language is not detected. Other models need no prefix and no processors.

    Args:
        path: the directory.
        language: the spoken language, such as ``en`` or ``<|en|>``; None: the file's, if it has one.
        task: "transcribe", or "translate" into English; None: the file's, or else "transcribe".

    Raises:
        ValueError: a file is missing or lacks a field, or the language or task is missing, unknown or given
            to a model that knows one only.
    """
    asked = {"language": language, "task": task}
    with blaming(Path(path)):
        found = whisper_config(Path(path))
        if found is None:
            _refuse(asked, f"the model in {path} is not a Whisper model")
            return Transcription()
        return Transcription(_prefix(*found, asked), _processors(*found))


def whisper_config(directory: Path) -> tuple[Path, dict] | None:
    """Read the file with the generation settings of a Whisper model; None: it is another model."""
    path = directory / "config.json"
    config = read_json(path)
    if config.get("model_type") != "whisper":
        return None
    # if this file exists, transformers reads no other
    if (directory / "generation_config.json").exists():
        path = directory / "generation_config.json"
        config = read_json(path)
    return path, config


def _prefix(path: Path, config: dict, asked: dict[str, str | None]) -> tuple[int, ...]:
    if "no_timestamps_token_id" not in config:
        raise ValueError(f"`no_timestamps_token_id` is missing in {path}; {REMEDY}")
    last = positive(path, config, "no_timestamps_token_id")
    if not config.get("is_multilingual", "lang_to_id" in config):
        _refuse(asked, f"the model in {path.parent} knows English and its transcription alone")
        return (last,)
    language = asked["language"] or config.get("language")
    task = asked["task"] or config.get("task") or "transcribe"
    return (
        _token("language", language, "lang_to_id", path, config),
        _token("task", task, "task_to_id", path, config),
        last,
    )


def _token(name: str, value: str | None, table: str, path: Path, config: dict) -> int:
    ids = config.get(table)
    if not isinstance(ids, dict):
        raise ValueError(f"`{table}` is missing in {path}; {REMEDY}")
    for token in (value, f"<|{value}|>"):
        if isinstance(ids.get(token), int):
            return ids[token]
    names = [token.strip("<|>") for token in ids]
    raise ArgumentError(name, one_of(names, path, value))


def one_of(names: Sequence[str], path: Path, given: str | None) -> str:
    """Say that something must be one of these, which this file of a model names."""
    some = ", ".join(names[:5]) + (f", … {len(names)} in all" if len(names) > 5 else "")
    return f"must be one that the model in {path.parent} knows ({some}), but is {given!r}"


def _refuse(asked: dict[str, str | None], reason: str) -> None:
    for name, value in asked.items():
        if value is not None:
            raise ArgumentError(name, f"must be left out, since {reason}, but is {value!r}")


def _processors(path: Path, config: dict) -> tuple[Processor, ...]:
    chain = []
    for name, build in SUPPRESSED.items():
        try:
            if config.get(name):
                chain.append(build(config[name], stage="log_probs"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`{name}` in {path} must be token ids: {error}") from error
    return tuple(chain)
