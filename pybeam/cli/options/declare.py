"""An option stands once, as a field of a dataclass; its click option is derived from the field.

The field's annotation has the type and the range, its default is the option's, and its line among the
docstring's `Attributes` is the help. `option` says the rest.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, field, fields
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from pybeam.cli.options.errors import flag
from pybeam.cli.options.sections import Option, Section

Kind = TypeVar("Kind")
# an attribute in a docstring without its margin, with the lines that belong to it
ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)

# facts that click does not know
OWN_FACTS = ("flag", "shows", "takers")

Count = Annotated[int, click.IntRange(1)]
Whole = Annotated[int, click.IntRange(0)]
Positive = Annotated[float, click.FloatRange(0, min_open=True)]
NotNegative = Annotated[float, click.FloatRange(0)]
FilePath = Annotated[str, click.Path()]
PathOrDash = Annotated[str, click.Path(allow_dash=True)]


class PathText(click.Path):
    """Text that a shell completes as the name of a file or folder. Nothing checks that there is one."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        # as texts are, and not at the colons of a PATH
        return rv.split()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return click.STRING.convert(value, param, ctx)


FILE_TEXT, FOLDER_TEXT = PathText(), PathText(file_okay=False)


class Parsed(click.ParamType):
    """The values that a function makes of text.

    Args:
        parse: raises ValueError for text that is none.
        problem: says what was expected; `{!r}` stands for the text.
    """

    name = "text"

    def __init__(self, parse: Callable[[str], Any], problem: str) -> None:
        self._parse, self._problem = parse, problem

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, or from a file
        try:
            return self._parse(value)
        except ValueError:
            self.fail(self._problem.format(value), param, ctx)


def option(metavar: str | None = None, default: Any = None, **facts: Any) -> Any:
    """Return a field of a dataclass of options.

    Args:
        metavar: stands for a value in the help.
        default: of the field. None and (): the option is not given. A tuple is given many times.
        facts: `flag`: its name, if that is not the field's. `shows`: the default as the help has it.
            `is_common`: whether `-h` lists it. Others are those of `click.Option`, or a dataclass reads them
            itself from the field's metadata.
    """
    return field(default=default, metadata={"metavar": metavar, **facts})


def section(
    title: str, *kinds: type, names: Sequence[str] = (), **changes: dict[str, Any] | None
) -> Section:
    """Return the options of dataclasses under one heading.

    Args:
        title: the heading.
        kinds: dataclasses, each of whose fields is an option.
        names: the fields that are wanted, in this order; none: all.
        changes: facts of an option that are different here, such as its `help`; None leaves the option out.
    """
    found: dict[str, Option] = {}
    for kind in kinds:
        # there is no docstring with `python -OO`
        helps = dict(ATTRIBUTE.findall(inspect.cleandoc(kind.__doc__ or "")))
        assert not kind.__doc__ or helps.keys() == {one.name for one in fields(kind)}, kind
        hints = get_type_hints(kind, include_extras=True)
        for one in fields(kind):
            own = changes.get(one.name, {})
            if own is not None:
                meaning = re.sub(r"\s+", " ", helps.get(one.name, ""))
                facts = {"help": meaning, **one.metadata, **own}
                found[one.name] = _click_option(one, hints[one.name], facts)
    return Section(title, [found[name] for name in names or found])


def _click_option(one: Field[Any], hint: Any, facts: dict[str, Any]) -> Option:
    declaration = facts.get("flag", flag(one.name))
    default = facts.pop("default", one.default)
    kind, is_switch = _parameter_type(hint), "/" in declaration
    settings: dict[str, Any] = {"type": kind}
    if kind is bool and not is_switch:
        settings = {"is_flag": True}
    elif isinstance(default, tuple):
        settings |= {"multiple": True, **({"default": list(default)} if default else {})}
    elif is_switch or default is not None:
        settings["default"] = default
    settings["show_default"] = facts.get("shows", settings.get("default") is not None)
    settings |= {name: value for name, value in facts.items() if name not in OWN_FACTS}
    return Option([declaration, one.name], **settings)


def _parameter_type(hint: Any) -> Any:
    """Return the click type of an annotation, without None and without the tuple of what is given often."""
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    if get_origin(hint) is tuple:
        return _parameter_type(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    return hint


def flag_of(kind: type, name: str) -> str:
    """Return the flag of a field."""
    [found] = [one for one in fields(kind) if one.name == name]
    declared: str = found.metadata.get("flag", flag(name))
    return declared.partition("/")[0]


def take(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """Move the fields of a dataclass out of a dictionary of options, and make an object of them."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values.pop(name) for name in names if name in values})


def given(options: object, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the options that were given, of these names; None: of all."""
    wanted = [one.name for one in fields(options)] if names is None else names  # type: ignore[arg-type]
    values = {name: getattr(options, name) for name in wanted}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value is not False and value != ()
    }


def refuse(options: object, names: Iterable[str] | None, reason: str) -> None:
    """Raise UsageError if one of these options was given; None: any."""
    for name in given(options, names):
        raise click.UsageError(f"{flag_of(type(options), name)} {reason}")
