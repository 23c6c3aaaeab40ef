"""`pybeam score`: lines and their translations in, log-probabilities out."""

from __future__ import annotations

from typing import Any

import click

from pybeam.cli import signals
from pybeam.cli.job import Command, PairFiles
from pybeam.cli.options import files
from pybeam.cli.options.algorithm import AlgorithmOptions
from pybeam.cli.options.corpus import corpus_section
from pybeam.cli.options.processors import PROCESSORS, ProcessorOptions
from pybeam.cli.options.scoring import SCORING, ScoringOptions
from pybeam.cli.options.search import SearchOptions
from pybeam.cli.options.sections import Section, SectionCommand, option, take
from pybeam.cli.options.speed import SPEED

TARGET = option(
    "--target",
    "target_paths",
    multiple=True,
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="UTF-8 text, the translation of each line of the input; `-`: stdin. With --output-dir it may "
    "be given several times.",
)
TARGET_COLUMN = option(
    "--target-column",
    metavar="NAME",
    help="The column or field that has the translation, in place of --target.",
)
JSON = option(
    "--json",
    "is_json",
    is_flag=True,
    help="Write one JSON object per line: index (from 0), text, score, final_score, and log_probs, "
    "one per token and one for the end; null for minus infinity.",
)


@click.command(
    cls=SectionCommand,
    short_help="Score given translations.",
    sections=[
        Section(
            "Files",
            [
                files.MODELS,
                files.INPUTS,
                TARGET,
                files.OUTPUT,
                files.SOURCE_LANG,
                files.TARGET_LANG,
            ],
        ),
        corpus_section("source", TARGET_COLUMN),
        SCORING,
        PROCESSORS,
        SPEED,
        Section("Form of the output", [JSON, files.QUIET]),
    ],
)
def score(**values: Any) -> int:
    """Score translations with a model that is loaded from DIR.

    The command writes one number per line of the input: the log-probability of the line of the same number
    in --target, its end included, normalised by --length-penalty. Output of `pybeam translate --scores`
    gets the same number again, if its text is split into the same tokens.

    \b
    Examples:
      pybeam score --model examples/models/bible-es-en --input in.es --target out.en
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
    from pybeam.corpus import Score

    if "-" in values["input_paths"] and "-" in values["target_paths"]:
        raise click.UsageError("--input and --target cannot both be stdin; name one of the files")
    if bool(values["target_paths"]) == (values["target_column"] is not None):
        raise click.UsageError("give --target FILE, or with --output-dir --target-column NAME")
    options = dict(values)
    algorithm = AlgorithmOptions(
        SearchOptions("greedy"), take(ScoringOptions, values), take(ProcessorOptions, values)
    )
    return Command.take(options, values, algorithm, PairFiles, Score()).run()
