"""`pybeam key`: a key for `pybeam serve --keys`."""

from __future__ import annotations

import secrets
from typing import Any

import click

from pybeam.cli.options.declare import section, take
from pybeam.cli.options.sections import SectionCommand
from pybeam.server.key_file import NAME, table_of
from pybeam.server.settings import KeyLimits

# so that a key that has been published by mistake can be found
PREFIX = "pybeam-"
NUM_BYTES = 32


@click.command(
    cls=SectionCommand,
    short_help="Make a key for a server.",
    sections=[section("Limits", KeyLimits)],
)
@click.argument("name")
def key(name: str, **values: Any) -> int:
    """Make a key for `pybeam serve --keys`.

    Its table goes to stdout: NAME, which logs show, the key's SHA-256 and its limits. Add it to the file of
    keys, where limits can be changed and tables be deleted. The key itself goes to stderr, this once.

    \b
    Examples:
      pybeam key alice >> keys.toml
      pybeam key bob --requests-per-minute 60 --tokens-per-day 1000000 >> keys.toml
      pybeam serve --model bible-es-en --keys keys.toml
      kill -HUP PID    the server reads the file again
    """
    if not NAME.fullmatch(name):
        raise click.UsageError(f"NAME must be at most 64 letters, digits, - and _, but is {name!r}")
    made = PREFIX + secrets.token_urlsafe(NUM_BYTES)
    click.echo(table_of(name, made, take(KeyLimits, values)))
    click.echo(made, err=True)
    return 0
