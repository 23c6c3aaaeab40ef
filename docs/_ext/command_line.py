"""The directive `command`: a command's help page, with its options under the headings that the page has."""

from __future__ import annotations

import inspect

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pybeam.cli import pybeam
from pybeam.cli.options.sections import SectionCommand

AS_WRITTEN = "\b"  # click: what follows in the paragraph keeps its lines


class Command(SphinxDirective):
    """```{command} translate```"""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        command = pybeam.commands[self.arguments[0]]
        context = click.Context(command, info_name=f"pybeam {command.name}")
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        found: list[nodes.Node] = [nodes.literal_block(usage, usage, language="text")]
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            kept, mark, text = paragraph.rpartition(AS_WRITTEN)
            assert not kept.strip(), f"{AS_WRITTEN!r} must begin a paragraph: {paragraph!r}"
            if mark:
                text = inspect.cleandoc(text)
                found.append(nodes.literal_block(text, text, language="text"))
            else:
                found += self.parse_text_to_nodes(" ".join(text.split()))
        for title, parameters in sections_of(command, context):
            records = [parameter.get_help_record(context) for parameter in parameters]
            shown = [record for record in records if record is not None]
            if shown:
                found += [nodes.rubric(title, title), self._definitions(shown)]
        for node in found:
            for text in node.findall(nodes.TextElement):
                text["support_smartquotes"] = False  # they make one dash of the two of an option
        return found

    def _definitions(self, records: list[tuple[str, str]]) -> nodes.definition_list:
        items = nodes.definition_list()
        for name, meaning in records:
            term = nodes.term("", "", nodes.literal(name, name))
            body = nodes.definition("", *self.parse_text_to_nodes(meaning))
            items += nodes.definition_list_item("", term, body)
        return items


def sections_of(
    command: click.Command, context: click.Context
) -> list[tuple[str, list[click.Parameter]]]:
    """The headings of a help page and what stands under each."""
    sections = command.sections if isinstance(command, SectionCommand) else []
    titled = [(title, list(options)) for title, options in sections]
    own = {option.name for _, options in titled for option in options}
    others = [one for one in command.get_params(context) if one.name not in own]
    return [*titled, ("Other options" if titled else "Options", others)]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}
