"""The directive `published`: how transformers' classes fare, from the table that a test executes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# rows of the totals
OUTCOMES = {
    "native": "read by `load_model`",
    "wrapped": "searched by `wrap` alone",
    "refused": "refused",
    "not tried": "not tried",
}
TABLE = Path(__file__).parents[2] / "tests" / "models" / "huggingface" / "published_classes.json"


class Published(SphinxDirective):
    """```{published} tree```: the names of all classes with this outcome; "native": those of `load_model`.

    Outcomes that have reasons become a table. "totals" is how many classes have each outcome, then and now.
    """

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(TABLE))
        wanted = self.arguments[0]
        content = json.loads(TABLE.read_text("utf-8"))
        classes = content["classes"]
        if wanted == "totals":
            return self.parse_text_to_nodes(_totals(content["earlier"], classes))
        chosen = {
            name: own
            for name, own in classes.items()
            if own["how"] == wanted or (wanted == "native" and own.get("native"))
        }
        if not chosen:
            raise self.error(f"{TABLE.name} has no class with the outcome {wanted!r}")
        origin = f"{len(chosen)} of {len(classes)} classes, transformers {content['transformers']}."
        if not any("why" in own for own in chosen.values()):
            names = ", ".join(f"`{name}`" for name in chosen)
            return self.parse_text_to_nodes(f"{names}\n\n{origin}")
        lines = [f"| `{name}` | {_cell(own['why'])} |" for name, own in chosen.items()]
        text = "\n".join(["| class | reason |", "|---|---|", *lines, "", origin])
        return self.parse_text_to_nodes(text)


def _totals(earlier: dict[str, Any], classes: dict[str, Any]) -> str:
    kinds = ["native" if own.get("native") else own["how"] for own in classes.values()]
    kinds = ["wrapped" if kind in ("tree", "dense") else kind for kind in kinds]
    lines = [f"| | {earlier['date']} | now |", "|---|--:|--:|"]
    lines += [
        f"| {said} | {earlier[kind]} | {kinds.count(kind)} |" for kind, said in OUTCOMES.items()
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("published", Published)
    return {"parallel_read_safe": True}
