"""Settings in YAML: what stands at the top of a file, as text."""

from __future__ import annotations

import math
from pathlib import Path

import yaml

from pybeam.text.model_files import regular_file

# a thousand times what programs write
MAX_SETTINGS_BYTES = 1 << 20


class Settings:
    """Texts and lists of texts by their names. Tables within a table are left out.

    A reader that makes objects is of no use for files of strangers. Here a text is what stands in the file.

    Args:
        where: what errors call the file.
        content: its text.

    Raises:
        ValueError: this is no YAML, or no table.
    """

    def __init__(self, where: str, content: str) -> None:
        self._where = where
        try:
            self._found = _top(content)
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(f"{where} must be a YAML file, but cannot be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text. Raises ValueError if it is missing, and there is no default, or is a list."""
        found = self._found.get(name, default)
        if not isinstance(found, str):
            raise ValueError(
                f"`{name}` in {self._where} must be one word or number, but is {found!r}"
            )
        return found

    def texts(self, name: str) -> list[str]:
        """Return a list of texts, which is empty if it is missing. Raises ValueError for a text."""
        found = self._found.get(name, [])
        if not isinstance(found, list):
            raise ValueError(f"`{name}` in {self._where} must be a list, but is {found!r}")
        return found

    def number(self, name: str, default: float) -> float:
        """Return a number. Raises ValueError for what is none."""
        found = self.text(name, str(default))
        try:
            value = float(found)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"`{name}` in {self._where} must be a number, but is {found!r}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether this is true; a missing flag is not. Raises ValueError for no flag."""
        return self.choice(name, ("false", "true")) == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return a text out of these; the first is the default. Raises ValueError for another."""
        found = self.text(name, choices[0])
        if found.lower() not in choices:
            known = " or ".join(repr(one) for one in choices)
            raise ValueError(f"`{name}` in {self._where} must be {known}, but is {found!r}")
        return found.lower()

    def size(self, name: str, most: int, default: int | None = None) -> int:
        """Return a number from 1 to `most`. Raises ValueError for another one, or if it is missing."""
        found = self.text(name, None if default is None else str(default))
        if not found.isdecimal() or len(found) > 9 or not 1 <= int(found) <= most:
            raise ValueError(
                f"`{name}` in {self._where} must be an integer from 1 to {most}, but is {found!r}"
            )
        return int(found)


def read_settings(path: Path) -> Settings:
    """Read a file of settings. Raises ValueError if it is no regular file or too large, or cannot be read."""
    regular_file(path, MAX_SETTINGS_BYTES)
    try:
        content = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be a YAML file, but cannot be read: {error}") from error
    return Settings(str(path), content)


def _top(content: str) -> dict[str, str | list[str]]:
    """Return what stands at the top of a table; events need no memory for what they stand within."""
    found: dict[str, str | list[str]] = {}
    depth, name = 0, None
    values: list[str] | None = None
    for event in yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias stands there")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth == 1 and not isinstance(event, yaml.MappingStartEvent):
                break
            if depth == 2 and name is not None and isinstance(event, yaml.SequenceStartEvent):
                values = []
                found[name] = values
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            if depth == 1:
                name = values = None
        elif isinstance(event, yaml.ScalarEvent):
            if depth == 0:
                break
            if depth == 2 and values is not None:
                values.append(event.value)
            elif depth == 1 and name is None:
                name = event.value
            elif depth == 1:
                assert name is not None
                found[name], name = event.value, None
        elif isinstance(event, yaml.DocumentEndEvent):
            return found
    raise ValueError("there must be a table of settings")
