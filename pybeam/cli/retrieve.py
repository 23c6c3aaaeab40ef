"""`pybeam retrieve`: queries in, items of a catalogue out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli import signals
from pybeam.cli.files import check_writable
from pybeam.cli.loading import Setup
from pybeam.cli.options.declare import Count, FilePath, option, section, take
from pybeam.cli.options.errors import as_failures
from pybeam.cli.options.files import QUIET, text_files
from pybeam.cli.options.search import PROCESSORS
from pybeam.cli.options.sections import SectionCommand
from pybeam.cli.options.speed import SPEED
from pybeam.cli.run import Run

if TYPE_CHECKING:
    from pybeam.catalogue.catalogue import Catalogue
    from pybeam.catalogue.items import AllowedItems
    from pybeam.text.tokenizer import Tokenizer

SAVED = ".safetensors"


@dataclass(frozen=True)
class CatalogueOptions:
    """The catalogue, and which of its items may be found.

    Attributes:
        catalogue_path: UTF-8 text, an item per line; items are numbered from 0. Or what --save has written
            (.safetensors), which takes no time to load.
        save_path: Write the catalogue that was built, as .safetensors, for later calls.
        allow_path: Numbers of the items that may be found, one per line.
        deny_path: Numbers of the items that may not be found, one per line.
    """

    catalogue_path: FilePath = option("FILE", flag="--catalogue", required=True)
    save_path: FilePath | None = option("FILE", flag="--save")
    allow_path: FilePath | None = option("FILE", flag="--allow")
    deny_path: FilePath | None = option("FILE", flag="--deny")

    def load(self, setup: Setup, *, renormalize: bool, has_bar: bool) -> AllowedItems:
        """Load or build the catalogue, save it if that is asked for, and read the filters."""
        is_saved = self.catalogue_path.endswith(SAVED)
        if is_saved and self.save_path is not None:
            raise click.UsageError("--save writes a catalogue that was built; this one is written")
        if self.save_path is not None and not self.save_path.endswith(SAVED):
            raise click.UsageError(f"--save {self.save_path}: the name must end in {SAVED}")
        if self.save_path is not None:
            check_writable(self.save_path, "--save")
        from pybeam.catalogue import Catalogue, allowed_items

        with as_failures():
            if is_saved:
                catalogue = Catalogue.load(self.catalogue_path)
            else:
                catalogue = self._build(setup.load_tokenizer(), has_bar)
            if self.save_path is not None:
                catalogue.save(self.save_path)
            paths = {"allow": self.allow_path, "deny": self.deny_path}
            numbers = {name: numbers_in(path) for name, path in paths.items() if path is not None}
            chosen = catalogue.filter(**numbers) if numbers else None
        return allowed_items(catalogue, chosen, renormalize=renormalize)

    def _build(self, tokenizer: Tokenizer, has_bar: bool) -> Catalogue:
        from tqdm import tqdm

        from pybeam.catalogue import Catalogue

        with open(self.catalogue_path, encoding="utf-8") as file:
            lines = (line.rstrip("\r\n") for line in file)
            shown = tqdm(lines, "catalogue", unit=" items", file=sys.stderr, disable=not has_bar)
            try:
                return Catalogue.from_texts(shown, tokenizer)
            except ValueError as error:
                raise ValueError(f"--catalogue {self.catalogue_path}: {error}") from error


@dataclass(frozen=True)
class SearchOptions:
    """The search for items. Its width, number of outputs and length penalty are the algorithm's.

    Attributes:
        width: Hypotheses kept alive per query.
        n_best: Items to find per query, at most --width.
        length_penalty: Divide the sum of log-probabilities by length^A: 0 is the plain sum, which prefers
            short items.
        renormalize: Let probabilities sum to 1 over the tokens that the catalogue allows, and not over the
            vocabulary.
    """

    width: Count = option("K", 64)
    n_best: Count = option("N", 10)
    length_penalty: float = option("A", 1.0)
    renormalize: bool = False


@click.command(
    cls=SectionCommand,
    short_help="Find items of a catalogue.",
    sections=[
        text_files(),
        section("Catalogue", CatalogueOptions),
        section("Search", SearchOptions),
        PROCESSORS,
        SPEED,
        QUIET,
    ],
)
def retrieve(**values: Any) -> int:
    """Find the items of a catalogue that a model gives to each line of text.

    The model in DIR scores nothing but items of the catalogue. One JSON object per line comes out: index
    (from 0), hypotheses (items: their numbers; text, score, final_score), and has_all_items, which says that
    the catalogue, as filtered, has no others.

    \b
    Examples:
      pybeam retrieve --model bible-es-en --catalogue verses.en < in.es
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
    catalogue, renormalize = take(CatalogueOptions, values), values.pop("renormalize")
    run = Run.take({**values, "is_json": True})
    from pybeam.corpus import Retrieve

    has_bar = not run.form.quiet and sys.stderr.isatty()
    rule = catalogue.load(run.setup, renormalize=renormalize, has_bar=has_bar)
    return run.execute(Retrieve(rule))


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
