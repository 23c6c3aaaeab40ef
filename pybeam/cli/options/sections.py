"""Commands whose help page lists options under headings; a section of options may belong to several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click

from pybeam.cli.options.peers import near


class Section(NamedTuple):
    """Options under one heading of a help page."""

    title: str
    options: Sequence[click.Option]


class SectionCommand(click.Command):
    """A command whose options are those of its sections, listed by heading."""

    def __init__(
        self,
        name: str | None,
        *,
        sections: Iterable[Section],
        params: Iterable[click.Parameter] | None = None,
        **settings: Any,
    ) -> None:
        self.sections = list(sections)
        options = [option for section in self.sections for option in section.options]
        settings.setdefault("context_settings", {}).setdefault(
            "help_option_names", ["-h", "--help"]
        )
        super().__init__(name, params=[*(params or ()), *options], **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            ours = near(error.option_name, self)
            if not ours:
                raise
            said = f"{error.message} Did you mean {' or '.join(ours)}?"
            raise click.NoSuchOption(error.option_name, said, ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {option.name for section in self.sections for option in section.options}
        others = [parameter for parameter in self.get_params(ctx) if parameter.name not in own]
        for title, options in [*self.sections, ("Other options", others)]:
            records = [option.get_help_record(ctx) for option in options]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])
