"""Splits of texts in which not all is text: HTML and subtitles."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pybeam.text.units import Template, template_of

# "<" begins no second tag within one, so that a text is read once whatever stands in it
TAG = re.compile(r"""<!--|<[a-zA-Z/!?](?:[^<>"']|"[^"<]*"|'[^'<]*')*>|<[a-zA-Z/!?][^<>]*>""")
# what stands in them is no text of a language
RAW = re.compile(r"<(script|style|code|pre|kbd|samp|var|math|svg|textarea)\b", re.IGNORECASE)
# number and times of a subtitle; behind the second time may stand a position
CUE = re.compile(
    r"^[ \t]*(?:\d+[ \t]*\r?\n[ \t]*)?(?:\d+:)?\d+:\d+[,.]\d+[ \t]*-->.*$", re.MULTILINE
)
# of the text within one
STYLE = re.compile(r"<[^<>\n]*>|\{\\[^{}\n]*\}")


def html(text: str) -> Template:
    """Split HTML at its tags, which stay as they are, as do comments, scripts and code.

    Texts between tags are translated apart. They are as in the HTML: ``&amp;`` is not ``&`` yet.
    """
    return template_of(_html_parts(text))


def _html_parts(text: str) -> Iterator[tuple[str, bool]]:
    start = 0
    while match := TAG.search(text, start):
        yield text[start : match.start()], True
        start = _end(text, match)
        yield text[match.start() : start], False
    yield text[start:], True


def _end(text: str, match: re.Match[str]) -> int:
    """The end of what begins with a tag and stays."""
    if match.group() == "<!--":
        end = text.find("-->", match.end())
        return len(text) if end < 0 else end + len("-->")
    raw = RAW.match(match.group())
    if raw is None or match.group().endswith("/>"):
        return match.end()
    closing = re.compile(rf"</{raw[1]}\s*>", re.IGNORECASE).search(text, match.end())
    return len(text) if closing is None else closing.end()


def subtitles(text: str) -> Template:
    """Split subtitles (SRT, VTT) at their numbers and times, which stay as they are.

    The lines of one subtitle are one text.
    """
    return template_of(_subtitle_parts(text))


def _subtitle_parts(text: str) -> Iterator[tuple[str, bool]]:
    start = 0
    for match in CUE.finditer(text):
        yield from _spoken(text[start : match.start()], start > 0)
        yield match.group(), False
        start = match.end()
    yield from _spoken(text[start:], start > 0)


def _spoken(text: str, is_spoken: bool) -> Iterator[tuple[str, bool]]:
    """The parts of one subtitle; what stands before the first is a title."""
    end = 0
    for match in STYLE.finditer(text):
        yield text[end : match.start()], is_spoken
        yield match.group(), False
        end = match.end()
    yield text[end:], is_spoken
