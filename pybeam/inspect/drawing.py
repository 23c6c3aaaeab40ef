"""`DecodingGraph`: what was decoded in parallel, drawn as a page (plotly) or as a picture (matplotlib).

Both show the same: above, an arc for each token that another one waited for; below, a row per iteration, in
which a cell is coloured where the token was already the output's, the stronger the more probable. The page
also has a slider over the iterations, and details under the pointer.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pybeam.text.counts import counted

FORMATS = (".html", ".png", ".svg", ".json")
BLUE, ORANGE, GREY, INK = "#4393c3", "#e08214", "#8a8a8a", "#333333"
# how strong the colour of a cell is, at a probability of 0 and of 1
PALE, STRONG = 0.2, 0.95
ARC_POINTS = 17
# with more columns a cell is too small for its number
MAX_TEXT_CELLS = 26
# with more rows only every fifth has a number beside it
MAX_NUMBERED_ROWS = 15
# of a token's text on an axis
MAX_LETTERS = 12
# pixels: the widest and the narrowest column, and all columns together
LARGEST, SMALLEST, PAGE = 64, 17, 1080
INSTALL = "which is not installed: pip install 'pybeam-search[graph]'"

# Plotly has its own colours, so this script repaints when the browser changes between light and dark.
PAINT = """
const scheme = window.matchMedia('(prefers-color-scheme: dark)');
const graph = document.getElementById('{plot_id}');
function paint() {
  const ink = scheme.matches ? '#e6e6e6' : '#222222';
  const line = scheme.matches ? '#9a9a9a' : '#666666';
  Plotly.update(graph, {'line.color': line}, {'font.color': ink,
    'sliders[0].bgcolor': line, 'sliders[0].activebgcolor': ink, 'sliders[0].font.color': ink}, [0]);
  Plotly.restyle(graph, {'textfont.color': ink}, [3, 4]);
}
scheme.addEventListener('change', paint);
paint();
"""
PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 1.5rem; font-family: sans-serif; background: #ffffff; color: #222222; }
@media (prefers-color-scheme: dark) { body { background: #17191c; color: #e6e6e6; } }
h1 { font-size: 1.2rem; } p { max-width: 46rem; line-height: 1.45; }
.blue { color: #4393c3; } .orange { color: #e08214; }
"""


class Cell(NamedTuple):
    """A token that was right after an iteration."""

    iteration: int
    place: int
    probability: float
    # it has just become so, without waiting for the token before it
    is_parallel: bool

    @property
    def number(self) -> str:
        return f"{self.probability:.2f}".lstrip("0")


@dataclass(frozen=True)
class DecodingGraph:
    """The tokens that Jacobi decoding found after each iteration, with ways to draw them.

    n is the number of generated tokens, EOS included; K the number of iterations.

    Attributes:
        tokens: [n] ids of the greedy output.
        labels: [n] the text shown for each token.
        guesses, guess_labels: [K, n] the tokens after each iteration, as ids and as text.
        probabilities: [K, n] the model's probability of each guess, given the tokens before it.
        is_correct: [K, n] whether the guess is the token of the output.
        first: [n] the iteration, counted from 0, from which on the token is correct.
        in_parallel: [n] whether the token became correct no later than the token before it. It then
            did not need that token.
        edges: pairs (i, j), i before j: token j became correct in an iteration that began with token i
            correct. Edges that follow from others are left out. i = -1 is the source.
    """

    tokens: list[int]
    labels: list[str]
    guesses: list[list[int]]
    guess_labels: list[list[str]]
    probabilities: list[list[float]]
    is_correct: list[list[bool]]
    first: list[int]
    in_parallel: list[bool]
    edges: list[tuple[int, int]]

    @property
    def num_iterations(self) -> int:
        return len(self.guesses)

    def to_json(self) -> str:
        """All numbers as one JSON object with the attributes' names."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    def to_html(self) -> str:
        """An HTML page without outside files: hover for details, move the slider through the iterations."""
        shown = escape(" ".join(self.labels))
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Decoding graph</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{PAGE_STYLE}</style></head><body>
<h1>What was decoded in parallel</h1>
<p>{counted(len(self.tokens), "token")} in {counted(self.num_iterations, "iteration")}: {shown}</p>
<p>Below, a row per iteration: a cell is coloured where the token was already the output's, the stronger
the more probable; <b class="orange">orange</b> where it became so without waiting for the token before
it, <b class="blue">blue</b> elsewhere. Above, what each token waited for. Between them, the tokens
after the iteration that the slider shows.</p>
{self._repr_html_()}
</body></html>
"""

    def _repr_html_(self) -> str:
        figure = _page(self)
        config = dict(displayModeBar=False)
        html: str = figure.to_html(
            full_html=False, include_plotlyjs=True, post_script=PAINT, config=config
        )
        return html

    def save(self, path: str | Path) -> Path:
        """Write a file in the format of its suffix: .html, .png, .svg or .json; returns its path.

        Args:
            path: where to write.

        Raises:
            ValueError: the suffix is another one.
            ImportError: the library that draws it is not installed; the message says how to install it.
        """
        path = Path(path)
        if path.suffix not in FORMATS:
            raise ValueError(
                f"a graph is saved as one of {', '.join(FORMATS)}, but not as {path.name!r}"
            )
        if path.suffix == ".json":
            path.write_text(self.to_json() + "\n", encoding="utf-8")
        elif path.suffix == ".html":
            path.write_text(self.to_html(), encoding="utf-8")
        else:
            _write_picture(self, path)
        return path


def _cells(graph: DecodingGraph) -> Iterator[Cell]:
    """The cells that are coloured."""
    for k, line in enumerate(graph.is_correct):
        for i, is_correct in enumerate(line):
            if is_correct:
                is_parallel = graph.in_parallel[i] and graph.first[i] == k
                yield Cell(k, i, graph.probabilities[k][i], is_parallel)


def _has_numbers(graph: DecodingGraph) -> bool:
    return len(graph.tokens) <= MAX_TEXT_CELLS


def _numbered_rows(graph: DecodingGraph) -> range:
    """The rows that have a number beside them, from 0."""
    step = 1 if graph.num_iterations <= MAX_NUMBERED_ROWS else 5
    return range(step - 1, graph.num_iterations, step)


def _columns(graph: DecodingGraph) -> list[int]:
    """The x positions of the source and of all tokens."""
    return list(range(-1, len(graph.tokens)))


def _node_colours(graph: DecodingGraph, of_source: str) -> list[str]:
    return [of_source, *(ORANGE if is_parallel else BLUE for is_parallel in graph.in_parallel)]


def _height(i: int, j: int) -> float:
    """The height of the arc from i to j. It grows slower than its length, so that long outputs stay flat."""
    return (j - i) ** 0.5 / 2


def _highest(graph: DecodingGraph) -> float:
    return max(_height(i, j) for i, j in graph.edges)


def _arcs(graph: DecodingGraph) -> tuple[list[float], list[float]]:
    """The points of all edges, x and y, with NaN behind each edge."""
    xs: list[float] = []
    ys: list[float] = []
    for i, j in graph.edges:
        shares = [k / (ARC_POINTS - 1) for k in range(ARC_POINTS)]
        xs += [*(i + (j - i) * t for t in shares), float("nan")]
        ys += [*(4 * t * (1 - t) * _height(i, j) for t in shares), float("nan")]
    return xs, ys


def _shown(label: str) -> str:
    return label if len(label) <= MAX_LETTERS else label[: MAX_LETTERS - 1] + "…"


def _page(graph: DecodingGraph):
    """The figure of the page: arcs and nodes, the tokens after an iteration, the cells."""
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ImportError(f"an HTML page needs plotly, {INSTALL}") from error

    n, num_iterations = len(graph.tokens), graph.num_iterations
    column = min(LARGEST, max(SMALLEST, PAGE // (n + 1)))
    line = 26 if _has_numbers(graph) else SMALLEST
    heights = [40 + 26 * _highest(graph), 84, line * num_iterations]
    figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, row_heights=heights, vertical_spacing=8 / sum(heights)
    )
    xs, ys = _arcs(graph)
    style = dict(mode="lines", hoverinfo="skip", showlegend=False)
    figure.add_trace(go.Scatter(x=xs, y=ys, line=dict(width=1), **style), row=1, col=1)
    figure.add_trace(_nodes(go, graph), row=1, col=1)
    figure.add_trace(_strip(go, graph), row=2, col=1)
    for is_parallel in (False, True):
        figure.add_trace(_heatmap(go, graph, is_parallel), row=3, col=1)
    last = num_iterations - 1
    figure.update_layout(
        width=max(480, 90 + column * (n + 1)),
        height=int(sum(heights)) + 104,
        margin=dict(l=64, r=16, t=88, b=16),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        sliders=[_slider(graph)],
        **_shown_iteration(graph, last),
    )
    figure.update_xaxes(visible=False, range=[-1.6, n - 0.4], fixedrange=True)
    figure.update_yaxes(visible=False, fixedrange=True)
    figure.update_yaxes(range=[-0.2, _highest(graph) + 0.1], row=1)
    figure.update_yaxes(range=[0, 1], row=2)
    rows = _numbered_rows(graph)
    axis = dict(visible=True, title="iteration", showgrid=False, zeroline=False, tickvals=[*rows])
    figure.update_yaxes(
        range=[last + 0.6, -0.6], ticktext=[str(k + 1) for k in rows], row=3, **axis
    )
    return figure


def _nodes(go, graph: DecodingGraph):
    """The points of the source and the tokens; hovering shows what each waited for."""
    texts = ["the source"]
    for j, label in enumerate(graph.labels):
        waited = [graph.labels[i] if i >= 0 else "the source" for i, k in graph.edges if k == j]
        texts.append(
            f"<b>{escape(label)}</b>, token {j + 1}<br>right from iteration {graph.first[j] + 1} on"
            f"<br>waited for {escape(', '.join(waited))}"
        )
    marker = dict(size=9, color=_node_colours(graph, GREY))
    return _points(go, _columns(graph), 0, marker, texts)


def _strip(go, graph: DecodingGraph):
    """Invisible points on the tokens of the last iteration, for hovering."""
    places, texts = list(range(len(graph.tokens))), _escaped(graph, -1)
    return _points(go, places, 0.02, dict(size=1, color=GREY), texts)


def _points(go, x: list[int], y: float, marker: dict, texts: list[str]):
    style = dict(mode="markers", hoverinfo="text", showlegend=False)
    return go.Scatter(x=x, y=[y] * len(x), marker=marker, hovertext=texts, **style)


def _escaped(graph: DecodingGraph, iteration: int) -> list[str]:
    return [escape(label) for label in graph.guess_labels[iteration]]


def _heatmap(go, graph: DecodingGraph, is_parallel: bool):
    """The cells in one of the two colours."""
    places, iterations = range(len(graph.tokens)), range(graph.num_iterations)
    values: list[list[float | None]] = [[None for _ in places] for _ in iterations]
    texts = [["" for _ in places] for _ in iterations]
    for cell in _cells(graph):
        if cell.is_parallel == is_parallel:
            values[cell.iteration][cell.place] = cell.probability
            texts[cell.iteration][cell.place] = cell.number if _has_numbers(graph) else ""
    hovers = [
        [
            f"<b>{label}</b>, token {i + 1}, iteration {k + 1}<br>p = {graph.probabilities[k][i]:.3f}"
            for i, label in enumerate(_escaped(graph, k))
        ]
        for k in iterations
    ]
    colour = "224,130,20" if is_parallel else "67,147,195"
    scale = [[0, f"rgba({colour},{PALE})"], [1, f"rgba({colour},{STRONG})"]]
    style = dict(zmin=0, zmax=1, showscale=False, xgap=2, ygap=2, texttemplate="%{text}")
    hovering = dict(hovertext=hovers, hoverinfo="text", hoverongaps=False)
    return go.Heatmap(z=values, text=texts, colorscale=scale, **style, **hovering)


def _shown_iteration(graph: DecodingGraph, iteration: int) -> dict[str, list[dict]]:
    """A frame around the row of an iteration, and its tokens, written upwards as annotations alone can be."""
    frame: dict[str, Any] = dict(
        type="rect", xref="x3", yref="y3", line=dict(color=GREY, width=1.5)
    )
    frame |= dict(x0=-0.5, x1=len(graph.tokens) - 0.5, y0=iteration - 0.5, y1=iteration + 0.5)
    style = dict(xref="x2", yref="y2", xanchor="center", yanchor="bottom")
    notes = []
    for i, label in enumerate(graph.guess_labels[iteration]):
        is_right = graph.is_correct[iteration][i]
        is_new = is_right and graph.first[i] == iteration
        text = escape(_shown(label))
        colour = ORANGE if is_new and graph.in_parallel[i] else None
        note = dict(x=i, y=0, text=f"<b>{text}</b>" if is_new else text, textangle=-90, **style)
        note |= dict(opacity=1 if is_right else 0.4, font=dict(size=11, color=colour))
        notes.append(note | dict(showarrow=False))
    return {"shapes": [frame], "annotations": notes}


def _slider(graph: DecodingGraph) -> dict:
    steps = [
        dict(
            label=str(k + 1),
            method="update",
            args=[{"hovertext": [_escaped(graph, k)]}, _shown_iteration(graph, k), [2]],
        )
        for k in range(graph.num_iterations)
    ]
    place = dict(y=1, yanchor="bottom", pad=dict(b=24), ticklen=3, minorticklen=0)
    shown = dict(active=graph.num_iterations - 1, currentvalue=dict(prefix="after iteration "))
    return dict(steps=steps, **place, **shown)


def _write_picture(graph: DecodingGraph, path: Path) -> None:
    """Write the picture, in the format of the path's suffix."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"a PNG or SVG needs matplotlib, {INSTALL}") from error

    cell = 0.44 if _has_numbers(graph) else 0.23  # inches
    width = max(4.0, 0.9 + cell * (len(graph.tokens) + 1))
    heights = 0.5 + 0.28 * _highest(graph), 0.6 * cell * graph.num_iterations + 0.2
    # equal graphs make equal files, and text stays text
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pybeam", "font.size": 8}):
        figure = Figure(figsize=(width, sum(heights) + 1.1), layout="constrained")
        FigureCanvasAgg(figure)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        _draw_arcs(graph, top)
        _draw_cells(graph, bottom)
        is_svg = path.suffix == ".svg"
        figure.savefig(path, dpi=160, metadata={"Date": None} if is_svg else None)


def _draw_arcs(graph: DecodingGraph, axes) -> None:
    axes.plot(*_arcs(graph), color=INK, linewidth=0.7, alpha=0.6)
    columns = _columns(graph)
    axes.scatter(columns, [0] * len(columns), s=16, color=_node_colours(graph, INK), zorder=3)
    axes.set_ylim(-0.15, _highest(graph) + 0.1)
    axes.axis("off")
    axes.set_title("depends on (orange: not on the token before)", loc="left", fontsize=8)


def _draw_cells(graph: DecodingGraph, axes) -> None:
    from matplotlib.patches import Rectangle

    for cell in _cells(graph):
        x, y = cell.place, cell.iteration
        square = Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, linewidth=0)
        strength = PALE + (STRONG - PALE) * cell.probability
        square.set(color=ORANGE if cell.is_parallel else BLUE, alpha=strength)
        axes.add_patch(square)
        if _has_numbers(graph):
            ink = "white" if cell.probability > 0.6 else INK
            axes.text(x, y, cell.number, ha="center", va="center", fontsize=6, color=ink)
    axes.set_xlim(-1.6, len(graph.tokens) - 0.4)
    axes.set_ylim(graph.num_iterations - 0.4, -0.6)
    names = ["source", *map(_shown, graph.labels)]
    axes.set_xticks(_columns(graph), names, rotation=60, ha="right", rotation_mode="anchor")
    rows = _numbered_rows(graph)
    axes.set_yticks(rows, [str(k + 1) for k in rows])
    axes.set_ylabel("iteration")
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
