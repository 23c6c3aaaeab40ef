"""Options that name models, files and languages, and the form of what is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import click

from pybeam.cli.options.declare import FilePath, PathOrDash, option, section
from pybeam.cli.options.sections import Section


class ModelPath(click.Path):
    """The folder of a model, or its name."""

    def get_missing_message(
        self, param: click.Parameter, ctx: click.Context | None = None
    ) -> str | None:
        return "Give a folder, a name on the Hugging Face hub, or the example bible-es-en."


ModelName = Annotated[str, ModelPath()]


@dataclass(frozen=True)
class OneModel:
    """The model of a command that takes one.

    Attributes:
        model_dir: Folder of a model as transformers, CTranslate2 or Marian writes it, or a name: on the
            Hugging Face hub (owner/name), or of an example (bible-es-en).
    """

    model_dir: ModelName = option("MODEL", flag="--model", required=True)


@dataclass(frozen=True)
class ModelOptions:
    """The models of a command, and the languages of the text.

    Attributes:
        model_dirs: Folder of a model as transformers, CTranslate2 or Marian writes it, or a name: on the
            Hugging Face hub (owner/name), from where it is downloaded once, or of an example (bible-es-en).
            Given several times: an ensemble, the mean of the models' probabilities; the first one's tokenizer
            is used.
        revision: Branch, tag or commit of a model on the hub; by default its main branch.
        source_lang: Language of the input as the model names it, for multilingual models (NLLB: spa_Latn).
        target_lang: Language of the output, likewise (NLLB: eng_Latn).
    """

    model_dirs: tuple[ModelName, ...] = option("MODEL", (), flag="--model", required=True)
    revision: str | None = option("REVISION")
    source_lang: str | None = option("CODE", is_common=True)
    target_lang: str | None = option("CODE", is_common=True)


@dataclass(frozen=True)
class FileOptions:
    """The files that a command reads and writes.

    Attributes:
        input_paths: UTF-8 text, one source per line; `-` or nothing: stdin. With --output-dir it may be given
            several times, and be .gz, .zst, .jsonl or .parquet.
        target_paths: UTF-8 text, the translation of each line of the input; `-`: stdin. With --output-dir it
            may be given several times.
        phrase_paths: UTF-8 text, the phrases that the translation of each line of the input must contain,
            such as terms, with tabs between them; an empty line asks for nothing. With --output-dir it may be
            given several times.
        output_path: Where to write; `-` or nothing: stdout. Written line by line, so that what is finished is
            never lost.
    """

    input_paths: tuple[PathOrDash, ...] = option(
        "FILE", ("-",), flag="--input", shows=False, is_common=True
    )
    target_paths: tuple[PathOrDash, ...] = option("FILE", (), flag="--target", is_common=True)
    phrase_paths: tuple[FilePath, ...] = option("FILE", (), flag="--must-contain")
    output_path: PathOrDash = option("FILE", "-", flag="--output", shows=False, is_common=True)


@dataclass(frozen=True)
class FormOptions:
    """The form of what is written. Raises UsageError for options that contradict each other.

    Attributes:
        has_scores: Write `score <tab> output`. --n-best and --json contain scores anyhow.
        is_json: Write one JSON object per line: index (from 0), hypotheses (text, score, final_score, ended),
            stop_reason, steps, expansions.
        has_alignment: With --json: source, and for every hypothesis tokens and attention, a line for each
            token with its share of each source position.
        quiet: No progress bar and no summary; errors and warnings remain.
    """

    has_scores: bool = option(default=False, flag="--scores")
    is_json: bool = option(default=False, flag="--json", is_common=True)
    has_alignment: bool = option(default=False, flag="--alignment")
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.has_alignment and not self.is_json:
            raise click.UsageError("--alignment needs --json; a line of text has no room for it")


QUIET = section("Form of the output", FormOptions, names=["quiet"])


def text_files(*more: str) -> Section:
    """Return the section for lines of text; `more` stand before what is written."""
    names = (
        "model_dirs",
        "revision",
        "input_paths",
        *more,
        "output_path",
        "source_lang",
        "target_lang",
    )
    return section("Files", ModelOptions, FileOptions, names=names)
