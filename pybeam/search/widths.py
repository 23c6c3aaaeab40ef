"""The width of a beam: one number, or one for each of the first steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from pybeam.arguments import ArgumentError, whole
from pybeam.contracts import MAX_WIDTH

Width = int | Sequence[int]


def checked(width: object) -> int | tuple[int, ...]:
    """Return one width as it is, and widths by step as a tuple. Raises TypeError or ValueError for others."""
    if isinstance(width, str) or not isinstance(width, Iterable):
        return _checked(width)
    widths = tuple(_checked(one) for one in width)
    if not widths:
        raise ArgumentError("width", "must be a number or one for each step, but is empty")
    return widths


def _checked(width: object) -> int:
    whole("width", width, 1)
    assert isinstance(width, int)
    if width > MAX_WIDTH:
        raise ArgumentError("width", f"must be at most {MAX_WIDTH}, but is {width}")
    return width


def by_step(width: Width) -> tuple[int, ...]:
    """Return the widths of the first steps. The last one holds from then on."""
    return (width,) if isinstance(width, int) else tuple(width)


def last(width: Width) -> int:
    """Return the width that holds in the end: the K that finishing and stop rules count."""
    return by_step(width)[-1]


def widest(width: Width) -> int:
    """Return the largest width of any step."""
    return max(by_step(width))


def narrowed(width: Width, most: int) -> Width:
    """Return the same width, of any step, with at most so many places."""
    return min(width, most) if isinstance(width, int) else tuple(min(one, most) for one in width)


def is_width(width: object) -> TypeGuard[Width]:
    """Whether `checked` returns something."""
    try:
        checked(width)
    except (TypeError, ValueError):
        return False
    return True
