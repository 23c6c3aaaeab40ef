"""`pybeam export-onnx`, `quantize` and `convert`: a model's folder in, another folder out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from pybeam.cli.loading import model_folders
from pybeam.cli.options.algorithm import AlgorithmOptions
from pybeam.cli.options.declare import option, section, take
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.files import FormOptions, ModelOptions, OneModel
from pybeam.cli.options.search import PROCESSORS, PRUNING, RECIPE, SCORING, SEARCH
from pybeam.cli.options.sections import SectionCommand

if TYPE_CHECKING:
    from pybeam.search.algorithms import Algorithm

Folder = Annotated[str, click.Path(file_okay=False)]


@dataclass(frozen=True)
class OutputOptions:
    """The folder that is written.

    Attributes:
        output: Folder to write, which must not exist or be empty.
    """

    output: Folder = option("DIR", required=True)


@dataclass(frozen=True)
class IntegerOptions:
    """Types that weights become.

    Attributes:
        dtype: Type of the weights: int8, or int4, which keeps tables and the output layer in int8.
    """

    dtype: Literal["int8", "int4"] = option("TYPE", "int8")


OUTPUT = section("Files", OutputOptions)
INTEGERS = section("Weights", IntegerOptions)
QUIET = section("Output", FormOptions, names=["quiet"], quiet={"help": "No progress bar."})


@click.command(
    "export-onnx",
    cls=SectionCommand,
    short_help="Write a model as ONNX graphs.",
    sections=[
        section(
            "Files",
            OneModel,
            ModelOptions,
            OutputOptions,
            names=["model_dir", "revision", "output"],
            output={"help": "Folder to write to; made if it is not there."},
        ),
        # what a graph can express
        *(SEARCH, PRUNING, SCORING, RECIPE, PROCESSORS),
    ],
)
def export_onnx(model_dir: str, revision: str | None, output: str, **values: Any) -> None:
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
      pybeam export-onnx --model bible-es-en --output onnx-es-en
      pybeam export-onnx --model DIR --output OUT --algorithm variable --threshold 2.0 --max-candidates 3
      pybeam export-onnx --model DIR --output OUT --recipe fireredasr --temperature 1.25 --n-best 5
      pybeam export-onnx --model DIR --output OUT --recipe ctranslate2 --no-repeat-ngram 3
    """
    import pybeam
    from pybeam.models.transformer.speech import SpeechSources

    [model_dir] = model_folders([model_dir], revision)
    algorithm = _algorithm(model_dir, values)
    with as_failures():
        # `export_onnx` refuses what it cannot write
        model: Any = pybeam.load_model(model_dir, device="cpu", dtype="float32")
        pybeam.export.export_onnx(model, output, algorithm)
    if isinstance(model, SpeechSources):
        _export_features(model_dir, output)
    written = ", ".join(sorted(path.name for path in Path(output).glob("*.onnx")))
    click.echo(f"{output}: {written}")


def _export_features(model_dir: str, directory: str) -> None:
    """Write features.onnx, or say why not: the other graphs are of use without it."""
    from pybeam.export import export_features

    try:
        export_features(model_dir, directory)
    except (ImportError, ValueError) as reason:
        click.echo(f"there is no features.onnx: {reason}", err=True)


def _algorithm(directory: str, values: dict[str, Any]) -> Algorithm | None:
    """Build the search that the options ask for; None: they ask for none."""
    options = take(AlgorithmOptions, values)
    if options == AlgorithmOptions():
        return None
    import pybeam

    with as_failures():
        tokenizer = pybeam.load_tokenizer(directory) if options.needs_tokenizer else None
    return options.build_for(directory, tokenizer)


@click.command(
    cls=SectionCommand,
    short_help="Write a model with int8 or int4 weights.",
    params=[click.Argument(["model"])],
    sections=[OUTPUT, INTEGERS, QUIET],
)
def quantize(model: str, output: str, dtype: str, quiet: bool) -> None:
    """Write a model with int8 or int4 weights. MODEL is a folder, or a name as `--model` takes it.

    The folder takes half the space of a float16 model, and in int4 between a quarter and a half, because
    token tables stay in int8. It loads without the original, and gives what the same `--dtype` gives with
    the original.

    \b
    Example:
      pybeam quantize bible-es-en --output bible-es-en-int8
    """
    import pybeam

    [source] = model_folders([model], said="MODEL")
    with as_failures():
        pybeam.quantize(source, output, dtype=dtype, progress=not quiet and sys.stderr.isatty())
    before, after = _megabytes(source), _megabytes(output)
    click.echo(f"{model}: {before:.1f} MB of weights; {output}: {after:.1f} MB")


@click.command(
    cls=SectionCommand,
    short_help="Write another system's model for pybeam.",
    params=[
        click.Argument(["kind"], type=click.Choice(["fireredasr"])),
        click.Argument(["directory"], metavar="DIR", type=click.Path()),
    ],
    sections=[OUTPUT],
)
def convert(kind: str, directory: str, output: str) -> None:
    """Write the model in DIR as a folder that `pybeam transcribe --model` and `load_model` take.

    fireredasr stands for FireRedASR-AED and FireRedASR2-AED as they are published, with model.pth.tar,
    cmvn.ark, dict.txt and train_bpe1000.model. The checkpoint is a pickle. It is opened by torch's
    restricted reader, which makes tensors and a table of sizes and refuses all that could run code.

    \b
    Example:
      pybeam convert fireredasr FireRedASR-AED-L --output fireredasr-aed
      pybeam transcribe --model fireredasr-aed --recipe fireredasr --width 3 \\
          --temperature 1.25 --length-penalty 0.6 a.wav
    """
    import pybeam

    with as_failures():
        pybeam.export.convert_fireredasr(directory, output)
    click.echo(f"{output}: {_megabytes(output):.1f} MB of weights")


def _megabytes(directory: str) -> float:
    """Return the size of the weights in a folder."""
    return sum(path.stat().st_size for path in Path(directory).glob("*.safetensors")) / 1e6
