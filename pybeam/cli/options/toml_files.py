"""Options of a command that stand in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click


def read_toml(path: str, said: str) -> dict[str, Any]:
    """Read a TOML file. Raises UsageError, which begins with what was `said`, if it is none."""
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise click.UsageError(f"{said}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{said} must be a TOML file: {error}") from error


def defaults_of(
    options: Iterable[click.Parameter], values: Mapping[str, Any], said: str, known: str
) -> dict[str, Any]:
    """Return values of a file as defaults of options, by the names of their parameters.

    Args:
        options: the file names them without the dashes.
        values: of the file.
        said: begins a message.
        known: says what has these options.

    Raises UsageError for a name that is no option.
    """
    named = {
        flag.lstrip("-"): one
        for one in options
        if isinstance(one, click.Option)
        for flag in one.opts
    }
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        one = named.get(key.replace("_", "-"))
        if one is None or one.name is None:
            raise click.UsageError(f"{said}: {key!r} is no option of {known}")
        is_single = one.multiple and isinstance(value, str)
        # such as widths by step
        is_joined = isinstance(value, list) and not one.multiple
        joined = ",".join(map(str, value)) if is_joined else value
        defaults[one.name] = [value] if is_single else joined
    return defaults
