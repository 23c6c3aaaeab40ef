"""Draws what `benchmarks.bench_stopping` measured, as Figures 1 and 2 of Huang, Zhao and Ma 2017.

python -m benchmarks.plots_stopping [FILE.json]

<file>-quality.svg: mean log-probability of the outputs against width. <file>-bleu.svg: BLEU and length
ratio against width, decoders with a reward at their best one. <file>-reward.svg: both against the reward.
All on the dev set.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import report
from benchmarks.plots import BLACK, BLUE, GREY, ORANGE, save, side_by_side

STYLES = {
    "top finished": (GREY, "s", "-"),
    "shrinking, norm": (BLUE, "v", "--"),
    "shrinking, reward": (BLUE, "^", "-"),
    "fixed, norm": (BLACK, "o", "--"),
    "optimal": (ORANGE, "D", "--"),
    "optimal, reward": (ORANGE, "o", "-"),
}


def quality(rows: list[dict]) -> Figure | None:
    """Figure 1; `top finished` looks for the same, and what takes a reward or a norm does not."""

    def panel(axes: Axes, _: str) -> None:
        for name in ("optimal", "top finished"):
            _line(axes, [row for row in rows if row["decoder"] == name], "width", "log prob", name)
        axes.set(xlabel="width")

    return side_by_side(["search quality"][: len(rows)], panel, "mean log p")


def bleu(rows: list[dict]) -> Figure | None:
    """Figure 2, each decoder at the reward of its best BLEU."""

    def panel(axes: Axes, column: str) -> None:
        for name in STYLES:
            own = [row for row in rows if row["decoder"] == name]
            r = max(own, key=lambda row: row["BLEU"])["r"] if own else 0.0
            label = f"{name} r = {r:g}" if r else name
            _line(axes, [row for row in own if row["r"] == r], "width", column, name, label)
        axes.set(xlabel="width", title=column)

    return side_by_side(["BLEU", "length ratio"][: 2 * len(rows)], panel, "")


def reward(rows: list[dict]) -> Figure | None:
    """BLEU and length ratio against the reward, at the width of the best BLEU."""

    def panel(axes: Axes, column: str) -> None:
        for name, zero in (("shrinking, reward", None), ("optimal, reward", "optimal")):
            own = [row for row in rows if row["decoder"] in (name, zero)]
            if own:
                width = max(own, key=lambda row: row["BLEU"])["width"]
                at = [row for row in own if row["width"] == width]
                _line(axes, at, "r", column, name, f"{name}, k = {width}")
        axes.set(xlabel="reward per token, nats", title=column)

    return side_by_side(["BLEU", "length ratio"][: 2 * len(rows)], panel, "")


PLOTS = {"quality": quality, "bleu": bleu, "reward": reward}


def draw(path: Path) -> list[Path]:
    """Draws one file of results; returns what was written, beside it."""
    found = json.loads(path.read_text())["rows"]
    rows = [row for row in found if row["split"] == "dev" and "BLEU" in row]
    written = []
    for name, plot in PLOTS.items():
        figure = plot(rows)
        if figure is not None:
            written.append(path.with_name(f"{path.stem}-{name}.svg"))
            save(figure, written[-1])
    return written


def _line(
    axes: Axes, rows: list[dict], x: str, y: str, decoder: str, label: str | None = None
) -> None:
    colour, marker, dashes = STYLES[decoder]
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = report.RESULTS / "stopping-cpu.json"
    parser.add_argument("file", type=Path, nargs="?", default=default, metavar="FILE.json")
    for drawing in draw(parser.parse_args().file):
        print(drawing)


if __name__ == "__main__":
    main()
