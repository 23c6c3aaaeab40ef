"""Write the decoding graph as one HTML page, with plotly: hover for details, a slider over iterations."""

from __future__ import annotations

from html import escape

from pybeam.inspect.data import GraphData
from pybeam.inspect.shapes import arcs, columns, has_numbers, highest_arc, shown

BLUE, ORANGE, GREY = "#4393c3", "#e08214", "#8a8a8a"
BLUES = [[0, "rgba(67,147,195,0.2)"], [1, "rgba(67,147,195,0.95)"]]
ORANGES = [[0, "rgba(224,130,20,0.35)"], [1, "rgba(224,130,20,0.95)"]]
# pixels: the widest and the narrowest column, and all columns together
LARGEST, SMALLEST, PAGE = 64, 17, 1080

# Plotly has its own colours, so this script repaints when the browser changes between light and dark.
CONFIG = dict(displayModeBar=False)
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


def page(graph: GraphData) -> str:
    """An HTML page that loads no other files."""
    n, num_iterations = len(graph.tokens), graph.num_iterations
    output = escape(" ".join(graph.labels))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Decoding graph</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{PAGE_STYLE}</style></head><body>
<h1>What was decoded in parallel</h1>
<p>{n} tokens in {num_iterations} iterations: {output}</p>
<p>Below, a row per iteration: a cell is coloured where the token was already the output's, the stronger
the more probable; <b class="orange">orange</b> where it became so without waiting for the token before
it, <b class="blue">blue</b> elsewhere. Above, what each token waited for. Between them, the tokens
after the iteration that the slider shows.</p>
{fragment(graph)}
</body></html>
"""


def fragment(graph: GraphData) -> str:
    """The drawing alone, to be put into another page."""
    figure = _figure(graph)
    return figure.to_html(full_html=False, include_plotlyjs=True, post_script=PAINT, config=CONFIG)


def _figure(graph: GraphData):
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ImportError(
            "an HTML page needs plotly, which is not installed: pip install 'pybeam-search[graph]'"
        ) from error

    n, num_iterations = len(graph.tokens), graph.num_iterations
    column = min(LARGEST, max(SMALLEST, PAGE // (n + 1)))
    line = 26 if has_numbers(graph) else SMALLEST
    heights = [40 + 26 * highest_arc(graph), 84, line * num_iterations]
    figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, row_heights=heights, vertical_spacing=8 / sum(heights)
    )
    xs, ys = arcs(graph)
    style = dict(mode="lines", hoverinfo="skip", showlegend=False)
    figure.add_trace(go.Scatter(x=xs, y=ys, line=dict(width=1), **style), row=1, col=1)
    figure.add_trace(_nodes(go, graph), row=1, col=1)
    figure.add_trace(_strip(go, graph, num_iterations - 1), row=2, col=1)
    for is_parallel in (False, True):
        figure.add_trace(_cells(go, graph, is_parallel), row=3, col=1)
    figure.update_layout(
        width=max(480, 90 + column * (n + 1)),
        height=int(sum(heights)) + 104,
        margin=dict(l=64, r=16, t=88, b=16),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        sliders=[_slider(graph)],
        shapes=[_frame(graph, num_iterations - 1)],
        annotations=_annotations(graph, num_iterations - 1),
    )
    figure.update_xaxes(visible=False, range=[-1.6, n - 0.4], fixedrange=True)
    figure.update_yaxes(visible=False, fixedrange=True)
    figure.update_yaxes(range=[-0.2, highest_arc(graph) + 0.1], row=1)
    figure.update_yaxes(range=[0, 1], row=2)
    step = 1 if num_iterations <= 15 else 5
    ticks = list(range(step - 1, num_iterations, step))
    figure.update_yaxes(
        visible=True,
        range=[num_iterations - 0.4, -0.6],
        title="iteration",
        tickvals=ticks,
        ticktext=[str(k + 1) for k in ticks],
        showgrid=False,
        zeroline=False,
        row=3,
    )
    return figure


def _nodes(go, graph: GraphData):
    """The points of the source and the tokens; hovering shows what each waited for."""
    texts = ["the source"]
    for j, label in enumerate(graph.labels):
        waited = [graph.labels[i] if i >= 0 else "the source" for i, k in graph.edges if k == j]
        texts.append(
            f"<b>{escape(label)}</b>, token {j + 1}<br>right from iteration {graph.first[j] + 1} on"
            f"<br>waited for {escape(', '.join(waited))}"
        )
    colours = [ORANGE if is_parallel else BLUE for is_parallel in graph.in_parallel]
    return go.Scatter(
        x=columns(graph),
        y=[0] * len(texts),
        mode="markers",
        marker=dict(size=9, color=[GREY, *colours]),
        hovertext=texts,
        hoverinfo="text",
        showlegend=False,
    )


def _strip(go, graph: GraphData, iteration: int):
    """Invisible points on the tokens of an iteration, for hovering; `_annotations` writes the tokens."""
    return go.Scatter(
        x=list(range(len(graph.tokens))),
        y=[0.02] * len(graph.tokens),
        mode="markers",
        marker=dict(size=1, color=GREY),
        hovertext=_strip_texts(graph, iteration),
        hoverinfo="text",
        showlegend=False,
    )


def _strip_texts(graph: GraphData, iteration: int) -> list[str]:
    return [escape(label) for label in graph.guess_labels[iteration]]


def _annotations(graph: GraphData, iteration: int) -> list[dict]:
    """The tokens after an iteration, written upwards, which plotly can do for annotations only."""
    notes = []
    for i, label in enumerate(graph.guess_labels[iteration]):
        is_right = graph.is_correct[iteration][i]
        is_new = is_right and graph.first[i] == iteration
        text = escape(shown(label))
        notes.append(
            dict(
                x=i,
                y=0,
                xref="x2",
                yref="y2",
                xanchor="center",
                yanchor="bottom",
                showarrow=False,
                textangle=-90,
                text=f"<b>{text}</b>" if is_new else text,
                opacity=1 if is_right else 0.4,
                font=dict(size=11, color=ORANGE if is_new and graph.in_parallel[i] else None),
            )
        )
    return notes


def _cells(go, graph: GraphData, is_parallel: bool):
    """The probabilities of correct tokens, a row per iteration, in one of the two colours."""
    values, texts, hovers = [], [], []
    for k in range(graph.num_iterations):
        shows = [
            graph.is_correct[k][i] and (graph.in_parallel[i] and graph.first[i] == k) == is_parallel
            for i in range(len(graph.tokens))
        ]
        line = graph.probabilities[k]
        values.append([p if show else None for p, show in zip(line, shows, strict=True)])
        texts.append(
            [f"{p:.2f}".lstrip("0") if s else "" for p, s in zip(line, shows, strict=True)]
        )
        hovers.append(
            [
                f"<b>{escape(label)}</b>, token {i + 1}, iteration {k + 1}<br>p = {line[i]:.3f}"
                for i, label in enumerate(graph.guess_labels[k])
            ]
        )
    return go.Heatmap(
        z=values,
        text=texts if has_numbers(graph) else None,
        texttemplate="%{text}" if has_numbers(graph) else None,
        hovertext=hovers,
        hoverinfo="text",
        hoverongaps=False,
        zmin=0,
        zmax=1,
        colorscale=ORANGES if is_parallel else BLUES,
        showscale=False,
        xgap=2,
        ygap=2,
    )


def _frame(graph: GraphData, iteration: int) -> dict:
    """A frame around the row of the iteration that the slider shows."""
    return dict(
        type="rect",
        xref="x3",
        yref="y3",
        x0=-0.5,
        x1=len(graph.tokens) - 0.5,
        y0=iteration - 0.5,
        y1=iteration + 0.5,
        line=dict(color=GREY, width=1.5),
    )


def _slider(graph: GraphData) -> dict:
    steps = [
        dict(
            label=str(k + 1),
            method="update",
            args=[
                {"hovertext": [_strip_texts(graph, k)]},
                {"annotations": _annotations(graph, k), "shapes": [_frame(graph, k)]},
                [2],
            ],
        )
        for k in range(graph.num_iterations)
    ]
    return dict(
        active=graph.num_iterations - 1,
        steps=steps,
        currentvalue=dict(prefix="after iteration "),
        y=1,
        yanchor="bottom",
        pad=dict(b=24),
        ticklen=3,
        minorticklen=0,
    )
