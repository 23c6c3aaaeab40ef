"""The special tokens of a Whisper model, and the beginning of a transcript that they make."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pybeam.arguments import ArgumentError
from pybeam.models.base import Model
from pybeam.speech.transcription import REMEDY, one_of, whisper_config
from pybeam.text.json_files import positive
from pybeam.text.model_files import blaming
from pybeam.text.tokenizer import load_vocabularies

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
