"""`pybeam export-onnx`: a model directory in, ONNX graphs out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options import files
from pybeam.cli.options.algorithm import SECTIONS, AlgorithmOptions
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.processors import PROCESSORS
from pybeam.cli.options.recipes import RECIPE
from pybeam.cli.options.scoring import SCORING
from pybeam.cli.options.search import PRUNING, SEARCH
from pybeam.cli.options.sections import Section, SectionCommand, option

if TYPE_CHECKING:
    from pybeam.search.algorithms import Algorithm

DIRECTORY = option(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Folder to write to; made if it is not there.",
)
# what a graph can express
OWN = [SEARCH, PRUNING, SCORING, RECIPE, PROCESSORS]


@click.command(
    "export-onnx",
    cls=SectionCommand,
    short_help="Write a model as ONNX graphs.",
    sections=[Section("Files", [files.MODEL, DIRECTORY]), *OWN],
)
def export_onnx(model_dir: str, directory: str, **values: Any) -> None:
    """Write a model as ONNX graphs, float32.

    encoder.onnx and decoder.onnx are what `pybeam translate --model` and `pybeam transcribe --model` run
    with ONNX Runtime when they are given the output folder. search.onnx, which is not written for an LSTM,
    is a whole beam search, for any ONNX runtime. features.onnx, for models that listen, turns a recording
    into what search.onnx takes.

    The options below choose the search of search.onnx: how hypotheses finish, when it stops, what changes
    the model's numbers. The numbers become inputs of the graph. --width, --max-length and --length-penalty
    are given in every call; the graph's metadata has those that were chosen here. Without any option it is
    a beam search of fixed width.

    \b
    Examples:
      pybeam export-onnx --model examples/models/bible-es-en --output onnx-es-en
      pybeam export-onnx --model DIR --output OUT --algorithm variable --threshold 1.6 --max-candidates 3
      pybeam export-onnx --model DIR --output OUT --recipe fireredasr --temperature 1.25 --n-best 5
      pybeam export-onnx --model DIR --output OUT --recipe ctranslate2 --no-repeat-ngram 3
    """
    import pybeam
    from pybeam.models.transformer.sources import SpeechSources

    algorithm = _algorithm(model_dir, values)
    with as_failures():
        # `export_onnx` refuses what it cannot write
        model: Any = pybeam.load_model(model_dir, device="cpu", dtype="float32")
        pybeam.export.export_onnx(model, directory, algorithm)
    if isinstance(model, SpeechSources):
        _export_features(model_dir, directory)
    written = ", ".join(sorted(path.name for path in Path(directory).glob("*.onnx")))
    click.echo(f"{directory}: {written}")


def _export_features(model_dir: str, directory: str) -> None:
    """Write features.onnx, or say why not: the other graphs are of use without it."""
    from pybeam.export import export_features

    try:
        export_features(model_dir, directory)
    except (ImportError, ValueError) as reason:
        click.echo(f"there is no features.onnx: {reason}", err=True)


def _algorithm(directory: str, values: dict[str, Any]) -> Algorithm | None:
    """Build the search that the options ask for; None: they ask for none."""
    if all(value is None or value is False or value == () for value in values.values()):
        return None
    import pybeam

    absent = [
        option.name for section in SECTIONS if section not in OWN for option in section.options
    ]
    options = AlgorithmOptions.take({**dict.fromkeys(absent), **values})
    with as_failures():
        unk_id = None
        if options.needs_unk or options.recipe is not None:
            unk_id = pybeam.load_tokenizer(directory).unk_id
    return options.build_for(directory, unk_id)
