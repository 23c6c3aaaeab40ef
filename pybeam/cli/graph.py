"""`pybeam graph`: show what the model decodes in parallel, as a page, a picture or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from pybeam.cli.files import check_writable
from pybeam.cli.loading import model_folders
from pybeam.cli.options.declare import option, section
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.files import ModelOptions, OneModel
from pybeam.cli.options.sections import SectionCommand
from pybeam.text.counts import counted


@dataclass(frozen=True)
class GraphOptions:
    """The output of the command.

    Attributes:
        output_path: Where to write; the name says what: .html, .png, .svg or .json.
        max_length: Tokens after which the output is cut.
    """

    output_path: Annotated[str, click.Path(dir_okay=False)] = option(
        "FILE", "graph.html", flag="--output"
    )
    max_length: Annotated[int, click.IntRange(1, 128)] = 128


@click.command(
    cls=SectionCommand,
    short_help="Show what a model decodes in parallel.",
    sections=[
        section(
            "Files and limits",
            OneModel,
            ModelOptions,
            GraphOptions,
            names=[
                "model_dir",
                "revision",
                "output_path",
                "source_lang",
                "target_lang",
                "max_length",
            ],
        )
    ],
)
@click.argument("text")
def graph(
    model_dir: str,
    revision: str | None,
    text: str,
    output_path: str,
    source_lang: str | None,
    target_lang: str | None,
    max_length: int,
) -> int:
    """Decode TEXT as `jacobi` does, and draw what was right after which iteration.

    Needs plotly for a page and matplotlib for a picture: pip install 'pybeam-search[graph]'.

    \b
    Examples:
      pybeam graph --model bible-es-en "Yo soy la luz del mundo." --output out.html
      pybeam graph --model DIR "Yo soy la luz del mundo." --output out.svg
    """
    import pybeam
    from pybeam.inspect.drawing import FORMATS
    from pybeam.text.tokenizer import load_vocabularies

    if Path(output_path).suffix not in FORMATS:
        raise click.UsageError(f"--output must end in {', '.join(FORMATS)}, but is {output_path}")
    check_writable(output_path)
    [model_dir] = model_folders([model_dir], revision)
    with as_failures():
        model = pybeam.load_model(model_dir, device="cpu")
        if model.takes_features:
            raise ValueError(
                f"the model in {model_dir} reads sound, and TEXT is none; give its features to "
                "pybeam.inspect.decoding_graph"
            )
        tokenizer = pybeam.load_tokenizer(model_dir, source_lang, target_lang)
        vocabularies = load_vocabularies(model_dir)
        labels = {} if vocabularies is None else {i: piece for piece, i in vocabularies[1].items()}
        request = pybeam.Request(tokenizer.encode(text))
        limit = max_length if model.max_positions is None else min(max_length, model.max_positions)
        algorithm = pybeam.greedy(max_length=limit)
        found = pybeam.inspect.decoding_graph(model, request, algorithm=algorithm, labels=labels)
        path = found.save(output_path)
    num_parallel = sum(found.in_parallel)
    click.echo(
        f"{path}: {counted(len(found.tokens), 'token')} in "
        f"{counted(found.num_iterations, 'iteration')}, "
        f"{num_parallel} of them without waiting for the token before"
    )
    return 0
