"""Decide which sources fail with an error: a bad request alone, or all that share the broken part."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from pybeam.request import Result

T = TypeVar("T")


class StepFailed(Exception):
    """A step failed. The cause is the error that was raised in it.

    Attributes:
        slot: [A], the slots of the sources that would have moved, or `NULL_SLOT`.
        is_undone: whether nothing has changed, so that the step may be tried again.
    """

    def __init__(self, slot: Tensor, *, is_undone: bool) -> None:
        super().__init__()
        self.slot, self.is_undone = slot, is_undone


class Interrupted(Exception):
    """Ends the search of a request that is to leave with the best that has been found. It is no failure."""


def isolate(act: Callable[[list[T]], object], items: Sequence[T]) -> dict[int, Exception]:
    """Act on all items at once. If that fails, act on each alone, so that a bad one fails alone.

    Returns the errors of the items that failed alone, by place in `items`.
    """
    if not items:
        return {}
    try:
        act(list(items))
    except Exception as error:
        return {0: kept(error)} if len(items) == 1 else each_alone(act, items)
    return {}


def each_alone(act: Callable[[list[T]], object], items: Sequence[T]) -> dict[int, Exception]:
    """Act on each item alone. Returns the errors of the items that failed, by place in `items`."""
    errors: dict[int, Exception] = {}
    for i, item in enumerate(items):
        try:
            act([item])
        except Exception as error:
            errors[i] = kept(error)
    return errors


def kept(error: Exception) -> Exception:
    """Return the error without the variables of its frames, which may hold whole arrays.

    A result can then keep it. The errors that led to it are treated in the same way.
    """
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            links += [link.__cause__, link.__context__]
    return error


def failed(result: Result, error: Exception) -> Result:
    """The result of a request that fails, or leaves with what it has, after its search has ended."""
    if isinstance(error, Interrupted):
        return dataclasses.replace(result, stop_reason="interrupted")
    return dataclasses.replace(result, hypotheses=[], stop_reason="error", error=error)
