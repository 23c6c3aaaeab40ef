"""Turn errors of the library into errors of the command line."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator

import click

# arguments whose options have other names
OPTIONS = {
    "directory": "--output",
    "n": "--batch-size",
    "tokens": "--batch-tokens",
    "path": "--model",
    "vocabularies": "--model",
    "sequences": "--suppress",
    "metrics": "--metric",
    "references": "--reference",
    "sources": "--input",
}
# errors of the library for wrong values and files, and for missing optional packages
EXPECTED = (ImportError, OSError, TypeError, ValueError)


def show(error: click.ClickException) -> None:
    """Write an error to stderr; on a terminal the word "Error" is red, unless NO_COLOR is set."""
    written = io.StringIO()
    error.show(written)
    red = re.sub(
        r"(?m)^Error:", click.style("Error:", fg="red", bold=True), written.getvalue(), count=1
    )
    click.echo(red, err=True, nl=False, color=False if os.environ.get("NO_COLOR") else None)


def flag(name: str) -> str:
    """Return the option for an argument of the library."""
    return OPTIONS.get(name, "--" + name.replace("_", "-"))


def message_of(error: Exception, option: str | None = None) -> str:
    """Return an error's message, with the option in place of the argument that it is about.

    `option` is the option at fault, if it is known without the argument's name.
    """
    from pybeam.arguments import ArgumentError

    if isinstance(error, ArgumentError):
        return f"{option or flag(error.name)} {error.problem}"
    return f"{option}: {reason_of(error)}" if option else reason_of(error)


def reason_of(error: Exception) -> str:
    """Return an error's message, without the number that a system has for it."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


@contextlib.contextmanager
def as_usage_errors(option: str | None = None) -> Iterator[None]:
    """In this block, errors of the library become errors of wrong options (exit code 2)."""
    try:
        yield
    except EXPECTED as error:
        raise click.UsageError(message_of(error, option)) from error


@contextlib.contextmanager
def as_failures() -> Iterator[None]:
    """In this block, errors of the library become errors of files, models and packages (exit code 1)."""
    try:
        yield
    except EXPECTED as error:
        raise click.ClickException(message_of(error)) from error
