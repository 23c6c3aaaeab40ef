"""The special tokens of a Whisper model, and how its outputs begin."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pybeam import processors
from pybeam.arguments import ArgumentError
from pybeam.models.base import Model
from pybeam.processors import Processor
from pybeam.text.json_files import positive, read_json
from pybeam.text.model_files import blaming
from pybeam.text.tokenizer import load_vocabularies

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


# older models name it in the second way
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")


@dataclass(frozen=True)
class WhisperTokens:
    """The special tokens of a Whisper model, from `generation_config.json` and the tokenizer.

    Attributes:
        path: the file that names them.
        no_timestamps: `<|notimestamps|>`; greater ids are timestamps.
        languages: ids by code, such as "en"; empty: the model knows English alone.
        tasks: ids by name.
        previous: `<|startofprev|>`, behind which stands what was said before; None: there is none.
        no_speech: the token that says that nobody speaks; None: there is none.
        language, task: defaults of the file.
    """

    path: Path
    no_timestamps: int
    languages: dict[str, int]
    tasks: dict[str, int]
    previous: int | None
    no_speech: int | None
    language: str | None
    task: str

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WhisperTokens:
        """Read them from a model's directory.

        Raises:
            ValueError: it is no Whisper model, or a file is missing or lacks a field.
        """
        with blaming(Path(path)):
            return cls._read(Path(path))

    @classmethod
    def _read(cls, path: Path) -> WhisperTokens:
        found = whisper_config(path)
        if found is None:
            raise ValueError(
                f"the model in {path} must be a Whisper model (`model_type` in config.json); other models "
                "transcribe with pybeam.Decoder"
            )
        file, config = found
        if "no_timestamps_token_id" not in config:
            raise ValueError(f"`no_timestamps_token_id` is missing in {file}; {REMEDY}")
        vocabularies = load_vocabularies(path)
        known = {} if vocabularies is None else vocabularies[1]
        languages, tasks = _table(file, config, "lang_to_id"), _table(file, config, "task_to_id")
        is_multilingual = config.get("is_multilingual", bool(languages))
        language = config.get("language")
        return cls(
            file,
            positive(file, config, "no_timestamps_token_id"),
            languages if is_multilingual else {},
            tasks if is_multilingual else {},
            known.get("<|startofprev|>", config.get("prev_sot_token_id")),
            next((known[token] for token in NO_SPEECH if token in known), None),
            None if language is None else language.strip("<|>"),
            config.get("task") or "transcribe",
        )

    def check(self, model: Model) -> None:
        """Raise ValueError if a token is none of the model's, or timestamps do not stand behind its EOS."""
        named = {
            "no_timestamps_token_id": [self.no_timestamps + 1],
            "lang_to_id": self.languages.values(),
            "task_to_id": self.tasks.values(),
            "prev_sot_token_id": [] if self.previous is None else [self.previous],
            "suppress_tokens": model.settings.suppress_tokens,
            "begin_suppress_tokens": model.settings.begin_suppress_tokens,
        }
        for name, found in named.items():
            for token in found:
                if type(token) is not int or not 0 <= token < model.vocab_size:
                    raise ValueError(
                        f"`{name}` in {self.path} must name tokens below the model's `vocab_size`, which is "
                        f"{model.vocab_size}, but names {token!r}; do the files belong to one model?"
                    )
        if max(model.eos_ids) > self.no_timestamps:
            raise ValueError(
                f"`no_timestamps_token_id` in {self.path} must be greater than EOS, which is "
                f"{max(model.eos_ids)}, but is {self.no_timestamps}"
            )

    def code(self, language: str) -> str:
        """Return the code of a language that was asked for, such as "en" for ``<|en|>``.

        Raises ValueError if the model does not know it.
        """
        code = language.strip("<|>")
        if code in self.languages:
            return code
        if not self.languages:
            raise ArgumentError(
                "language",
                f"must be left out for the model in {self.path.parent}, which knows English alone, but is "
                f"{language!r}",
            )
        raise ArgumentError("language", one_of(list(self.languages), self.path, language))

    def task_id(self, task: str | None) -> int | None:
        """Return the token of a task; None: the model has one task alone.

        Raises ValueError if the model does not know it.
        """
        if self.tasks:
            asked = self.task if task is None else task
            if asked not in self.tasks:
                raise ArgumentError("task", one_of(list(self.tasks), self.path, asked))
            return self.tasks[asked]
        if task not in (None, "transcribe"):
            problem = f"must be left out for the model in {self.path.parent}, which has one, but is {task!r}"
            raise ArgumentError("task", problem)
        return None


def _table(path: Path, config: dict, name: str) -> dict[str, int]:
    table = config.get(name) or {}
    if not isinstance(table, dict) or not all(isinstance(i, int) for i in table.values()):
        raise ValueError(f"`{name}` in {path} must map names to token ids, but is {table!r}")
    return {token.strip("<|>"): token_id for token, token_id in table.items()}
