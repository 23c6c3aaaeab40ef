"""What both drawings share: where arcs run, and how large a cell is."""

from __future__ import annotations

from pybeam.graph.data import SOURCE, GraphData

ARC_POINTS = 17
MOST_TEXT_CELLS = 26  # columns up to which a cell has room for its number


def arcs(graph: GraphData) -> tuple[list[float | None], list[float | None]]:
    """x and y of all edges, a gap (None) behind each; the source stands at x = -1."""
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
    """Longer arcs are higher, but not in proportion, so that long outputs stay flat."""
    return (j - i) ** 0.5 / 2


def highest_arc(graph: GraphData) -> float:
    """Of all edges."""
    return max(arc_height(i, j) for i, j in graph.edges)


def has_numbers(graph: GraphData) -> bool:
    """Whether cells are large enough for their numbers."""
    return len(graph.tokens) <= MOST_TEXT_CELLS


def shown(label: str, most: int = 12) -> str:
    """A label that is not too long for an axis."""
    return label if len(label) <= most else label[: most - 1] + "…"


def columns(graph: GraphData) -> list[int]:
    """x of the source and of all tokens."""
    return [SOURCE, *range(len(graph.tokens))]
