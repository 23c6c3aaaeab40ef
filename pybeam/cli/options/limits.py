"""Options for the limits of one request to a server."""

from __future__ import annotations

from typing import Any

import click

from pybeam.cli.options.sections import Section, option


class WidthByLoad(click.ParamType):
    """A number of waiting texts and the width of beams from there on."""

    name = "load"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        waiting, _, width = value.partition(":")
        if not (waiting.isdigit() and width.isdigit() and int(waiting) and int(width)):
            self.fail(f"{value!r} must be two numbers, such as 16:3", param, ctx)
        return int(waiting), int(width)


LIMITS = Section(
    "Limits of a request",
    [
        option(
            "--timeout",
            default=60.0,
            type=click.FloatRange(0, min_open=True),
            metavar="SECONDS",
            help="Answer 504 after this time; a request may ask for less.",
        ),
        option(
            "--max-waiting",
            default=256,
            type=click.IntRange(1),
            metavar="N",
            help="Texts that may wait for each model; a request beyond gets 429.",
        ),
        option(
            "--max-waiting-work",
            type=click.IntRange(1),
            metavar="WORK",
            help="Source tokens times beam width of all texts that wait for a model; likewise 429.",
        ),
        option(
            "--width-by-load",
            type=WidthByLoad(),
            multiple=True,
            metavar="WAITING:K",
            help="While so many texts wait, begin others with a beam of at most K, which is faster and "
            "worse; answers say their width. May be given many times, such as 16:3 and 64:1.",
        ),
        option(
            "--max-priority",
            default=0,
            type=click.IntRange(0, 8),
            metavar="N",
            help="Highest priority that a request may ask for. All may ask for less, down to -8.",
        ),
        option(
            "--max-sources",
            default=64,
            type=click.IntRange(1),
            metavar="N",
            help="Texts in one request.",
        ),
        option(
            "--max-source-tokens",
            default=1024,
            type=click.IntRange(1),
            metavar="TOKENS",
            help="Length of a text.",
        ),
        option(
            "--max-width",
            default=32,
            type=click.IntRange(1, 4096),
            metavar="K",
            help="Beam width, and number of outputs, that a request may ask for.",
        ),
        option(
            "--max-body",
            default=1 << 20,
            type=click.IntRange(1),
            metavar="BYTES",
            help="Size of a request.",
        ),
        option(
            "--max-audio",
            default=25 << 20,
            type=click.IntRange(1),
            metavar="BYTES",
            help="Size of a request with a recording.",
        ),
        option(
            "--max-audio-seconds",
            default=1800.0,
            type=click.FloatRange(0, min_open=True),
            metavar="SECONDS",
            help="Length of a recording. A longer one is refused when so much of it is decoded.",
        ),
        option(
            "--max-recordings",
            default=16,
            type=click.IntRange(1),
            metavar="N",
            help="Recordings that are transcribed at a time; a request beyond gets 429.",
        ),
        option(
            "--body-timeout",
            default=30.0,
            type=click.FloatRange(0, min_open=True),
            metavar="SECONDS",
            help="Time in which a request must have come whole.",
        ),
    ],
)
