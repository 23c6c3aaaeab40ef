"""The directives `command` and `shared-options`: help pages, with options under the headings that they have.

Sections that `NUM_SHARING` commands have alike stand on the page with the directive `shared-options` alone.
"""

from __future__ import annotations

import inspect
from collections import Counter
from functools import cache

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pybeam.cli import pybeam
from pybeam.cli.options.sections import SectionCommand

NUM_SHARING = 3
SHARED_PAGE = "options.md"
AS_WRITTEN = "\b"  # click: what follows in the paragraph keeps its lines


class Options(SphinxDirective):
    """```{shared-options}```"""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for title, records in shared_sections():
            found += [nodes.rubric(title, title), self._definitions(list(records))]
        return _plain(found)

    def _definitions(self, records: list[tuple[str, str]]) -> nodes.definition_list:
        items = nodes.definition_list()
        for name, meaning in records:
            term = nodes.term("", "", nodes.literal(name, name))
            body = nodes.definition("", *self.parse_text_to_nodes(meaning))
            items += nodes.definition_list_item("", term, body)
        return items


class Command(Options):
    """```{command} translate```"""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        command = pybeam.commands[self.arguments[0]]
        context = click.Context(command, info_name=f"pybeam {command.name}")
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        found: list[nodes.Node] = [nodes.literal_block(usage, usage, language="text")]
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            if paragraph.startswith(AS_WRITTEN):
                # inside, it keeps blank lines
                text = inspect.cleandoc(paragraph.removeprefix(AS_WRITTEN).replace(AS_WRITTEN, ""))
                found.append(nodes.literal_block(text, text, language="text"))
            else:
                found += self.parse_text_to_nodes(" ".join(paragraph.split()))
        shared, elsewhere = shared_sections(), []
        for title, records in sections_of(command, context):
            if (title, records) in shared:
                elsewhere.append(title)
            elif records:
                found += [nodes.rubric(title, title), self._definitions(list(records))]
        if elsewhere:
            found.append(nodes.rubric("", "Options of a search"))
            listed = "; ".join(title.partition(",")[0].partition(";")[0] for title in elsewhere)
            found += self.parse_text_to_nodes(f"[Options of a search]({SHARED_PAGE}): {listed}.")
        return _plain(found)


def _plain(found: list[nodes.Node]) -> list[nodes.Node]:
    for node in found:
        for text in node.findall(nodes.TextElement):
            text["support_smartquotes"] = False  # they make one dash of the two of an option
    return found


Records = tuple[tuple[str, str], ...]


def sections_of(command: click.Command, context: click.Context) -> list[tuple[str, Records]]:
    """The headings of a help page and what stands under each."""
    sections = command.sections if isinstance(command, SectionCommand) else []
    titled = [(title, list(options)) for title, options in sections]
    own = {option.name for _, options in titled for option in options}
    others = [one for one in command.get_params(context) if one.name not in own]
    titled.append(("Other options" if titled else "Options", others))
    return [
        (title, tuple(record for one in options if (record := one.get_help_record(context))))
        for title, options in titled
    ]


@cache
def shared_sections() -> list[tuple[str, Records]]:
    """The sections that several commands have alike, in the order of the first one."""
    found: Counter[tuple[str, Records]] = Counter()
    for command in pybeam.commands.values():
        if isinstance(command, SectionCommand):
            context = click.Context(command)
            found.update(one for one in sections_of(command, context) if one[0] != "Other options")
    return [section for section, num in found.items() if num >= NUM_SHARING]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command", Command)
    app.add_directive("shared-options", Options)
    return {"parallel_read_safe": True}
