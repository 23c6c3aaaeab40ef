"""`pybeam score`: lines and their translations in, log-probabilities out."""

from __future__ import annotations

from typing import Any

import click

from pybeam.cli import signals
from pybeam.cli.options.corpus import corpus_section
from pybeam.cli.options.declare import section
from pybeam.cli.options.files import FormOptions, text_files
from pybeam.cli.options.search import PROCESSORS, SCORING
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.speed import SPEED
from pybeam.cli.run import Run

COLUMN = "The column of .parquet files, or the field of .jsonl files, that has the source."
JSON = (
    "Write one JSON object per line: index (from 0), text, score, final_score, and log_probs, one per token "
    "and one for the end; null for minus infinity."
)


@click.command(
    cls=SectionCommand,
    short_help="Score given translations.",
    sections=[
        text_files("target_paths"),
        corpus_section(column={"help": COLUMN}, target_column={}),
        SCORING,
        PROCESSORS,
        SPEED,
        section(
            "Form of the output", FormOptions, names=["is_json", "quiet"], is_json={"help": JSON}
        ),
    ],
)
def score(**values: Any) -> int:
    """Score translations with a model that is loaded from a folder or the hub.

    The command writes one number per line of the input: the log-probability of the line of the same number
    in --target, its end included, normalised by --length-penalty. Output of `pybeam translate --scores`
    gets the same number again, if its text is split into the same tokens.

    \b
    Examples:
      pybeam score --model bible-es-en --input in.es --target out.en
      pybeam score --model DIR --input in.es --target out.en --length-penalty 0 --json
      pybeam score --model DIR --input pairs.parquet --column es --target-column en --output-dir OUT

    \b
    Exit codes:
      0    every line was scored
      1    a line failed (the others are there), the files have different numbers of lines or are
           not UTF-8, or a file or a language is missing
      2    options that are wrong or contradict each other
      130  Ctrl-C; what was finished has been written (143 and 129: the same after SIGTERM, SIGHUP)
      141  the reader of the output went away
    """
    signals.leave_at_once()
    if "-" in values["input_paths"] and "-" in values["target_paths"]:
        raise click.UsageError("--input and --target cannot both be stdin; name one of the files")
    if bool(values["target_paths"]) == (values["target_column"] is not None):
        raise click.UsageError("give --target FILE, or with --output-dir --target-column NAME")
    run = Run.take({**values, "algorithm": "greedy"})
    from pybeam.corpus import Score

    return run.execute(Score())
