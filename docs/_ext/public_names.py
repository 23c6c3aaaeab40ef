"""Links to public names: from code in a text, and from signatures, which have a name's own module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import ismodule
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

import pybeam

# `pybeam.search.algorithms.Algorithm` -> `pybeam.Algorithm`
PUBLIC = {
    f"{value.__module__}.{value.__qualname__}": f"pybeam.{name}"
    for name in pybeam.__all__
    if not ismodule(value := getattr(pybeam, name))
}

# without `pybeam.` before it, `generate` is the method of transformers, and a module's name is any word
SHORT = [name for name in pybeam.__all__ if f"pybeam.{name}" in PUBLIC.values()]
SHORT.remove("generate")
SHORT += [rf"{name}\.\w+" for name in pybeam.__all__ if ismodule(getattr(pybeam, name))]
# `pybeam.drafts.pad()` and `fixed_beam(5)`, but not `examples.demo`
IN_TEXT = re.compile(r"(pybeam\.[\w.]+|(?:" + "|".join(SHORT) + r")(\.\w+)?)(\(.*\))?")
# what is a link already, and headings, which are links in the list of contents
NO_LINKS = (nodes.reference, nodes.title, pending_xref)


def _in_text(code: str) -> str | None:
    """The full name that a piece of code is, or calls."""
    found = IN_TEXT.fullmatch(code)
    if found is None:
        return None
    return found[1] if found[1].startswith("pybeam.") else f"pybeam.{found[1]}"


def _above(node: nodes.Node) -> Iterator[nodes.Node]:
    """The nodes that a node is in: the text of a link to a page has one more around it."""
    while node.parent is not None:
        yield (node := node.parent)


class LinkCode(SphinxTransform):
    """Make a link of code that is a public name; one that is documented nowhere stays as it is."""

    default_priority = 400  # before references are looked up

    def apply(self, **_: Any) -> None:
        for code in list(self.document.findall(nodes.literal)):
            name = _in_text(code.astext())
            if name is None or any(isinstance(one, NO_LINKS) for one in _above(code)):
                continue
            where = dict(refdomain="py", reftype="obj", reftarget=name, refwarn=False)
            link = pending_xref("", refdoc=self.env.docname, refexplicit=True, **where)
            code.replace_self(link)
            link += code


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> Any:
    asked = node.get("reftarget", "")
    target = _in_text(asked)
    for home in (asked, asked.rpartition(".")[0]):
        if home in PUBLIC:
            target = PUBLIC[home] + asked.removeprefix(home)
    if node.get("refdomain") != "py" or target in (None, asked):
        return None
    return env.domains["py"].resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], target, node, content
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LinkCode)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
