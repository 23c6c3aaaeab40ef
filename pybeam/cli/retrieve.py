"""`pybeam retrieve`: queries in, items of a catalogue out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli import signals
from pybeam.cli.job import Command, Files
from pybeam.cli.loading import Setup
from pybeam.cli.options import files
from pybeam.cli.options.algorithm import AlgorithmOptions
from pybeam.cli.options.corpus import CorpusOptions
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.processors import PROCESSORS, ProcessorOptions
from pybeam.cli.options.scoring import DEFAULT_LENGTH_PENALTY, ScoringOptions
from pybeam.cli.options.search import SearchOptions
from pybeam.cli.options.sections import Section, SectionCommand, option, take
from pybeam.cli.options.speed import SPEED

if TYPE_CHECKING:
    from pybeam.catalogue.catalogue import Catalogue
    from pybeam.catalogue.items import AllowedItems

DEFAULT_WIDTH, DEFAULT_N_BEST = 64, 10
SAVED = ".safetensors"

CATALOGUE = Section(
    "Catalogue",
    [
        option(
            "--catalogue",
            "catalogue_path",
            required=True,
            metavar="FILE",
            type=click.Path(),
            help="UTF-8 text, an item per line; items are numbered from 0. Or what --save has written "
            "(.safetensors), which takes no time to load.",
        ),
        option(
            "--save",
            "save_path",
            metavar="FILE",
            type=click.Path(),
            help="Write the catalogue that was built, as .safetensors, for later calls.",
        ),
        option(
            "--allow",
            "allow_path",
            metavar="FILE",
            type=click.Path(),
            help="Numbers of the items that may be found, one per line.",
        ),
        option(
            "--deny",
            "deny_path",
            metavar="FILE",
            type=click.Path(),
            help="Numbers of the items that may not be found, one per line.",
        ),
    ],
)
SEARCH = Section(
    "Search",
    [
        option(
            "--width",
            type=click.IntRange(1),
            metavar="K",
            default=DEFAULT_WIDTH,
            help="Hypotheses kept alive per query.",
        ),
        option(
            "--n-best",
            type=click.IntRange(1),
            metavar="N",
            default=DEFAULT_N_BEST,
            help="Items to find per query, at most --width.",
        ),
        option(
            "--length-penalty",
            type=float,
            metavar="A",
            default=DEFAULT_LENGTH_PENALTY,
            help="Divide the sum of log-probabilities by length^A: 0 is the plain sum, which prefers short "
            "items.",
        ),
        option(
            "--renormalize",
            is_flag=True,
            help="Let probabilities sum to 1 over the tokens that the catalogue allows, and not over the "
            "vocabulary.",
        ),
    ],
)


@click.command(
    cls=SectionCommand,
    short_help="Find items of a catalogue.",
    sections=[
        Section(
            "Files",
            [files.MODELS, files.INPUTS, files.OUTPUT, files.SOURCE_LANG, files.TARGET_LANG],
        ),
        CATALOGUE,
        SEARCH,
        PROCESSORS,
        SPEED,
        Section("Form of the output", [files.QUIET]),
    ],
)
def retrieve(**values: Any) -> int:
    """Find the items of a catalogue that a model gives to each line of text.

    The model in DIR scores nothing but items of the catalogue. One JSON object per line comes out: index
    (from 0), hypotheses (items: their numbers; text, score, final_score), and has_all_items, which says that
    the catalogue, as filtered, has no others.

    \b
    Examples:
      pybeam retrieve --model examples/models/bible-es-en --catalogue verses.en < in.es
      pybeam retrieve --model DIR --catalogue items.txt --save items.safetensors < queries.txt
      pybeam retrieve --model DIR --catalogue items.safetensors --width 128 --n-best 20 < queries.txt

    \b
    Exit codes:
      0    every line was answered
      1    a line failed (the others are there), a file is missing or not what it should be
      2    options that are wrong or contradict each other
      130  Ctrl-C; what was finished has been written (143 and 129: the same after SIGTERM, SIGHUP)
      141  the reader of the output went away
    """
    signals.leave_at_once()
    options = dict(values)
    width, n_best = values.pop("width"), values.pop("n_best")
    algorithm = AlgorithmOptions(
        SearchOptions("fixed", width=width, n_best=n_best),
        ScoringOptions(values.pop("length_penalty"), None),
        take(ProcessorOptions, values),
    )
    names = ("catalogue_path", "save_path", "allow_path", "deny_path", "renormalize")
    own = {name: values.pop(name) for name in names}
    quiet = values.pop("quiet")
    setup = Setup.take(algorithm, values)
    rule = load_rule(setup, has_progress=not quiet and sys.stderr.isatty(), **own)
    from pybeam.corpus import Form, Retrieve

    form = Form(is_json=True)
    return Command(
        setup, Files(**values), Retrieve(rule), form, CorpusOptions(), options, quiet
    ).run()


def load_rule(
    setup: Setup,
    catalogue_path: str,
    save_path: str | None,
    allow_path: str | None,
    deny_path: str | None,
    *,
    renormalize: bool,
    has_progress: bool,
) -> AllowedItems:
    """Load or build the catalogue, save it if that is asked for, and read the filters."""

    if catalogue_path.endswith(SAVED) and save_path is not None:
        raise click.UsageError("--save writes a catalogue that was built; this one is written")
    if save_path is not None and not save_path.endswith(SAVED):
        raise click.UsageError(f"--save {save_path}: the name must end in {SAVED}")
    with as_failures():
        catalogue = load_catalogue(setup, catalogue_path, has_progress=has_progress)
        if save_path is not None:
            catalogue.save(save_path)
        chosen = {
            name: numbers_in(path)
            for name, path in (("allow", allow_path), ("deny", deny_path))
            if path is not None
        }
        chosen_filter = catalogue.filter(**chosen) if chosen else None
    from pybeam.catalogue import allowed_items

    return allowed_items(catalogue, chosen_filter, renormalize=renormalize)


def load_catalogue(setup: Setup, path: str, *, has_progress: bool) -> Catalogue:
    """Load a saved catalogue, or build one of lines of text."""
    import pybeam

    if path.endswith(SAVED):
        return pybeam.Catalogue.load(path)
    tokenizer = setup.load_tokenizer()
    from tqdm import tqdm

    with open(path, encoding="utf-8") as file:
        lines = tqdm(
            (line.rstrip("\r\n") for line in file),
            desc="catalogue",
            unit=" items",
            file=sys.stderr,
            disable=not has_progress,
        )
        return pybeam.Catalogue.from_texts(lines, tokenizer)


def numbers_in(path: str) -> list[int]:
    """Read a number per line.

    Raises:
        ValueError: a line is none.
    """
    numbers = []
    for i, line in enumerate(Path(path).read_text("utf-8").split(), 1):
        if not line.isdecimal():
            raise ValueError(f"{path}: number {i} must be the number of an item, but is {line!r}")
        numbers.append(int(line))
    return numbers
