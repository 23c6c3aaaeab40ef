"""The options that all searches share: one list, for type checkers, for `help` and for error messages."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypedDict

from pybeam.arguments import names_checked
from pybeam.limits import PrefixRule, SourceLimit
from pybeam.processors.base import AnyProcessor
from pybeam.scoring import Scoring
from pybeam.search.algorithms import Algorithm
from pybeam.stopping import Stop

P = ParamSpec("P")


class DrawOptions(TypedDict, total=False):
    """The options of `pybeam.sample`."""

    min_length: int
    max_length: int | SourceLimit | None
    processors: Sequence[AnyProcessor]
    prefix: PrefixRule
    ended_only: bool


class SamplingOptions(DrawOptions, total=False):
    """The options of `pybeam.stochastic_beam`."""

    n_best: int


class SearchOptions(SamplingOptions, total=False):
    """The options of every other search."""

    scoring: Scoring
    stop: Stop


# the defaults that `help` shows; `Algorithm` has the same
DEFAULTS = {
    "n_best": "1",
    "min_length": "0",
    "max_length": "None",
    "scoring": "raw()",
    "processors": "()",
    "stop": "count()",
    "prefix": "FREE",
    "ended_only": "False",
}
MEANING = {
    "n_best": "hypotheses to return, at most `width`; it only trims the result.",
    "min_length": "tokens before EOS may be generated. EOS is not counted, nothing is renormalised.",
    "max_length": "generated tokens, EOS counted, at which rows are cut: a number, or a\n"
    "    `pybeam.limits.SourceLimit`. None: 256, or the model's positions if those are fewer.",
    "scoring": "how finished hypotheses are ranked, from `pybeam.scoring`.",
    "processors": "a list from `pybeam.processors`, or functions ``(logits [R, V], rows) ->\n"
    "    logits [R, V]``, applied before each selection.",
    "stop": "when the search is done, from `pybeam.stopping`.",
    "prefix": "what `Request.prefix` counts for, a `pybeam.limits.PrefixRule`.",
    "ended_only": "return only hypotheses that ended in EOS, of which there may be none. False:\n"
    "    rows that are cut at `max_length` are hypotheses too (`Hypothesis.ended` tells them apart).",
}
RAISES = "Raises:\n    ValueError, TypeError: an option is out of range or of the wrong type."


class _Default:
    """A default value, shown as the text that makes it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def documented(
    kind: type, **defaults: str
) -> Callable[[Callable[P, Algorithm]], Callable[P, Algorithm]]:
    """A decorator for a function whose keyword arguments are those of the TypedDict `kind`.

    `help` then shows every option with its default, which `defaults` says where it is not that of
    `DEFAULTS`, and the errors that all such functions raise. A call with an option that does not exist raises
    TypeError with the nearest one.
    """
    names = [name for name in DEFAULTS if name in kind.__annotations__]
    texts = {name: defaults.get(name, DEFAULTS[name]) for name in names}

    def decorate(build: Callable[P, Algorithm]) -> Callable[P, Algorithm]:
        signature = inspect.signature(build)
        own = [one for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD]
        known = [*(one.name for one in own), *names]

        checked = names_checked(build, known=known)
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_Default(text),
                annotation=kind.__annotations__[name].__forward_arg__,
            )
            for name, text in texts.items()
        ]
        shown: Any = checked
        shown.__signature__ = signature.replace(parameters=[*own, *options])
        lines = "\n".join(f"{name} = {text}: {MEANING[name]}" for name, text in texts.items())
        told = inspect.cleandoc(build.__doc__ or "")
        listed = "Options:\n" + textwrap.indent(lines, "    ")
        errors = "" if "Raises:" in told else f"\n\n{RAISES}"
        checked.__doc__ = f"{told}\n\n{listed}{errors}"
        return checked

    return decorate


def processor_tuple(processors: Sequence[AnyProcessor]) -> tuple[AnyProcessor, ...]:
    """The processors as `Algorithm` takes them; raises TypeError if they are no list."""
    if callable(processors) or not isinstance(processors, Iterable):
        raise TypeError(f"`processors` must be a list, but is {processors!r}; put it into one")
    return tuple(processors)
