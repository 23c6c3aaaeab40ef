"""Options that say what is asked of a server, how often, and what counts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import click

from pybeam.cli.options.declare import (
    Count,
    NotNegative,
    Parsed,
    PathOrDash,
    Positive,
    Whole,
    option,
)

SECONDS = 30.0


def parse_field(text: str) -> tuple[str, Any]:
    """Return a field's name and its value, which is JSON, or else a text."""
    name, is_given, value = text.partition("=")
    if not (name and is_given):
        raise ValueError
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parse_key(text: str) -> str:
    """Return a key that can stand in a header."""
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError
    return text


Field = Annotated[tuple[str, Any], Parsed(parse_field, "must be NAME=VALUE, but is {!r}")]
Key = Annotated[str, Parsed(parse_key, "must be printable ASCII without spaces")]


@dataclass(frozen=True)
class AskOptions:
    """The requests.

    Attributes:
        input_path: UTF-8 text, one text per request; `-` or nothing: stdin. After the last line the first one
            follows again. Empty lines are left out.
        shape: What requests look like, and who takes them. translations: POST /v1/translations of pybeam.
            decode: POST /v1/decode of pybeam. completions, chat: POST /v1/completions and
            /v1/chat/completions of OpenAI. libretranslate: POST /translate of LibreTranslate.
        field: Another field of each request, such as width=8, model=NAME or target=de. VALUE is JSON, or else
            a text; may be given many times. By default OpenAI's shapes ask for the first model of the server,
            LibreTranslate's for English, from whichever language it detects.
        stream: Ask for a stream, and measure also when its first text comes: of pybeam, the first that is
            certain.
        key: Send `Authorization: Bearer KEY`; LibreTranslate's shape has it as api_key, too. Put it into the
            environment's PYBEAM_KEY where others can see the command line.
        timeout: Close the connection of a request that has no answer within this time.
    """

    input_path: PathOrDash = option("FILE", "-", flag="--input", shows=False, is_common=True)
    shape: Literal["translations", "decode", "completions", "chat", "libretranslate"] = option(
        "NAME", "translations", is_common=True
    )
    field: tuple[Field, ...] = option("NAME=VALUE", (), is_common=True)
    stream: bool = option(default=False, is_common=True)
    key: Key | None = option("KEY", envvar="PYBEAM_KEY")
    timeout: Positive = option("SECONDS", 60.0)


@dataclass(frozen=True)
class LoadOptions:
    """How often requests come; a rate or clients.

    Attributes:
        rate: Requests per second, on average. They come at random (Poisson arrivals) and do not wait for each
            other: an open loop.
        clients: So many clients, each of which sends its next request when it has the last answer: a closed
            loop.
        seconds: Length of the measurement.
        requests: Requests that count, in place of --seconds.
        warm_up: Time before the measurement, whose requests do not count.
        deadline: Time in which an answer must be there to count as goodput.
        seed: When requests come; the same seed gives the same moments.
    """

    rate: Positive | None = option("REQUESTS", is_common=True)
    clients: Count | None = option("N", is_common=True)
    seconds: Positive | None = option(
        "SECONDS", shows=f"{SECONDS:g}, or until --requests are over", is_common=True
    )
    requests: Count | None = option("N")
    warm_up: NotNegative = option("SECONDS", 2.0)
    deadline: Positive = option("MS", 500.0, is_common=True)
    seed: Whole = option("N", 0)

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.clients is None):
            raise click.UsageError("give either --rate or --clients")
        if self.seconds is not None and self.requests is not None:
            raise click.UsageError("give either --seconds or --requests, not both")
