"""Positions and sizes that both drawings share."""

from __future__ import annotations

from pybeam.inspect.data import SOURCE, GraphData

ARC_POINTS = 17
# with more columns a cell is too small for its number
MAX_TEXT_CELLS = 26


def arcs(graph: GraphData) -> tuple[list[float | None], list[float | None]]:
    """The points of all edges, x and y. None separates edges. The source is at x = -1."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for i, j in graph.edges:
        for t in (k / (ARC_POINTS - 1) for k in range(ARC_POINTS)):
            xs.append(i + (j - i) * t)
            ys.append(4 * t * (1 - t) * arc_height(i, j))
        xs.append(None)
        ys.append(None)
    return xs, ys


def arc_height(i: int, j: int) -> float:
    """The height of the arc from i to j. It grows slower than its length, so that long outputs stay flat."""
    return (j - i) ** 0.5 / 2


def highest_arc(graph: GraphData) -> float:
    """The height of the highest arc."""
    return max(arc_height(i, j) for i, j in graph.edges)


def has_numbers(graph: GraphData) -> bool:
    """Whether cells are large enough to show their numbers."""
    return len(graph.tokens) <= MAX_TEXT_CELLS


def shown(label: str, max_letters: int = 12) -> str:
    """The label, shortened to fit on an axis."""
    return label if len(label) <= max_letters else label[: max_letters - 1] + "…"


def columns(graph: GraphData) -> list[int]:
    """The x positions of the source and of all tokens."""
    return [SOURCE, *range(len(graph.tokens))]
