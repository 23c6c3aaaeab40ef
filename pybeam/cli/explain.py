"""`pybeam explain`: the tree of one search, with what each rule has dropped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click

from pybeam.cli.files import check_writable
from pybeam.cli.loading import model_folders
from pybeam.cli.options.algorithm import AlgorithmOptions
from pybeam.cli.options.declare import Whole, option, section, take
from pybeam.cli.options.errors import as_failures, as_usage_errors
from pybeam.cli.options.files import ModelOptions, OneModel
from pybeam.cli.options.search import SECTIONS
from pybeam.cli.options.sections import SectionCommand
from pybeam.text.counts import counted


@dataclass(frozen=True)
class ExplainOptions:
    """The output of the command.

    Attributes:
        output_path: Where to write; the name says what: a page, .html; all numbers, .json; or lines, .txt.
        shown: Candidates of each step at most, beside those that stay.
    """

    output_path: Annotated[str, click.Path(dir_okay=False)] = option(
        "FILE", "tree.html", flag="--output", is_common=True
    )
    shown: Whole | None = option("N", shows="--width and three more")


@click.command(
    cls=SectionCommand,
    short_help="Show what a search keeps, and why it drops the rest.",
    sections=[
        section(
            "Files",
            OneModel,
            ModelOptions,
            ExplainOptions,
            names=[
                "model_dir",
                "revision",
                "output_path",
                "shown",
                "source_lang",
                "target_lang",
            ],
        ),
        *SECTIONS,
    ],
)
@click.argument("text")
def explain(text: str, **values: Any) -> int:
    """Search for the output of TEXT, and draw the tree of all that was looked at.

    Each candidate has its scores, and the step in which it stayed, finished or was dropped, with the rule and
    its numbers. The page goes through the steps with a slider, buttons or the arrow keys, and needs no
    network.

    Searches that draw or guess tokens, and those with groups, have no such tree; `pybeam graph` shows
    guesses.

    \b
    Examples:
      pybeam explain --model bible-es-en "Yo soy la luz del mundo."
      pybeam explain --model bible-es-en "Yo soy la luz del mundo." --algorithm variable \\
          --width 5 --threshold 2.0 --output pruned.html
    """
    from pybeam.inspect.tree import FORMATS

    output = take(ExplainOptions, values)
    if Path(output.output_path).suffix not in FORMATS:
        raise click.UsageError(
            f"--output must end in {', '.join(FORMATS)}, but is {output.output_path}"
        )
    check_writable(output.output_path)
    algorithm = take(AlgorithmOptions, values)
    [folder] = model_folders([values.pop("model_dir")], values.pop("revision"))
    languages = {name: values.pop(f"{name}_lang") for name in ("source", "target")}
    assert not values, "these options would be ignored"
    import pybeam

    with as_failures():
        model = pybeam.load(folder, device="cpu", **languages)
        if not hasattr(model, "request"):
            raise ValueError(f"the model in {folder} reads no text")
    with as_usage_errors():
        search = algorithm.build_for(folder, model.tokenizer)
        found = pybeam.inspect.explain(model, text, search, shown=output.shown)
    with as_failures():
        path = found.save(output.output_path)
    click.echo(
        f"{path}: {counted(len(found.nodes), 'candidate')} in {counted(found.num_steps, 'step')}, "
        f"stopped by {found.stop_reason}"
    )
    return 0
