"""The command line: `pybeam translate`, `score`, `transcribe`, `graph`, `export-onnx`,
`profile` and `info`.

Exit codes: 0 everything was translated, scored or transcribed; 1 something was not (an error on
stderr names it); 2 wrong options; 130 interrupted by Ctrl-C; 141 the reader of the output went away.
The modules here import torch only inside the commands, so that `--help` comes at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from pybeam.cli.export_onnx import export_onnx
from pybeam.cli.graph import graph
from pybeam.cli.info import info
from pybeam.cli.profile import profile
from pybeam.cli.score import score
from pybeam.cli.transcribe import transcribe
from pybeam.cli.translate import translate

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def pybeam() -> None:
    """Fast, exact beam search.

    \b
    pybeam translate --help     how to translate a file or a stream of lines
    pybeam score --help         how to score translations that exist
    pybeam transcribe --help    how to write down what is said in sound files
    pybeam graph --help         how to see what a model decodes in parallel
    pybeam export-onnx --help   how to write a model as ONNX graphs
    pybeam profile --help       how to see where the time of a step goes
    pybeam info                 versions, devices, kernels: what this installation can do
    """


pybeam.add_command(translate)
pybeam.add_command(score)
pybeam.add_command(transcribe)
pybeam.add_command(graph)
pybeam.add_command(export_onnx)
pybeam.add_command(profile)
pybeam.add_command(info)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        return pybeam.main(arguments, prog_name="pybeam", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
