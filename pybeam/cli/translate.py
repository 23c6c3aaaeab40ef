"""`pybeam translate`: lines in, translations out."""

from __future__ import annotations

from typing import Any

import click

from pybeam.cli import signals
from pybeam.cli.options.corpus import corpus_section
from pybeam.cli.options.declare import section, take
from pybeam.cli.options.files import FormOptions, text_files
from pybeam.cli.options.search import SECTIONS
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.speed import SPEED
from pybeam.cli.options.units import UNITS, UnitOptions
from pybeam.cli.run import Run

FORM = section("Form of the output", FormOptions)


@click.command(
    cls=SectionCommand,
    short_help="Translate lines of text.",
    sections=[text_files("phrase_paths"), UNITS, corpus_section(), *SECTIONS, SPEED, FORM],
)
def translate(**values: Any) -> int:
    """Translate lines of text with a model that is loaded from a folder or the hub.

    Translations come out in the order of the input, each as soon as it and all before it are
    known. Empty lines stay empty. With --n-best 2 or more, each hypothesis is a line
    `line ||| translation ||| score`, lines counted from 0.

    With --output-dir, a corpus of any length is decoded in parts, from files that may be compressed
    (.gz, .zst), Parquet or JSON Lines. A run that was interrupted goes on where it stopped; one with
    other options, another model or another input is refused. Lines that fail stay empty, and
    errors.jsonl says why.

    \b
    Examples:
      pybeam translate --model bible-es-en < in.es > out.en
      pybeam translate --model Helsinki-NLP/opus-mt-es-en --input in.es --output out.en
      pybeam translate --model DIR --input in.es --output out.en --width 10
      pybeam translate --model DIR --algorithm variable --width 5 --threshold 2.0 \\
          --max-candidates 3 < in.es
      echo "Yo soy la luz del mundo." | pybeam translate --model DIR --n-best 3 --json
      pybeam translate --model DIR --samples 5 --seed 1 < in.es
      pybeam translate --model DIR --algorithm sample --temperature 0.8 --top-p 0.95 < in.es
      pybeam translate --model DIR --input corpus.es.gz --output-dir OUT --processes auto
      pybeam translate --model DIR --recipe ctranslate2 --width 5 --no-repeat-ngram 3 < in.es
      pybeam translate --model DIR --input in.es --must-contain terms.txt --width 10 > out.en
      pybeam translate --model DIR --unit document --sentence-lang es --protect '<[^>]*>' < in.es

    \b
    Exit codes:
      0    every line was translated; with --output-dir: every part is written
      1    a line failed (the others are there), the input is not UTF-8, or a file or a language
           is missing
      2    options that are wrong or contradict each other
      130  Ctrl-C; what was finished has been written (143 and 129: the same after SIGTERM, SIGHUP)
      141  the reader of the output went away
    """
    signals.leave_at_once()
    units = take(UnitOptions, values)
    run = Run.take(values)
    units.check(run.form)
    from pybeam.corpus import Translate

    has_phrases = bool(run.files.phrase_paths)
    return run.execute(Translate(**vars(units), has_phrases=has_phrases))
