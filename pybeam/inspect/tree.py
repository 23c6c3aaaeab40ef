"""`SearchTree`: what a search has looked at, as a page that goes through it step by step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pybeam.text.counts import counted
from pybeam.text.json_numbers import without_infinity

# the parent of what follows the prefix
ROOT = -1
FORMATS = (".html", ".json", ".txt")
# pixels, of a frame in a notebook
FRAME_HEIGHT = 640
TEMPLATE = Path(__file__).with_name("search_tree.html")


class Fate(StrEnum):
    """The end of a candidate in a step, or the place that it keeps."""

    GIVEN = "given"  #: it is the next token of the prefix
    KEPT = "kept"  #: it stays in the beam, and goes on
    HELD = "held"  #: it has ended, and keeps its place in the beam
    FINISHED = "finished"  #: it has ended, and is an output
    BANNED = "banned"  #: it would end too early
    MAX_CANDIDATES = (
        "max candidates"  #: its parent has better continuations, as many as it may have
    )
    WIDTH = "width"  #: as many others as the beam has places are better
    LATE_END = "late end"  #: it ends, but is not among the best of a beam's width
    THRESHOLD = "threshold"  #: its score is too far behind the best
    LOCAL_THRESHOLD = "local threshold"  #: its last token is too far behind the best


class Event(NamedTuple):
    """Something that happened to a node in a step.

    Attributes:
        step: from 1.
        fate: what became of it.
        reason: the numbers by which a rule dropped it; "" if none did.
    """

    step: int
    fate: Fate
    reason: str


class Node(NamedTuple):
    """A token behind others.

    Attributes:
        parent: the node before it, by place in `SearchTree.nodes`; -1: it is the first token.
        token: its id.
        log_prob: of the token, behind those before it.
        score: the sum of log-probabilities so far.
        events: what happened to it, in order. A node that is held has several.
    """

    parent: int
    token: int
    log_prob: float
    score: float
    events: tuple[Event, ...]


@dataclass(frozen=True, repr=False)
class SearchTree:
    """A search, step by step. In a notebook it shows itself.

    Attributes:
        nodes: all candidates that are shown; a node stands behind its parent.
        labels: the text of each token.
        prefix: tokens that were given.
        left: for each step, how many candidates are not shown.
        beam: the nodes that are in the beam when the search ends.
        outputs: the node that each hypothesis ends in, best first, and its `final_score`.
        stop_reason, expansions: as in `pybeam.Result`.
        algorithm: the search.
    """

    nodes: list[Node]
    labels: dict[int, str]
    prefix: tuple[int, ...]
    left: list[int]
    beam: list[int]
    outputs: list[tuple[int, float]]
    stop_reason: str
    expansions: int
    algorithm: str

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return len(self.left)

    def path(self, node: int) -> list[int]:
        """Return the nodes from the first token to a node.

        Args:
            node: by place in `nodes`.
        """
        found = []
        while node != ROOT:
            found.append(node)
            node = self.nodes[node].parent
        return found[::-1]

    def text(self, node: int) -> str:
        """Return the labels of a node and of all before it.

        Args:
            node: by place in `nodes`.
        """
        return " ".join(self.labels[self.nodes[one].token] for one in self.path(node))

    def fates(self) -> Counter[Fate]:
        """Count the candidates that are shown by what became of them in the end."""
        return Counter(node.events[-1].fate for node in self.nodes)

    def _steps(self) -> Iterator[list[tuple[int, Event]]]:
        """The nodes and events of each step, best score first."""
        steps: list[list[tuple[int, Event]]] = [[] for _ in self.left]
        for place, node in enumerate(self.nodes):
            for event in node.events:
                steps[event.step - 1].append((place, event))
        for step in steps:
            yield sorted(step, key=lambda one: -self.nodes[one[0]].score)

    def __repr__(self) -> str:
        dropped = ", ".join(f"{name} {num}" for name, num in self.fates().most_common())
        return (
            f"SearchTree({counted(self.num_steps, 'step')}, {counted(self.expansions, 'expansion')}, "
            f"stopped by {self.stop_reason!r}; {dropped})"
        )

    def __str__(self) -> str:
        """The steps as lines: the score, what became of it and why, the tokens."""
        lines = [repr(self)]
        for number, step in enumerate(self._steps(), 1):
            lines += ["", f"step {number}"]
            for place, event in step:
                why = f"  ({event.reason})" if event.reason else ""
                score = self.nodes[place].score
                lines.append(f"{score:8.2f}  {event.fate:<15}  {self.text(place)}{why}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """All as one JSON object with the attributes' names. A score that is infinite is null."""
        whole: dict[str, Any] = {
            **vars(self),
            "nodes": [
                {**node._asdict(), "events": [event._asdict() for event in node.events]}
                for node in self.nodes
            ],
        }
        return json.dumps(without_infinity(whole), ensure_ascii=False, allow_nan=False)

    def to_html(self) -> str:
        """A page without outside files, with a slider, buttons and arrow keys that go through the steps."""
        # neither a label nor anything else ends the script
        data = self.to_json().replace("<", "\\u003c")
        return TEMPLATE.read_text("utf-8").replace("/*DATA*/null", data)

    def _repr_html_(self) -> str:
        page = escape(self.to_html(), quote=True)
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 1px solid #8884"
        return f'<iframe title="The tree of a search" style="{style}" srcdoc="{page}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write a file in the format of its suffix: .html, .json or .txt; returns its path.

        Args:
            path: where to write.

        Raises:
            ValueError: the suffix is another one.
        """
        path = Path(path)
        if path.suffix not in FORMATS:
            raise ValueError(
                f"a tree is saved as one of {', '.join(FORMATS)}, but not as {path.name!r}"
            )
        texts = {".html": self.to_html, ".json": self.to_json, ".txt": self.__str__}
        path.write_text(texts[path.suffix]() + "\n", encoding="utf-8")
        return path
