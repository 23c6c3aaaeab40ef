"""`pybeam export-onnx`: a model directory in, ONNX graphs out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pybeam.cli.options import files
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.sections import Section, SectionCommand, option

DIRECTORY = option(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Folder to write to; made if it is not there.",
)


@click.command(
    "export-onnx",
    cls=SectionCommand,
    short_help="Write a model as ONNX graphs.",
    sections=[Section("Files", [files.MODEL, DIRECTORY])],
)
def export_onnx(model_dir: str, directory: str) -> None:
    """Write a model as ONNX graphs, float32.

    features.onnx, for models that listen, turns a recording into what search.onnx takes.

    encoder.onnx and decoder.onnx are what `pybeam translate --model` and `pybeam transcribe --model` run
    with ONNX Runtime when they are given the output folder. search.onnx, which is not written for an LSTM
    or for Whisper, is a whole beam search, for any ONNX runtime.

    \b
    Example:
      pybeam export-onnx --model examples/models/bible-es-en --output onnx-es-en
    """
    import pybeam
    from pybeam.models.transformer.speech import SpeechTransformer

    with as_failures():
        # `export_onnx` refuses what it cannot write
        model: Any = pybeam.load_model(model_dir, device="cpu", dtype="float32")
        pybeam.export.export_onnx(model, directory)
    if isinstance(model, SpeechTransformer):
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
