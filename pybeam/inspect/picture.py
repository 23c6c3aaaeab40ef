"""Draw the decoding graph as PNG or SVG, with matplotlib."""

from __future__ import annotations

from pathlib import Path

from pybeam.inspect.data import GraphData
from pybeam.inspect.shapes import arcs, columns, has_numbers, highest_arc, shown

BLUE, ORANGE, INK = "#2166ac", "#d6604d", "#333333"


def draw(graph: GraphData, path: Path) -> None:
    """Write the picture, in the format of the path's suffix."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a PNG or SVG needs matplotlib, which is not installed: pip install 'pybeam-search[graph]'"
        ) from error

    n, num_iterations = len(graph.tokens), graph.num_iterations
    cell = 0.44 if has_numbers(graph) else 0.23  # inches
    width = max(4.0, 0.9 + cell * (n + 1))
    heights = 0.5 + 0.28 * highest_arc(graph), 0.6 * cell * num_iterations + 0.2
    # equal graphs make equal files, and text stays text
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pybeam", "font.size": 8}):
        figure = Figure(figsize=(width, sum(heights) + 1.1), layout="constrained")
        FigureCanvasAgg(figure)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        _draw_graph(graph, top)
        _draw_matrix(graph, bottom)
        is_svg = path.suffix == ".svg"
        figure.savefig(path, dpi=160, metadata={"Date": None} if is_svg else None)


def _draw_graph(graph: GraphData, axes) -> None:
    xs, ys = (
        [float("nan") if value is None else value for value in values] for values in arcs(graph)
    )
    axes.plot(xs, ys, color=INK, linewidth=0.7, alpha=0.6)
    colours = [ORANGE if is_parallel else BLUE for is_parallel in graph.in_parallel]
    axes.scatter(columns(graph), [0] * (len(colours) + 1), s=16, color=[INK, *colours], zorder=3)
    axes.set_ylim(-0.15, highest_arc(graph) + 0.1)
    axes.axis("off")
    axes.set_title("depends on (orange: not on the token before)", loc="left", fontsize=8)


def _draw_matrix(graph: GraphData, axes) -> None:
    from matplotlib.patches import Rectangle

    n, num_iterations = len(graph.tokens), graph.num_iterations
    for k in range(num_iterations):
        for i in range(n):
            if not graph.is_correct[k][i]:
                continue
            is_new = graph.first[i] == k and graph.in_parallel[i]
            probability = graph.probabilities[k][i]
            square = Rectangle((i - 0.47, k - 0.47), 0.94, 0.94, linewidth=0)
            square.set(color=ORANGE if is_new else BLUE, alpha=0.15 + 0.75 * probability)
            axes.add_patch(square)
            if has_numbers(graph):
                text, ink = f"{probability:.2f}".lstrip("0"), "white" if probability > 0.6 else INK
                axes.text(i, k, text, ha="center", va="center", fontsize=6, color=ink)
    axes.set_xlim(-1.6, n - 0.4)
    axes.set_ylim(num_iterations - 0.4, -0.6)
    axes.set_xticks(
        columns(graph),
        ["source", *[shown(label) for label in graph.labels]],
        rotation=60,
        ha="right",
        rotation_mode="anchor",
    )
    step = 1 if num_iterations <= 12 else 5
    ticks = range(step - 1, num_iterations, step)
    axes.set_yticks(ticks, [str(k + 1) for k in ticks])
    axes.set_ylabel("iteration")
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
