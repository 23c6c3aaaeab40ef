"""Draws what `benchmarks.e2e` measured: throughput against BLEU, step time against length, latency.

python -m benchmarks.plots [FILE.json ...]

Without files: all results of benchmarks.e2e below benchmarks/results/. The drawings stand beside their
file, as <file>-throughput.svg, <file>-steps.svg and <file>-latency.svg; what was not measured is not
drawn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import matplotlib

from benchmarks import report
from benchmarks.e2e.latency import PERCENTILES
from benchmarks.e2e.pair import GENERATE

matplotlib.use("svg")
# the same numbers make the same file, and its letters stay letters
matplotlib.rcParams.update({"svg.hashsalt": "pybeam", "svg.fonttype": "none", "font.size": 9})

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter  # noqa: E402

GREY, BLUE, ORANGE, BLACK = "#8a8a8a", "#2166ac", "#d6604d", "#222222"
# colour: what is searched; shape: how it is scheduled
STYLES = {
    "GREEDY": (GREY, "o"),
    "FIXED": (BLUE, "s"),
    "FIXED-OURS": (BLUE, "o"),
    "FIXED-STREAM": (BLUE, "^"),
    "VAR-BATCH": (ORANGE, "o"),
    "VAR-STREAM": (ORANGE, "^"),
    "VAR-STR-FIFO": (ORANGE, "v"),
    "VAR-FIFO, epsilon = 1": (ORANGE, "D"),
    GENERATE: (BLACK, "X"),
    "pybeam": (ORANGE, "o"),
}
SCHEDULES = {"Batch": (GREY, "s"), "Streaming": (BLUE, "^"), "Fifo": (ORANGE, "o")}
PANEL_INCHES = 3.1, 2.7


def throughput(rows: list[dict]) -> Figure | None:
    """A panel for each model and width; right is faster, up is better."""
    parts = _by_part(rows, "BLEU")

    def panel(axes: Axes, part: str) -> None:
        for row in parts[part]:
            colour, marker = STYLES.get(row["system"], (GREY, "."))
            at, style = (row["lines/s"], row["BLEU"]), dict(s=44, alpha=0.85)
            axes.scatter(*at, color=colour, marker=marker, label=row["system"], **style)
        axes.set(xlabel="lines/s", title=part.replace("-", ", k = "))
        axes.set_xlim(left=0)

    return side_by_side(list(parts), panel, "BLEU")


def step_time(rows: list[dict]) -> Figure | None:
    """A panel for each model: how a step slows down as hypotheses grow."""
    parts = _by_part(rows, "step_ms")

    def panel(axes: Axes, part: str) -> None:
        for row in parts[part]:
            colour, marker = STYLES[row["system"]]
            axes.plot(
                row["length"], row["step_ms"], color=colour, marker=marker, label=row["system"]
            )
        width, n = (parts[part][0][name] for name in ("width", "n"))
        axes.set(
            xlabel="tokens so far", title=f"{part.removesuffix('-steps')}, k = {width}, n = {n}"
        )
        axes.set_ylim(bottom=0)

    return side_by_side(list(parts), panel, "ms per step")


def latency(rows: list[dict]) -> Figure | None:
    """A panel for each model and percentile; requests arrive one by one."""
    parts = _by_part(rows, "p50_ms")
    panels = {
        f"{part.removesuffix('-latency')}, p{p}": (part, f"p{p}_ms")
        for part in parts
        for p in PERCENTILES
    }

    def panel(axes: Axes, title: str) -> None:
        part, column = panels[title]
        for name in dict.fromkeys(row["system"] for row in parts[part]):
            line = sorted((r["load"], r[column]) for r in parts[part] if r["system"] == name)
            colour, marker = SCHEDULES[name.partition("(")[0]]
            dashes = "--" if "max_wait" in name else "-"
            axes.plot(*zip(*line, strict=True), dashes, color=colour, marker=marker, label=name)
        axes.set(yscale="log", xlabel="load, share of saturated throughput", title=title)
        axes.set_xlim(0, 1)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_locator(NullLocator())

    return side_by_side(list(panels), panel, "ms from arrival to result")


PLOTS = {"throughput": throughput, "steps": step_time, "latency": latency}


def draw(path: Path) -> list[Path]:
    """Draws one file of results; returns what was written, beside it."""
    rows = json.loads(path.read_text())["rows"]
    written = []
    for name, plot in PLOTS.items():
        figure = plot(rows)
        if figure is None:
            continue
        written.append(path.with_name(f"{path.stem}-{name}.svg"))
        save(figure, written[-1])
    return written


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def _by_part(rows: list[dict], column: str) -> dict[str, list[dict]]:
    """Rows that have the column, by part, in the order in which they were measured."""
    parts: dict[str, list[dict]] = {}
    for row in rows:
        if column in row:
            parts.setdefault(row["part"], []).append(row)
    return parts


def side_by_side(names: list[str], panel: Callable[[Axes, str], None], label: str) -> Figure | None:
    """Panels side by side under one legend."""
    if not names:
        return None
    width, height = PANEL_INCHES
    figure, grid = pyplot.subplots(
        1, len(names), figsize=(width * len(names), height), squeeze=False, layout="constrained"
    )
    handles: dict[str, object] = {}
    for axes, name in zip(grid[0], names, strict=True):
        panel(axes, name)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        handles |= {text: h for h, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    grid[0][0].set_ylabel(label)
    figure.legend(
        handles.values(),
        handles,
        loc="outside lower center",
        ncols=min(5, len(handles)),
        frameon=False,
    )
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.json")
    found = sorted(report.RESULTS.rglob("*e2e*.json"))
    for path in parser.parse_args().files or found:
        for drawing in draw(path):
            print(drawing)


if __name__ == "__main__":
    main()
