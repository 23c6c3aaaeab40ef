"""Special tokens, features and texts of a Whisper model, from the files of its directory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybeam import processors
from pybeam.arguments import ArgumentError, some
from pybeam.models.base import Model
from pybeam.models.ctranslate2.binary import whisper_sizes
from pybeam.processors import Processor
from pybeam.speech.features import WhisperFeatureExtractor, load_feature_extractor
from pybeam.text.ctranslate2 import is_ctranslate2, transformers_config
from pybeam.text.json_files import positive, read_json
from pybeam.text.model_files import blaming
from pybeam.text.tokenizer import Tokenizer, load_tokenizer, load_vocabularies

SUPPRESSED = {
    "suppress_tokens": processors.suppress_tokens,
    "begin_suppress_tokens": processors.suppress_tokens_at_start,
}
REMEDY = "take generation_config.json from the model's current release"
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
            found = whisper_config(Path(path))
            if found is None:
                raise ValueError(
                    f"the model in {path} must be a Whisper model (`model_type` in config.json); other "
                    "models transcribe with pybeam.Decoder"
                )
            vocabularies = load_vocabularies(path)
            return cls.of(*found, {} if vocabularies is None else vocabularies[1])

    @classmethod
    def of(cls, file: Path, config: dict[str, Any], known: Mapping[str, int]) -> WhisperTokens:
        """Return those of generation settings; `known` are the ids of the tokenizer's tokens."""
        if "no_timestamps_token_id" not in config:
            raise ValueError(f"`no_timestamps_token_id` is missing in {file}; {REMEDY}")
        is_multilingual = config.get("is_multilingual", "lang_to_id" in config)
        languages, tasks = (
            _table(file, config, name) if is_multilingual else {}
            for name in ("lang_to_id", "task_to_id")
        )
        language = config.get("language") if is_multilingual else None
        return cls(
            file,
            positive(file, config, "no_timestamps_token_id"),
            languages,
            tasks,
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

    def code(self, language: str | None) -> str | None:
        """Return the code, such as "en", of a language that was asked for, or else of the file's.

        None: the model knows English alone, or nothing names a language.

        Raises:
            ValueError: the model does not know the language.
        """
        language = language or self.language
        if language is None:
            return None
        self._check_given("language", language, self.languages)
        code = language.strip("<|>")
        if code not in self.languages:
            raise ArgumentError("language", self.one_of(self.languages, language))
        return code

    def language_ids(self, code: str | None) -> list[int]:
        """Return the token of a language; nothing for None."""
        return [] if code is None else [self.languages[code]]

    def task_ids(self, task: str | None) -> list[int]:
        """Return the token of a task, of the file's for None; nothing if the model has one task alone.

        Raises:
            ValueError: the model does not know the task.
        """
        if not self.tasks:
            self._check_given("task", None if task == "transcribe" else task, self.tasks)
            return []
        task = task or self.task
        if task not in self.tasks:
            raise ArgumentError("task", self.one_of(self.tasks, task))
        return [self.tasks[task]]

    def _check_given(self, name: str, given: str | None, known: Mapping[str, int]) -> None:
        if given is not None and not known:
            raise ArgumentError(
                name,
                f"must be left out for the model in {self.path.parent}, which knows English and its "
                f"transcription alone, but is {given!r}",
            )

    def one_of(self, known: Mapping[str, int], given: str | None) -> str:
        """Say that a language or a task must be one of these, which the model knows."""
        where = self.path.parent
        return f"must be one that the model in {where} knows ({some(known)}), but is {given!r}"


def _table(path: Path, config: dict[str, Any], name: str) -> dict[str, int]:
    table = config.get(name)
    if table is None:
        raise ValueError(f"`{name}` is missing in {path}; {REMEDY}")
    if not isinstance(table, dict) or not all(isinstance(i, int) for i in table.values()):
        raise ValueError(f"`{name}` in {path} must map names to token ids, but is {table!r}")
    return {token.strip("<|>"): token_id for token, token_id in table.items()}


def whisper_config(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """Read the file with the generation settings of a Whisper model; None: it is another model."""
    path = directory / "config.json"
    config = transformers_config(directory)
    if config.get("model_type") != "whisper":
        return None
    # if this file exists, transformers reads no other
    if (directory / "generation_config.json").exists():
        path = directory / "generation_config.json"
        config = read_json(path)
    return path, config


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
    path: str | os.PathLike[str], language: str | None = None, task: str | None = None
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
    with blaming(Path(path)):
        found = whisper_config(Path(path))
        if found is None:
            for name, given in (("language", language), ("task", task)):
                if given is not None:
                    problem = f"must be left out, since the model in {path} is not a Whisper model"
                    raise ArgumentError(name, f"{problem}, but is {given!r}")
            return Transcription()
        # the tokenizer's own tokens are not asked for
        tokens = WhisperTokens.of(*found, {})
        code = tokens.code(language)
        if code is None and tokens.languages:
            raise ArgumentError("language", tokens.one_of(tokens.languages, None))
        asked = [*tokens.language_ids(code), *tokens.task_ids(task), tokens.no_timestamps]
        return Transcription(tuple(asked), _processors(*found))


def _processors(path: Path, config: dict[str, Any]) -> tuple[Processor, ...]:
    chain = []
    for name, build in SUPPRESSED.items():
        try:
            if config.get(name):
                chain.append(build(config[name], stage="log_probs"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`{name}` in {path} must be token ids: {error}") from error
    return tuple(chain)


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
        sizes = whisper_sizes(Path(path)) if is_ctranslate2(Path(path)) else read_json(config)
        positions = positive(config, sizes, "max_source_positions")
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
