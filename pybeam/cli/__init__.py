"""The command line: `pybeam translate`, `score`, `transcribe`, `retrieve`, `serve`, `key`,
`bench-serve`, `compare`, `explain`, `graph`, `export-onnx`, `quantize`, `convert`, `profile`, `completion`
and `info`.

Exit codes: 0 everything was translated, scored or transcribed; 1 something was not (an error on
stderr names it); 2 wrong options; 130 interrupted by Ctrl-C; 141 the reader of the output went away.
The modules here import torch, numpy and tokenizers only inside the commands, so that `--help` comes
at once.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence

import click

from pybeam import __version__
from pybeam.cli.bench_serve import bench_serve
from pybeam.cli.compare import compare
from pybeam.cli.completion import completion
from pybeam.cli.conversions import convert, export_onnx, quantize
from pybeam.cli.explain import explain
from pybeam.cli.graph import graph
from pybeam.cli.info import info
from pybeam.cli.key import key
from pybeam.cli.options.errors import show
from pybeam.cli.profile import profile
from pybeam.cli.retrieve import retrieve
from pybeam.cli.score import score
from pybeam.cli.serve import serve
from pybeam.cli.transcribe import transcribe
from pybeam.cli.translate import translate

# the exit code that a shell reports for a program ended by SIGINT
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pybeam", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Say what is loaded, and what computes.")
def pybeam(verbose: bool) -> None:
    """Fast, exact beam search.

    \b
    Examples:
      pybeam translate --model bible-es-en --input in.es --output out.en
      echo "Yo soy la luz del mundo." | pybeam translate --model Helsinki-NLP/opus-mt-es-en
      pybeam transcribe --model openai/whisper-tiny --format srt talk.mp3
      pybeam serve --model bible-es-en
      eval "$(pybeam completion bash)"

    `pybeam COMMAND -h` shows the common options of a command, `pybeam COMMAND --help` all of them.
    """
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


for command in (
    translate,
    score,
    transcribe,
    retrieve,
    serve,
    key,
    bench_serve,
    compare,
    explain,
    graph,
    export_onnx,
    quantize,
    convert,
    profile,
    completion,
    info,
):
    pybeam.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if "torch" not in sys.modules:
        # Threads that spin while they wait for each other are many times slower where other programs
        # share the cores. OpenMP reads this when torch is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Python has none if it is closed, which changes nothing that goes to stdout
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    try:
        return pybeam.main(arguments, prog_name="pybeam", standalone_mode=False) or 0
    except click.ClickException as error:
        show(error)
        return error.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        show(click.ClickException(f"cannot write the output: {error.strerror}"))
        return 1
    except (click.Abort, KeyboardInterrupt) as error:
        return getattr(error.__cause__, "exit_code", INTERRUPTED)
