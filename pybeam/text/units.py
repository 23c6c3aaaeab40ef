"""Split a text into what is translated and what stays, and put it together again.

A `Template` is a text with gaps. A `Split` makes one: `sentences`, `protected` and `at_most` do, and `chain`
applies several, each to the gaps of the one before. Spaces around a gap stay. So do texts without a letter
or a digit that a split leaves, since there is nothing in them to translate.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pybeam.arguments import ArgumentError
from pybeam.arguments import whole as check_whole

# where an overlong text is split: behind the end of a sentence, behind a pause, between words
BREAKS = [
    re.compile(pattern)
    for pattern in (
        r"(?<=[.!?…؟।])\s+|(?<=[。\uff01\uff1f])",
        r"(?<=[,;:،])\s+|(?<=[、\uff0c])",
        r"\s+",
    )
]
# what a text may end with; behind a match it belongs to the text before that
CLOSING = re.compile(r"[\s,.;:!?…)\]»”]*")
WORD = re.compile(r"\w")


class Template(NamedTuple):
    """A text with gaps: ``kept[0] + texts[0] + kept[1] + … + texts[-1] + kept[-1]``.

    Attributes:
        kept: what stays; one more than there are `texts`, and any may be empty.
        texts: what is translated.
    """

    kept: tuple[str, ...]
    texts: tuple[str, ...]

    def fill(self, translations: Sequence[str]) -> str:
        """Return the text with translations in its gaps. ``fill(texts)`` is the text itself.

        Raises:
            ValueError: there are not as many translations as gaps.
        """
        if len(translations) != len(self.texts):
            raise ValueError(
                f"`translations` must be {len(self.texts)}, one for each text, but there are "
                f"{len(translations)}"
            )
        pairs = itertools.zip_longest(self.kept, translations, fillvalue="")
        return "".join(part for pair in pairs for part in pair)


Split = Callable[[str], Template]


def whole(text: str) -> Template:
    """Return the text as one gap, which is how a line is translated without a split."""
    return Template(("", ""), (text,))


def lines(text: str) -> Template:
    """Split into lines. Their ends stay."""
    return template_of((line, True) for line in text.splitlines(keepends=True))


def sentences(language: str = "en") -> Split:
    """Split into sentences with the library sentencex. Spaces between them stay.

    Args:
        language: its ISO 639-1 code, such as "es"; what sentencex does not know is split by general rules.

    Raises:
        ImportError: the package sentencex is missing.
    """
    segment = _sentencex().segment

    def split(text: str) -> Template:
        # version 1.0.32 panics at spaces that are not ASCII; each is one character, so lengths stay
        spaced = re.sub(r"\s", " ", text)
        found = segment(language, spaced)
        # older versions lose characters; not to split is never wrong
        lengths = map(len, found if "".join(found) == spaced else [text])
        ends = itertools.accumulate(lengths, initial=0)
        return template_of((text[start:end], True) for start, end in itertools.pairwise(ends))

    return split


def protected(pattern: str | re.Pattern[str]) -> Split:
    """Split at the matches of a regular expression, which stay as they are.

    Every match is in the filled template once, unchanged and in its order, whatever the translations are. The
    texts between matches are translated apart: none is seen while another is translated, and no word moves
    over a match. Commas, full stops and the like right behind a match stay too. An empty match is none.

    Args:
        pattern: in Python's syntax, such as ``r"<[^>]*>|\\{\\w+\\}"``.

    Raises:
        ValueError: the pattern is no regular expression.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ArgumentError(
            "pattern",
            f"must be a regular expression, but is {pattern!r}: {error}; put a backslash before "
            "characters that stand for themselves",
        ) from None

    def split(text: str) -> Template:
        matches = [match for match in compiled.finditer(text) if match.group()]
        if not matches:
            return whole(text)
        parts, end = [], 0
        for match in matches:
            parts += [*_gap(text[end : match.start()]), (match.group(), False)]
            end = match.end()
        return template_of([*parts, *_gap(text[end:])])

    return split


def at_most(limit: int, count: Callable[[str], int]) -> Split:
    """Split texts that are too long into parts of at most `limit` tokens; others stay whole.

    A text is halved until its parts are short enough: at the end of a sentence if there is one in it, else
    behind a comma, semicolon or colon, else between words, else inside a word; of several such places at the
    one nearest to the middle.

    Args:
        limit: of ``count(part)``, from 1 on.
        count: the tokens of a text, such as ``lambda text: len(tokenizer.encode(text))``. A part of one
            character is never split, whatever it counts.

    Raises:
        ValueError, TypeError: `limit` is no such number.
    """
    check_whole("limit", limit, 1)

    def parts(text: str) -> Iterator[tuple[str, bool]]:
        inner = text.strip()
        if len(inner) < 2 or count(inner) <= limit:
            yield text, True
            return
        middle = _middle(text)
        yield from parts(text[:middle])
        yield from parts(text[middle:])

    def split(text: str) -> Template:
        if count(text) <= limit:
            return whole(text)
        return template_of(parts(text))

    return split


def chain(splits: Iterable[Split]) -> Split:
    """Apply several splits, each to the texts that the one before left. Without any it is `whole`."""
    splits = tuple(splits)

    def split(text: str) -> Template:
        template = whole(text)
        for one in splits:
            template = _refined(template, one)
        return template

    return split


def _refined(template: Template, split: Split) -> Template:
    kept = [template.kept[0]]
    texts: list[str] = []
    for text, behind in zip(template.texts, template.kept[1:], strict=True):
        inner = split(text)
        kept[-1] += inner.kept[0]
        kept += inner.kept[1:]
        texts += inner.texts
        kept[-1] += behind
    return Template(tuple(kept), tuple(texts))


def template_of(parts: Iterable[tuple[str, bool]]) -> Template:
    """Join parts of a text, each with whether it is translated, if there is a word in it."""
    kept = [""]
    texts: list[str] = []
    for text, is_translated in parts:
        if not is_translated or not WORD.search(text):
            kept[-1] += text
            continue
        inner = text.strip()
        start = len(text) - len(text.lstrip())
        kept[-1] += text[:start]
        texts.append(inner)
        kept.append(text[start + len(inner) :])
    return Template(tuple(kept), tuple(texts))


def _gap(text: str) -> list[tuple[str, bool]]:
    """The texts between two matches, as parts."""
    closing = CLOSING.match(text)
    assert closing is not None, "it matches an empty text too"
    return [(closing.group(), False), (text[closing.end() :], True)]


def _middle(text: str) -> int:
    """Where to halve a text: inside it, so that both halves are shorter."""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    half = (start + end) // 2
    for pattern in BREAKS:
        ends = [match.end() for match in pattern.finditer(text, start + 1, end)]
        inside = [place for place in ends if start < place < end]
        if inside:
            return min(inside, key=lambda place: (abs(place - half), place))
    return half


def _sentencex() -> Any:
    try:
        return importlib.import_module("sentencex")
    except ImportError as error:
        raise ImportError(
            "sentences need the package sentencex: `pip install 'pybeam-search[documents]'`"
        ) from error
