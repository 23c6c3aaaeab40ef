"""Rows of a beam are counted by their places among the continuations of their parents."""

import pytest

pytest.importorskip("tabulate")

from benchmarks.guesses import rows_by_step
from pybeam.inspect.tree import Event, Fate, Node, SearchTree


def test_a_row_has_its_place_among_those_of_its_parent_that_go_on():
    def node(parent: int, log_prob: float, step: int, fate: Fate = Fate.KEPT) -> Node:
        return Node(parent, 7, log_prob, 0.0, (Event(step, fate, ""),))

    nodes = [
        node(-1, -0.5, 1),
        node(-1, -0.1, 1),
        node(-1, -0.2, 1, Fate.WIDTH),
        # one behind each, beside one that ends
        node(0, -0.9, 2),
        node(1, -0.3, 2),
        node(1, -0.1, 2, Fate.FINISHED),
        # both behind the same
        node(3, -0.3, 3),
        node(3, -0.2, 3),
        # behind the last step
        node(6, -0.2, 4),
    ]
    tree = SearchTree(nodes, {}, (), [0] * 4, [], [], "", 0, "")
    assert rows_by_step(tree) == [[1, 2], [1, 1], [1, 2]]
