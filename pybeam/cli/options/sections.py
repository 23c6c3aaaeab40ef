"""Commands whose help page lists options under headings; a section of options may belong to several."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import click

from pybeam.cli.options.peers import near

# a command with more options than these has a short help page, too
FULL_PAGE = 12
# of a short help page
MOST_EXAMPLES = 4


class Option(click.Option):
    """An option; `is_common`: most users look for it, so `-h` lists it."""

    def __init__(self, *args: Any, is_common: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.is_common = is_common or self.required


class Section(NamedTuple):
    """Options under one heading of a help page."""

    title: str
    options: Sequence[Option]


class SectionCommand(click.Command):
    """A command whose options are those of its sections, listed by heading.

    `--help` lists all of them. `-h` lists the common ones, if there are many, with the first sentence of
    each, but those whose names are `rare` for this command.
    """

    def __init__(
        self,
        name: str | None,
        *,
        sections: Iterable[Section],
        rare: Collection[str] = (),
        params: Iterable[click.Parameter] | None = None,
        **settings: Any,
    ) -> None:
        self.sections, self.rare = list(sections), rare
        self.options = [option for section in self.sections for option in section.options]
        names = ["--help"] if self.has_short_page else ["-h", "--help"]
        settings.setdefault("context_settings", {}).setdefault("help_option_names", names)
        super().__init__(name, params=[*(params or ()), *self.options], **settings)

    @property
    def has_short_page(self) -> bool:
        """Whether `-h` lists the common options alone."""
        return len(self.options) > FULL_PAGE

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *([SHORT_HELP] if self.has_short_page else [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            ours = near(error.option_name, self)
            if not ours:
                raise
            said = f"{error.message} Did you mean {' or '.join(ours)}?"
            raise click.NoSuchOption(error.option_name, said, ctx=ctx) from None

    def short_help_page(self, ctx: click.Context) -> str:
        """Return the page with the common options alone."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        about, *paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        examples = [_first(one) for one in paragraphs if one.startswith("\b\nExamples:")]
        common = [one for one in self.options if one.is_common and one.name not in self.rare]
        records = [option.get_help_record(ctx) for option in common]
        for text in (about, *examples):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)
        with formatter.section("Common options"):
            formatter.write_dl([_shortened(record) for record in records if record is not None])
        formatter.write_paragraph()
        formatter.write(f"{ctx.command_path} --help explains all {len(self.options)} options.\n")
        return formatter.getvalue().rstrip("\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {option.name for section in self.sections for option in section.options}
        others = [parameter for parameter in self.get_params(ctx) if parameter.name not in own]
        for title, options in [*self.sections, ("Other options", others)]:
            records = [option.get_help_record(ctx) for option in options]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])


def _show_short_page(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        assert isinstance(ctx.command, SectionCommand)
        click.echo(ctx.command.short_help_page(ctx))
        ctx.exit()


SHORT_HELP = click.Option(
    ["-h"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_short_page,
    help="Show the common options and exit.",
)


def _first(examples: str) -> str:
    """Return the heading and the first examples. A line that ends in a backslash goes on in the next."""
    heading, *lines = re.split(r"(?<!\\)\n(?!Examples:)", examples)
    return "\n".join([heading, *lines[:MOST_EXAMPLES]])


def _shortened(record: tuple[str, str]) -> tuple[str, str]:
    """Return a line of a help page with the first sentence of its text, and the default.

    Values that are listed, and ranges, are left to the whole page.
    """
    name, meaning = record
    text, mark, notes = meaning.partition("  [")
    default, *_ = re.sub(r"^default: \((.+)\)", r"default: \1", notes.removesuffix("]")).split("; ")
    if not default.startswith(("default", "required")):
        mark = default = ""
    flag, _, values = name.partition(" [")
    shown = f"{flag} {flag.rpartition('--')[2].upper()}" if values else name
    shown = shown.replace(" INTEGER RANGE", " N")
    return shown, re.split(r"[.;] ", text)[0].removesuffix(".") + mark + default + (
        "]" if mark else ""
    )
