"""Options that say what of a line is translated at a time, and what stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from pybeam.cli.options.sections import Section, option

CUT, SPLIT, SKIP = "cut", "split", "skip"
UNITS = Section(
    "What is translated at a time",
    [
        option(
            "--unit",
            type=click.Choice(["line", "document"]),
            default="line",
            show_default=True,
            help="document: a line is split into sentences, which are translated one by one and joined "
            "with the spaces that stood between them. Needs `pip install pybeam-search[documents]`.",
        ),
        option(
            "--sentence-lang",
            metavar="CODE",
            default="en",
            show_default=True,
            help="With --unit document: language of the input by its ISO 639-1 code, such as es.",
        ),
        option(
            "--protect",
            metavar="REGEX",
            multiple=True,
            help="Matches of this regular expression of Python stay as they are, in their order. The text "
            "between them is translated piece by piece. May be given several times.",
        ),
        option(
            "--max-source-length",
            type=click.IntRange(min=1),
            metavar="N",
            help="Most tokens of a source, tags and end included; default: the model's limit.",
        ),
        option(
            "--long-sources",
            type=click.Choice([CUT, SPLIT, SKIP]),
            default=CUT,
            show_default=True,
            help="What becomes of a longer one. cut: its end is not translated, with a warning. split: it is "
            "translated in parts that are short enough. skip: the line fails.",
        ),
    ],
)


@dataclass(frozen=True)
class UnitOptions:
    """See the helps above."""

    unit: str
    sentence_lang: str
    protect: tuple[str, ...]
    max_source_length: int | None
    long_sources: str

    @property
    def joins(self) -> bool:
        """Whether an output line may be put together from several translations."""
        return self.unit == "document" or bool(self.protect) or self.long_sources == SPLIT

    def check(self, values: dict[str, Any]) -> None:
        """Raise UsageError for options of the output that need one translation a line."""
        for name in ("is_json", "has_scores", "has_alignment"):
            if self.joins and values[name]:
                flag = name.replace("is_", "--").replace("has_", "--")
                raise click.UsageError(f"{flag} {ONE_BY_ONE}")


ONE_BY_ONE = (
    "cannot be combined with --unit document, --protect or --long-sources split, which put a line "
    "together from several translations; leave one of them out"
)
