"""Draws what was measured; the drawings stand beside their file, and what was not measured is not drawn.

python -m benchmarks.plots [FILE.json ...]

translate: <file>-layouts.svg (the best layouts, against BLEU).
e2e: <file>-throughput.svg (against BLEU), <file>-steps.svg (time against length), <file>-latency.svg.
stopping: the figures of Huang, Zhao and Ma 2017, on the dev set: <file>-quality.svg (mean log-probability
against width), <file>-bleu.svg (BLEU and length ratio against width, decoders with a reward at their best
one), <file>-reward.svg (both against the reward).
jacobi: <file>-speed.svg, the form of Figure 3 of Santilli et al. 2023.
service: <file>-load.svg (p50 and p99 of servers against load).
makespan: <file>-parts.svg (simulated clusters: share of the ideal against the size of parts).
Without files: all of these below benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib

from benchmarks.journal import RESULTS
from benchmarks.latency import PERCENTILES
from benchmarks.peers import GENERATE, PEER
from benchmarks.servers import PLAIN

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
LAYOUTS = {
    "CTranslate2 beam_size=1": (BLACK, "o"),
    "CTranslate2 beam_size=5": (BLACK, "s"),
    "pybeam greedy": (ORANGE, "o"),
    "pybeam fixed 5": (ORANGE, "s"),
    "pybeam variable 5": (ORANGE, "D"),
    "pybeam variable 5, delta = 1.4": (ORANGE, "v"),
}
DECODERS = {
    "top finished": (GREY, "s", "-"),
    "shrinking, norm": (BLUE, "v", "--"),
    "shrinking, reward": (BLUE, "^", "-"),
    "fixed, norm": (BLACK, "o", "--"),
    "optimal": (ORANGE, "D", "--"),
    "optimal, reward": (ORANGE, "o", "-"),
}
SCHEDULES = {"Batch": (GREY, "s"), "Streaming": (BLUE, "^"), "Fifo": (ORANGE, "o")}
PANEL_INCHES = 3.1, 2.7


def throughput(rows: list[dict]) -> Figure | None:
    """A panel for each model and width; right is faster, up is better."""
    parts = _by_case([row for row in rows if not row["case"].endswith("-sweep")], "BLEU")

    def panel(axes: Axes, part: str) -> None:
        for row in parts[part]:
            colour, marker = STYLES.get(row["system"], (GREY, "."))
            at, style = (row["lines/s"], row["BLEU"]), dict(s=44, alpha=0.85)
            axes.scatter(*at, color=colour, marker=marker, label=row["system"], **style)
        axes.set(xlabel="lines/s", title=part.replace("-", ", k = "))
        axes.set_xlim(left=0)

    return side_by_side(list(parts), panel, "BLEU")


def layouts(rows: list[dict]) -> Figure | None:
    """A panel for float32 and one for int8: searches and CTranslate2 in their best layouts."""
    best: dict[str, dict[str, dict]] = {}
    for row in rows:
        case = re.fullmatch(r"(int8-)?layouts-(\d)", row["case"])
        if case:
            name = re.split(r",? \d (?:batch|engine)", row["system"])[0]
            shown = f"{name} beam_size={case[2]}" if name == "CTranslate2" else name
            part = best.setdefault("int8" if case[1] else "float32", {})
            part[shown] = max(row, part.get(shown, row), key=lambda one: one["lines/s"])

    def panel(axes: Axes, part: str) -> None:
        for system, row in sorted(best[part].items()):
            colour, marker = LAYOUTS[system]
            at, style = (row["lines/s"], row["BLEU"]), dict(s=44, alpha=0.85)
            axes.scatter(*at, color=colour, marker=marker, label=system, **style)
        axes.set(xlabel="lines/s", title=part)
        axes.set_xlim(left=0)

    return side_by_side(list(best), panel, "BLEU")


def step_time(rows: list[dict]) -> Figure | None:
    """A panel for each model: how a step slows down as hypotheses grow."""
    parts = _by_case(rows, "step_ms")

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
    parts = _by_case(rows, "p50_ms")
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
        axes.set(xlabel="load, share of saturated throughput", title=title)
        axes.set_xlim(0, 1)
        _milliseconds(axes)

    return side_by_side(list(panels), panel, "ms from arrival to result")


def quality(rows: list[dict]) -> Figure | None:
    """Figure 1; `top finished` looks for the same, and what takes a reward or a norm does not."""

    def panel(axes: Axes, _: str) -> None:
        for name in ("optimal", "top finished"):
            _line(axes, [row for row in rows if row["system"] == name], "width", "log prob", name)
        axes.set(xlabel="width")

    return side_by_side(["search quality"][: len(rows)], panel, "mean log p")


def bleu(rows: list[dict]) -> Figure | None:
    """Figure 2, each decoder at the reward of its best BLEU."""

    def panel(axes: Axes, column: str) -> None:
        for name in DECODERS:
            own = [row for row in rows if row["system"] == name]
            r = max(own, key=lambda row: row["BLEU"])["r"] if own else 0.0
            label = f"{name} r = {r:g}" if r else name
            _line(axes, [row for row in own if row["r"] == r], "width", column, name, label)
        axes.set(xlabel="width", title=column)

    return side_by_side(["BLEU", "length ratio"][: 2 * len(rows)], panel, "")


def reward(rows: list[dict]) -> Figure | None:
    """BLEU and length ratio against the reward, at the width of the best BLEU."""

    def panel(axes: Axes, column: str) -> None:
        for name, zero in (("shrinking, reward", None), ("optimal, reward", "optimal")):
            own = [row for row in rows if row["system"] in (name, zero)]
            if own:
                width = max(own, key=lambda row: row["BLEU"])["width"]
                at = [row for row in own if row["width"] == width]
                _line(axes, at, "r", column, name, f"{name}, k = {width}")
        axes.set(xlabel="reward per token, nats", title=column)

    return side_by_side(["BLEU", "length ratio"][: 2 * len(rows)], panel, "")


def speed(rows: list[dict]) -> Figure | None:
    """Speed-up against greedy in time, for threads and batches, and in iterations."""
    blocks = {f"HGJ Decoding (b = {b})": f"b = {b}" for b in (3, 5, 10)}
    systems = blocks | {"PJ Decoding": "whole", "Adaptive (ours)": "adaptive"}
    cases = _by_case(rows, "times fewer steps")

    def panel(axes: Axes, _: str) -> None:
        for case, own in cases.items():
            is_time = case.startswith("threads")
            column = "times the first" if is_time else "times fewer steps"
            value = {row["system"]: row[column] for row in own}
            colour = (BLUE if "threads = 1" in case else ORANGE) if is_time else GREY
            dashes = ":" if not is_time else "-" if "batch = 1" in case else "--"
            line = [value.get(name, float("nan")) for name in systems]
            axes.plot([*systems.values()], line, dashes, color=colour, marker="o", label=case)
        axes.axhline(1, color=BLACK, linewidth=0.8)
        axes.set_ylim(bottom=0)

    return side_by_side(["parallel decoding"][: len(cases)], panel, "speed-up against greedy")


def load(rows: list[dict]) -> Figure | None:
    """A panel for each width and percentile: how latency grows with load, up to collapse."""
    parts = _by_case([row for row in rows if row["case"].startswith("load-")], "p50_ms")
    panels = {
        f"width {part.removeprefix('load-')}, {p}": (part, f"{p}_ms")
        for part in parts
        for p in ("p50", "p99")
    }

    def panel(axes: Axes, title: str) -> None:
        part, column = panels[title]
        for name in dict.fromkeys(row["system"] for row in parts[part]):
            points = sorted((r["req/s"], r[column]) for r in parts[part] if r["system"] == name)
            colour = BLACK if name.startswith(PEER) else ORANGE if "variable" in name else BLUE
            colour = GREY if name.startswith(PLAIN) else colour
            dashes, marker = ("--", "s") if "int8" in name else ("-", "o")
            style = dict(color=colour, marker=marker, markersize=3.5, label=name)
            axes.plot(*zip(*points, strict=True), dashes, **style)
        axes.set(xlabel="requests per second", title=title)
        _milliseconds(axes)
        axes.set_xlim(left=0)

    return side_by_side(list(panels), panel, "ms from arrival to answer")


def parts(rows: list[dict]) -> Figure | None:
    """A panel for each number of nodes: what parts that are too small or too large cost."""
    nodes = _by_case(rows, "share_of_ideal")
    colours = {"none": GREY, "hardware": BLUE, "preemptible": ORANGE}

    def panel(axes: Axes, name: str) -> None:
        for losses, drivers in dict.fromkeys(
            (row["losses"], row["drivers"]) for row in nodes[name]
        ):
            own = [r for r in nodes[name] if (r["losses"], r["drivers"]) == (losses, drivers)]
            points = sorted((row["part_lines"], row["share_of_ideal"]) for row in own)
            dashes = "-" if drivers == 1 else "--"
            label = f"losses: {losses}" + ("" if drivers == 1 else f", {drivers} runs")
            style = dict(color=colours[losses], marker="o", markersize=3.5, label=label)
            axes.plot(*zip(*points, strict=True), dashes, **style)
        axes.set(xlabel="lines of a part", title=name, xscale="log")
        axes.set_ylim(0, 1.03)

    return side_by_side(list(nodes), panel, "ideal time / time")


def _milliseconds(axes: Axes) -> None:
    """A logarithmic axis with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def _line(
    axes: Axes, rows: list[dict], x: str, y: str, decoder: str, label: str | None = None
) -> None:
    colour, marker, dashes = DECODERS[decoder]
    points = sorted((row[x], row[y]) for row in rows)
    if points:
        axes.plot(
            *zip(*points, strict=True),
            dashes,
            color=colour,
            marker=marker,
            markersize=4,
            label=label or decoder,
        )


PLOTS = {
    "translate": {"layouts": layouts},
    "e2e": {"throughput": throughput, "steps": step_time, "latency": latency},
    "stopping": {"quality": quality, "bleu": bleu, "reward": reward},
    "jacobi": {"speed": speed},
    "service": {"load": load},
    "makespan": {"parts": parts},
}


def draw(path: Path) -> list[Path]:
    """Draws one file of results, named after its benchmark; returns what was written, beside it."""
    benchmark = path.stem.partition("-")[0]
    rows = [row for row in json.loads(path.read_text())["rows"] if "error" not in row]
    if benchmark == "stopping":
        rows = [row for row in rows if row["case"] == "dev" and "BLEU" in row]
    written = []
    for name, plot in PLOTS[benchmark].items():
        figure = plot(rows)
        if figure is not None:
            written.append(path.with_name(f"{path.stem}-{name}.svg"))
            save(figure, written[-1])
    return written


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def _by_case(rows: list[dict], column: str) -> dict[str, list[dict]]:
    """Rows that have the column, by case, in the order in which they were measured."""
    parts: dict[str, list[dict]] = {}
    for row in rows:
        if column in row:
            parts.setdefault(row["case"], []).append(row)
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
        ncols=min({1: 2, 2: 3}.get(len(names), 5), len(handles)),
        frameon=False,
    )
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.json")
    found = [path for name in PLOTS for path in sorted(RESULTS.rglob(f"{name}-*.json"))]
    for path in parser.parse_args().files or found:
        for drawing in draw(path):
            print(drawing)


if __name__ == "__main__":
    main()
