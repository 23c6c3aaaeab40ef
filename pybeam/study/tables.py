"""`Comparison`: searches beside one another, as a text, a table of a notebook, a data frame or a picture."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pybeam.study.metrics import INSTALL, Measure
from pybeam.text.counts import counted
from pybeam.text.json_numbers import without_infinity

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SIGNIFICANT = 0.05
# what a picture shows where nothing else is asked for
COST, QUALITY = "expansions", "log prob"
STYLE = """
:root { color-scheme: light dark; }
body { margin: 1.5rem; font-family: sans-serif; }
table { border-collapse: collapse; } th, td { padding: .3rem .7rem; text-align: right; }
tbody th { text-align: left; } tr + tr { border-top: 1px solid #8888; }
"""
FORMATS = (".txt", ".html", ".json", ".csv", ".png", ".svg")


class Found(NamedTuple):
    """The output of a search for a source, and its cost.

    Attributes:
        output: its text; or its ids, without prefix and EOS, where nothing makes texts of them.
        log_prob: of the output and EOS, by the model alone; -inf without an output.
        length: tokens, EOS included; 0: there is no output.
        ended: whether it ends in EOS, and was not cut.
        stop_reason, steps, expansions: as in `pybeam.Result`.
        cpu_seconds: of the process, between the result before and this one.
        error: why there is none; None: it did not fail.
    """

    output: Any
    log_prob: float
    length: int
    ended: bool
    stop_reason: str
    steps: int
    expansions: int
    cpu_seconds: float
    error: str | None


class Difference(NamedTuple):
    """A source for which two searches have different outputs.

    Attributes:
        place: of the source.
        outputs: of the two.
        log_probs: of the two.
    """

    place: int
    outputs: tuple[Any, Any]
    log_probs: tuple[float, float]


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `pybeam.compare` returns. In a notebook it shows itself; ``print`` shows the table.

    Attributes:
        rows: for each search, the baseline first, its measures by column.
        found: for each search, what it has found for each source.
        best: for each source, the largest log-probability of an output that is known.
        samples: of sources, from which intervals and p-values are.
        proven: of how many sources it is proven that no output is more probable; None: nothing looked.
        digits: of each column, behind the point.
    """

    rows: dict[str, dict[str, Measure]]
    found: dict[str, list[Found]]
    best: list[float]
    samples: int
    proven: int | None
    digits: dict[str, int]

    @property
    def baseline(self) -> str:
        """The search that others are tested against."""
        return next(iter(self.rows))

    def __str__(self) -> str:
        table = [["", *self.digits]]
        table += [[name, *(text for text, _ in self._cells(name))] for name in self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            ).rstrip()
            for row in table
        ]
        return "\n".join([*lines, "", *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *self.digits))
        rows = []
        for name in self.rows:
            cells = (f'<td title="{hint}">{text}</td>' for text, hint in self._cells(name))
            rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{notes}"

    def _cells(self, name: str) -> Iterator[tuple[str, str]]:
        """The text of each cell, and what more there is to say."""
        for column, digits in self.digits.items():
            value, low, high, p_value = self.rows[name][column]
            text, hint = f"{value:.{digits}f}", ""
            if not math.isnan(low):
                text += f" ± {(high - low) / 2:.{digits}f}"
                hint = f"{low:.{digits}f} to {high:.{digits}f}"
            if p_value is not None:
                hint += f", p = {p_value:.3f}"
                # columns of numbers stay aligned
                text += "*" if p_value < SIGNIFICANT else " "
            elif not math.isnan(low):
                text += " "
            yield text, hint

    def _notes(self) -> list[str]:
        num = len(self.best)
        notes = [counted(num, "source")]
        if self.samples:
            notes[0] += (
                f"; ±: half of what holds 95 % of {self.samples:,} samples of them; "
                f"*: other than {self.baseline} (p < {SIGNIFICANT}, paired bootstrap)"
            )
        if self.proven == num:
            notes.append(
                "search errors: in per cent, against outputs that are proven to be the best"
            )
        else:
            told = "" if self.proven is None else f"; proven of {counted(self.proven, 'source')}"
            notes.append(
                f"search errors: in per cent, at least, against the best output known{told}"
            )
        return notes

    def to_frame(self) -> DataFrame:
        """Return a pandas data frame: a row for each search, and a column for each number.

        Intervals and p-values are in columns "BLEU low", "BLEU high" and "BLEU p", missing where nothing was
        tested.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(f"a data frame needs pandas, {INSTALL}") from error
        return pandas.DataFrame.from_dict(self._numbers(), orient="index").rename_axis("search")

    def _numbers(self) -> dict[str, dict[str, float | None]]:
        numbers: dict[str, dict[str, float | None]] = {}
        for name, row in self.rows.items():
            own: dict[str, float | None] = {}
            for column, (value, low, high, p_value) in row.items():
                own[column] = value
                if not math.isnan(low):
                    own |= {f"{column} low": low, f"{column} high": high, f"{column} p": p_value}
            numbers[name] = own
        return numbers

    def to_json(self) -> str:
        """Return all as one JSON object: the rows, and what was found for each source.

        A number that is infinite or NaN, such as the log-probability without an output, is null.
        """
        whole = {
            "rows": self._numbers(),
            "found": {name: [one._asdict() for one in own] for name, own in self.found.items()},
            "best": self.best,
            "samples": self.samples,
            "proven": self.proven,
        }
        return json.dumps(without_infinity(whole), ensure_ascii=False, indent=1, allow_nan=False)

    def differences(self, first: str, second: str) -> list[Difference]:
        """Return the sources for which two searches have other outputs, the largest difference first.

        Args:
            first, second: searches by name. The difference is that of log-probabilities.

        Raises:
            ValueError: there is no such search.
        """
        for name in (first, second):
            self._check("first" if name is first else "second", name, self.rows)
        pairs = zip(self.found[first], self.found[second], strict=True)
        found = [
            Difference(place, (a.output, b.output), (a.log_prob, b.log_prob))
            for place, (a, b) in enumerate(pairs)
            if a.output != b.output
        ]
        return sorted(found, key=lambda one: -abs(one.log_probs[0] - one.log_probs[1]))

    def plot(self, cost: str = COST, quality: str | None = None) -> Figure:
        """Return a matplotlib figure of quality against cost, with what holds 95 % of samples.

        Args:
            cost: the column to the right, such as "CPU ms".
            quality: the column upwards; None: the first metric, or "log prob".

        Raises:
            ValueError: there is no such column.
            ImportError: matplotlib is not installed.
        """
        quality = next(iter(self.digits)) if quality is None else quality
        self._check("cost", cost, self.digits)
        self._check("quality", quality, self.digits)
        try:
            from matplotlib import rc_context
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(f"a picture needs matplotlib, {INSTALL}") from error

        class Picture(Figure):
            """A figure that shows itself in a notebook, whoever draws there."""

            def _repr_svg_(self) -> str:
                file = io.StringIO()
                # the same numbers make the same text, whose letters stay letters
                with rc_context({"svg.hashsalt": "pybeam", "svg.fonttype": "none"}):
                    self.savefig(file, format="svg", metadata={"Date": None})
                return file.getvalue()

        figure = Picture(figsize=(6.0, 4.0), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(cost, parse_math=False)
        axes.set_ylabel(quality, parse_math=False)
        for name, row in self.rows.items():
            x, y = row[cost], row[quality]
            axes.errorbar(x.value, y.value, _reach(y), _reach(x), fmt="o", capsize=3, lw=1)
            axes.annotate(
                name, (x.value, y.value), (5, 5), textcoords="offset points", parse_math=False
            )
        axes.grid(alpha=0.3)
        axes.margins(0.15)
        return figure

    def save(self, path: str | Path) -> Path:
        """Write a file in the format of its suffix: .txt, .html, .json, .csv, .png or .svg; returns its path.

        Args:
            path: where to write. A picture is that of `plot`.

        Raises:
            ValueError: the suffix is another one.
            ImportError: a library that makes it is not installed.
        """
        path = Path(path)
        if path.suffix not in FORMATS:
            raise ValueError(
                f"a comparison is saved as one of {', '.join(FORMATS)}, but not as {path.name!r}"
            )
        if path.suffix in (".png", ".svg"):
            self.plot().savefig(path)
        elif path.suffix == ".csv":
            self.to_frame().to_csv(path)
        else:
            texts = {".txt": self.__str__, ".html": self._page, ".json": self.to_json}
            path.write_text(texts[path.suffix]() + "\n", encoding="utf-8")
        return path

    def _page(self) -> str:
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Searches compared</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>
{self._repr_html_()}
</body></html>"""

    @staticmethod
    def _check(argument: str, name: str, known: Any) -> None:
        if name not in known:
            raise ValueError(f"`{argument}` must be one of {', '.join(known)}, but is {name!r}")


def _reach(measure: Measure) -> list[list[float]] | None:
    """How far the interval reaches to both sides."""
    value, low, high, _ = measure
    return None if math.isnan(low) else [[max(value - low, 0.0)], [max(high - value, 0.0)]]
