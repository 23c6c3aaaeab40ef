"""Parallel decoding beside greedy, as Tables 1 to 3, 5 and 6 and Figure 3 of Santilli et al. 2023 show it.

python -m benchmarks.bench_jacobi [--threads 2] [--batch 1] [--lines 100] [--repeats 3]
python -m benchmarks.bench_jacobi --iterations      counts, nothing timed
python -m benchmarks.bench_jacobi --plot            the figure, from what has been measured

Systems take turns on every batch, and of each turn the fastest repeat counts, so that noise of the
machine is shared. Outputs are checked to be greedy's, token for token.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import pybeam
from benchmarks import corpus, report
from benchmarks.bench_translate import MAX_LENGTH, flops_of

GREEDY = "Greedy Autoregressive"
BEAM = "Beam Search (beam = 5)"
ADAPTIVE = "Adaptive (ours)"
BLOCKS = (3, 5, 10)


def systems(lengths: dict[int, int]) -> dict[str, pybeam.Algorithm]:
    """The rows of the paper's tables; PJ and PGJ know the length of greedy's output, as there."""
    options = dict(max_length=MAX_LENGTH)
    known = dict(length=lambda request: lengths[request.id], **options)
    return {
        GREEDY: pybeam.greedy(**options),
        BEAM: pybeam.fixed_beam(5, **options),
        "PJ Decoding": pybeam.jacobi(**known),
        **{f"PGJ Decoding (b = {b})": pybeam.gauss_seidel_jacobi(b, **known) for b in BLOCKS},
        **{f"HGJ Decoding (b = {b})": pybeam.hybrid_jacobi(b, **options) for b in BLOCKS},
        ADAPTIVE: pybeam.adaptive_jacobi(**options),
        "Adaptive, n-gram lookup (ours)": pybeam.adaptive_jacobi(
            initialiser=pybeam.drafts.ngram_lookup(2), **options
        ),
    }


def main() -> None:
    options = _options()
    if options.plot:
        print(plot(options.output or report.RESULTS / "jacobi-cpu.json"))
        return
    torch.set_num_threads(options.threads)
    data = corpus.load(options.data, options.split)
    data = spread(data, options.lines)
    model = pybeam.load_model(corpus.MODEL, device="cpu", dtype="float32")
    rows = Bench(model, data, options).rows()
    title = f"threads = {options.threads}, batch = {options.batch}"
    if options.iterations:
        title = "iterations"
    for name, table in paper_tables(rows).items():
        print(f"\n{name}: {title}, {len(data.sources)} lines\n{report.table(table)}", flush=True)
    write(options, title, rows)


def spread(data: corpus.Corpus, lines: int) -> corpus.Corpus:
    """So many lines, from all over the file."""
    step = max(1, len(data.sources) // lines)
    return corpus.Corpus(data.sources[::step][:lines], data.references[::step][:lines], data.pieces)


class Bench:
    """All systems on the same lines, batch by batch in turns."""

    def __init__(self, model, data: corpus.Corpus, options: argparse.Namespace) -> None:
        self._model, self._data, self._options = model, data, options
        self._requests = [pybeam.Request(ids, id=i) for i, ids in enumerate(data.sources)]
        greedy = pybeam.Decoder(model, pybeam.greedy(max_length=MAX_LENGTH))
        self._greedy = [result.hypotheses[0] for result in greedy.decode(self._requests)]
        lengths = {i: len(h.tokens) + h.ended for i, h in enumerate(self._greedy)}
        schedule = pybeam.Batch(64 if options.iterations else options.batch)
        self._decoders = {
            name: pybeam.Decoder(model, algorithm, schedule)
            for name, algorithm in systems(lengths).items()
            if options.only is None or any(part in name for part in (*options.only, GREEDY))
        }

    def rows(self) -> list[dict]:
        options = self._options
        turn = 64 if options.iterations else options.batch
        seconds = dict.fromkeys(self._decoders, 0.0)
        results: dict[str, list] = {name: [] for name in self._decoders}
        for first in range(0, len(self._requests), turn):
            requests = self._requests[first : first + turn]
            times: dict[str, list[float]] = {name: [] for name in self._decoders}
            for _ in range(1 if options.iterations else options.repeats):
                for name, decoder in self._decoders.items():
                    start = time.perf_counter()
                    found = decoder.decode(requests)
                    times[name].append(time.perf_counter() - start)
                    results[name][first:] = found
            for name, own in times.items():
                seconds[name] += min(own)
        for name, found in results.items():
            tokens = [result.hypotheses[0].tokens for result in found]
            assert name == BEAM or tokens == [h.tokens for h in self._greedy], name
        return [self._row(name, results, seconds) for name in results]

    def _row(self, name: str, results: dict[str, list], seconds: dict[str, float]) -> dict:
        per_row, per_source_token = flops_of(self._model.config)
        found = results[name]
        steps, expansions = (
            sum(getattr(result, what) for result in found) for what in ("steps", "expansions")
        )
        flops = expansions * per_row + per_source_token * sum(map(len, self._data.sources))
        tokens = [result.hypotheses[0].tokens for result in found]
        row = {
            "system": name,
            "Iters": sum(result.steps for result in results[GREEDY]) / steps,
            "rows/step": expansions / steps,
            "BLEU": self._data.bleu(tokens),
            "FLOPs": flops,
            "lines": len(found),
        }
        if not self._options.iterations:
            speed = seconds[GREEDY] / seconds[name]
            row |= {"Time": speed, "seconds": seconds[name], "FLOPs/Speed": flops / speed}
        return row


def paper_tables(rows: list[dict]) -> dict[str, list[dict]]:
    """The same numbers in the form of the paper's tables; it has several languages, and we one pair."""
    columns = {
        "Table 1 (Speed is time)": {"Speed": "Time", "BLEU": "BLEU"},
        "Table 6": {"Time": "Time", "Iters": "Iters"},
        "Tables 3 and 5 (decoding; nothing is trained)": {
            "Speed": "Time",
            "BLEU": "BLEU",
            "Infer. FLOPs": "FLOPs",
            "FLOPs/Speed": "FLOPs/Speed",
        },
    }
    tables = {
        name: [
            {"Decoding Algorithm": row["system"]}
            | {shown: row[own] for shown, own in mapping.items() if own in row}
            for row in rows
        ]
        for name, mapping in columns.items()
    }
    tables["Table 2"] = [
        {"Dec. Algorithm": row["system"], "Speed": what, "es->en": row[what]}
        for row in rows
        for what in ("Iters", "Time")
        if what in row and row["system"] not in (GREEDY, BEAM)
    ]
    return tables


def write(options: argparse.Namespace, title: str, rows: list[dict]) -> None:
    """Replace this table in the results file; the others stay."""
    path = options.output or report.RESULTS / "jacobi-cpu.json"
    tables = json.loads(path.read_text())["tables"] if path.exists() else {}
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    tables[title] = {"settings": settings, "run": report.environment(), "rows": rows}
    report.write("jacobi-cpu", path, {"tables": tables})


def plot(path: Path) -> Path:
    """The form of Figure 3: speed-up against greedy, in time for threads and batches, in iterations."""
    from benchmarks.plots import BLUE, GREY, ORANGE, pyplot

    tables = json.loads(path.read_text())["tables"]
    names = [*[f"HGJ Decoding (b = {b})" for b in BLOCKS], "PJ Decoding", ADAPTIVE]
    labels = [*[f"b = {b}" for b in BLOCKS], "whole", "adaptive"]
    figure, axes = pyplot.subplots(figsize=(6.0, 3.2), layout="constrained")
    for title, table in sorted(tables.items()):
        values = {row["system"]: row for row in table["rows"]}
        is_time = title.startswith("threads")
        what = "Time" if is_time else "Iters"
        dashes = "-" if "batch = 1" in title else "--"
        colour = (BLUE if "threads = 1" in title else ORANGE) if is_time else GREY
        line = [values[name][what] if name in values else float("nan") for name in names]
        label = title if is_time else "iterations"
        axes.plot(labels, line, dashes if is_time else ":", color=colour, marker="o", label=label)
    axes.axhline(1, color="#222222", linewidth=0.8)
    axes.set_ylabel("speed-up against greedy")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    drawing = path.with_name(f"{path.stem}-speed.svg")
    figure.savefig(drawing, metadata={"Date": None})
    return drawing


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    corpus.add_options(parser)
    parser.add_argument("--batch", type=int, default=1, help="sources decoded at once")
    parser.add_argument("--lines", type=int, default=100, help="so many, from all over the file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="these systems only, by a part of their names")
    parser.add_argument("--iterations", action="store_true", help="count, do not time")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
