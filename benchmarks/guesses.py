"""How many steps of a beam guesses could save, if all of them were right.

A guess is read in the call of the row that it follows, so that the next step needs no call of its own if all
its rows were guessed. A row of a beam is one of several continuations of a row before it, and a guess
behind each row is one of them. "guessed, m = 2" is the share of steps whose rows are all among the two best
continuations of a row that go on: no guesser that gives each row two guesses can save more. Guesses of one
step make a call read 1 + m times the rows. All numbers are exact.
"""

from __future__ import annotations

from collections import Counter

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.translation import MAX_LENGTH
from pybeam.inspect.tree import Fate, SearchTree

WIDTHS = (1, 2, 5, 10)
LINES = 40
GUESSES = (1, 2, 3)


def tasks(setup: Setup) -> list[Task]:
    return [
        Task("guesses", f"beam of {width}", lambda width=width: shares(setup, width))
        for width in WIDTHS
    ]


def shares(setup: Setup, width: int) -> dict:
    """The row of a width."""
    model = setup.networks.ours("example")
    sources = setup.corpus().spread(setup.lines or LINES).sources
    algorithm = pybeam.fixed_beam(width, max_length=MAX_LENGTH)
    needed: list[int] = []
    num_rows = 0
    for source in sources:
        for ranks in rows_by_step(pybeam.inspect.explain(model, source, algorithm, shown=0)):
            needed.append(max(ranks))
            num_rows += len(ranks)
    return {
        "lines": len(sources),
        "steps": len(needed),
        "exp/step": num_rows / len(needed),
        **{f"guessed, m = {m}": sum(n <= m for n in needed) / len(needed) for m in GUESSES},
    }


def rows_by_step(tree: SearchTree) -> list[list[int]]:
    """The place of each row of a step among the continuations of its parent that go on, from 1."""
    found = []
    for _, nodes in sorted(_kept(tree).items()):
        behind: Counter[int] = Counter()
        ranks = []
        for node in sorted(nodes, key=lambda i: (-tree.nodes[i].log_prob, tree.nodes[i].token)):
            behind[tree.nodes[node].parent] += 1
            ranks.append(behind[tree.nodes[node].parent])
        found.append(ranks)
    return found


def _kept(tree: SearchTree) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for i, node in enumerate(tree.nodes):
        for event in node.events:
            # behind the last step no row is read
            if event.fate == Fate.KEPT and event.step < len(tree.left):
                steps.setdefault(event.step, []).append(i)
    return steps
