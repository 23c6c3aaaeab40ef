"""Help pages whose options are grouped under headings."""

from __future__ import annotations

import re

import click

# options whose names differ from those of the library's arguments
RENAMED = {
    "path": "--model",
    "n": "--batch-size",
    "tokens": "--batch-tokens",
    "sequences": "--suppress",
}


class SectionOption(click.Option):
    """An option that knows the heading it belongs to."""

    def __init__(self, *declarations, section: str = "Other options", **settings) -> None:
        super().__init__(*declarations, **settings)
        self.section = section


class SectionCommand(click.Command):
    """A command that lists its options by heading, in the order of their declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                section = getattr(parameter, "section", "Other options")
                sections.setdefault(section, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def option(section: str):
    """A decorator factory like `click.option` for one section."""

    def declare(*declarations, **settings):
        return click.option(*declarations, cls=SectionOption, section=section, **settings)

    return declare


def model_option(declare):
    """`--model DIR` for commands that take one model, declared by `click.option` or one of `option`."""
    return declare(
        "--model",
        "model_dir",
        required=True,
        metavar="DIR",
        type=click.Path(),
        help="Folder with config.json, model.safetensors and the tokenizer's files.",
    )


def flag(name: str) -> str:
    """The option for an argument of the library."""
    return RENAMED.get(name, "--" + name.replace("_", "-"))


def with_flags(message: object) -> str:
    """A message of the library with the names of options in place of its arguments'."""
    parameters = click.get_current_context().command.params
    flags = {one.name: one.opts[0] for one in parameters if isinstance(one, click.Option)} | RENAMED

    def replace(match: re.Match) -> str:
        return flags.get(match.group(1), match.group(0))

    text = re.sub(r"`(\w+)`", replace, str(message))
    return text.replace("must be None", "must be left out").replace("use None", "leave it out")
