"""`pybeam convert`: a folder that another system has published in, one for pybeam out."""

from __future__ import annotations

import click

from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.sections import Section, SectionCommand
from pybeam.cli.quantize import OUTPUT, megabytes


@click.command(
    "convert",
    cls=SectionCommand,
    short_help="Write another system's model for pybeam.",
    params=[
        click.Argument(["kind"], type=click.Choice(["fireredasr"])),
        click.Argument(["directory"], metavar="DIR", type=click.Path()),
    ],
    sections=[Section("Files", [OUTPUT])],
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
    click.echo(f"{output}: {megabytes(output):.1f} MB of weights")
