"""Read the fields of a configuration, each of a kind. Errors name the file, the field and its value."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from pybeam.text.json_files import LARGEST


@dataclass(frozen=True)
class Fields:
    """The fields of a JSON object in a file, or of an object in that.

    Args:
        path: the file.
        config: the object.
        place: the field that holds the object, with a dot behind it.
        names: what the object calls a field, the preferred name first, if not by its own name.
    """

    path: Path
    config: dict[str, Any]
    place: str = ""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def own(self, name: str) -> str:
        """Return the name by which the object has a field, or would have it."""
        names = self.names.get(name, (name,)) or (name,)
        return next((one for one in names if self.config.get(one) is not None), names[0])

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field, whatever it is."""
        if not self.names.get(name, (name,)):
            return default
        return self.config.get(self.own(name), default)

    def error(self, name: str, expected: str) -> ValueError:
        """Make an error for the value of a field."""
        name = self.own(name)
        found = repr(self.config[name]) if name in self.config else "missing"
        return ValueError(f"`{self.place}{name}` in {self.path} must be {expected}, but is {found}")

    def optional_size(self, name: str, least: int, default: int | None = None) -> int | None:
        """Return an int of at least `least`, or None; `default` stands for a missing field."""
        value = self.get(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self.error(name, f"an integer from {least} to {LARGEST}, or null")
        return value

    def size(self, name: str, default: int | None = None, most: int = LARGEST) -> int:
        """Return a positive int up to `most`; `default` stands for a missing field, or null."""
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(name, f"a positive integer up to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number; `default` stands for a missing field, or null."""
        value = self.get(name)
        value = default if value is None else value
        if not _is_positive(value):
            raise self.error(name, "a positive number")
        return value

    def cap(self, name: str, default: float | None) -> float | None:
        """Return a positive number, or None for null; `default` stands for a missing field."""
        if self.get(name, default) is None:
            return None
        return self.number(name, default)

    def numbers(self, name: str, num: int) -> list[float]:
        """Return so many positive numbers."""
        values = self.get(name)
        if not isinstance(values, list) or len(values) != num or not all(map(_is_positive, values)):
            raise self.error(name, f"a list of {num} positive numbers")
        return values

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false; `default` stands for a missing field, or null."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def choice(self, name: str, default: str, choices: Collection[str]) -> str:
        """Return one of these names; `default` stands for a missing field, or null."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"one of {', '.join(choices)}")
        return value

    def expect(self, name: str, values: tuple[Any, ...]) -> None:
        """Raise ValueError for a value that is none of these."""
        if self.own(name) in self.config and self.get(name) not in values:
            raise self.error(name, " or ".join(map(repr, values)))


def _is_positive(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # JSON has integers beyond every float
    return is_number and 0 < value <= sys.float_info.max
