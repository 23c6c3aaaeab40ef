"""Links to a public name also where a signature has the module that the name stands in."""

from __future__ import annotations

from inspect import ismodule
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import pybeam

# `pybeam.search.algorithms.Algorithm` -> `pybeam.Algorithm`
PUBLIC = {
    f"{value.__module__}.{value.__qualname__}": f"pybeam.{name}"
    for name in pybeam.__all__
    if not ismodule(value := getattr(pybeam, name))
}


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> Any:
    home, dot, member = node.get("reftarget", ""), "", ""
    if home not in PUBLIC:
        home, dot, member = home.rpartition(".")
    if node.get("refdomain") != "py" or home not in PUBLIC:
        return None
    target = f"{PUBLIC[home]}{dot}{member}"
    return env.domains["py"].resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], target, node, content
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
