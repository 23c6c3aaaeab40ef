"""`pybeam export-onnx`: a model directory in, ONNX graphs out."""

from __future__ import annotations

from pathlib import Path

import click

from pybeam.cli.sections import SectionCommand, model_option, option, with_flags

files = option("Files")


@click.command("export-onnx", cls=SectionCommand, short_help="Write a model as ONNX graphs.")
@model_option(files)
@files(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Folder to write to; made if it is not there.",
)
def export_onnx(model_dir: str, directory: str) -> None:
    """Write a model as ONNX graphs, float32.

    encoder.onnx and decoder.onnx are what `pybeam translate --model` and `pybeam transcribe --model` run
    with ONNX Runtime when they are given the output folder. search.onnx, which an LSTM and Whisper have not,
    is a whole beam search, for any ONNX runtime.

    \b
    Example:
      pybeam export-onnx --model examples/models/bible-es-en --output onnx-es-en
    """
    import pybeam
    from pybeam.export import export_onnx

    try:
        model = pybeam.load_model(model_dir, device="cpu", dtype="float32")
        export_onnx(model, directory)
    except (ImportError, OSError, ValueError, TypeError) as error:
        raise click.ClickException(with_flags(error)) from error
    written = ", ".join(sorted(path.name for path in Path(directory).glob("*.onnx")))
    click.echo(f"{directory}: {written}")
