"""Options that say which part of a line is translated at a time, and which stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pybeam.cli.options.declare import Count, option, refuse, section
from pybeam.cli.options.files import FormOptions

ONE_BY_ONE = (
    "cannot be combined with --unit document, --protect or --long-sources split, which put a line "
    "together from several translations; leave one of them out"
)


@dataclass(frozen=True)
class UnitOptions:
    """The fields of `pybeam.corpus.Translate`.

    Attributes:
        unit: document: a line is split into sentences, which are translated one by one and joined with the
            spaces that stood between them. Needs `pip install pybeam-search[documents]`.
        sentence_lang: With --unit document: language of the input by its ISO 639-1 code, such as es.
        protect: Matches of this regular expression of Python stay as they are, in their order. The text
            between them is translated piece by piece. May be given several times.
        max_source_length: Most tokens of a source, tags and end included; default: the model's limit.
        long_sources: What becomes of a longer one. cut: its end is not translated, with a warning. split: it
            is translated in parts that are short enough. skip: the line fails.
    """

    unit: Literal["line", "document"] = "line"
    sentence_lang: str = option("CODE", "en")
    protect: tuple[str, ...] = option("REGEX", ())
    max_source_length: Count | None = option("N")
    long_sources: Literal["cut", "split", "skip"] = "cut"

    def check(self, form: FormOptions) -> None:
        """Raise UsageError for options of the output that need one translation a line."""
        if self.unit == "document" or self.protect or self.long_sources == "split":
            refuse(form, ("is_json", "has_scores", "has_alignment"), ONE_BY_ONE)


UNITS = section("What is translated at a time", UnitOptions)
