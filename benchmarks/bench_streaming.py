"""The tables of Yang et al. 2020 (1, 3, 4, 5) on the example model: seconds, steps, expansions, BLEU.

python -m benchmarks.bench_streaming [--data DIR] [--lines 694] [--repeats 3]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import pybeam
from benchmarks import corpus, report
from benchmarks.bench_translate import MAX_LENGTH, NORMALISED, Ours, vars_of

EPSILON = 1 / 6


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    data = corpus.load(options.data, options.split, options.lines)
    model = pybeam.load_model(corpus.MODEL, device="cpu", dtype="float32")
    tables: dict[str, list[dict]] = {}
    plans = {f"methods, k = {k}": methods(k, options.n) for k in options.widths}
    plans["sweep of delta, M and epsilon, k = 50"] = sweep(50, options.n)
    for title, plan in plans.items():
        decoders = {name: Ours(model, *setting) for name, setting in plan.items()}
        runs = {name: (lambda d=d: d(data.sources)) for name, d in decoders.items()}
        repeats = options.repeats if title.startswith("methods") else 1
        seconds, outputs = report.interleaved_medians(runs, repeats)
        tables[title] = [
            row(name, decoders[name], seconds[name], data.bleu(outputs[name])) for name in plan
        ]
        print(f"\n{title}\n{report.table(tables[title])}", flush=True)
        settings = {"settings": vars_of(options), "tables": tables}
        report.write("streaming-cpu", options.output, settings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    corpus.add_options(parser)
    parser.add_argument("--lines", type=int, help="take that many lines only")
    parser.add_argument("--n", type=int, default=64, help="sources decoded at once")
    parser.add_argument("--widths", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def methods(width: int, n: int) -> dict[str, tuple]:
    """The rows of Tables 1, 3 and 4."""
    fixed = pybeam.fixed_beam(width, max_length=MAX_LENGTH, scoring=NORMALISED)
    ours = pybeam.variable_beam(width, max_length=MAX_LENGTH, scoring=NORMALISED)
    pruned = variable(width)
    return {
        "GREEDY": (pybeam.greedy(max_length=MAX_LENGTH), pybeam.Batch(n)),
        "FIXED": (fixed, pybeam.Batch(n)),
        "FIXED-OURS": (ours, pybeam.Batch(n)),
        "FIXED-STREAM": (ours, pybeam.Streaming(n, EPSILON)),
        "VAR-BATCH": (pruned, pybeam.Batch(n)),
        "VAR-STREAM": (pruned, pybeam.Streaming(n, EPSILON)),
        "VAR-STR-FIFO": (pruned, pybeam.Fifo(n, EPSILON)),
        "VAR-FIFO, epsilon = 1": (pruned, pybeam.Fifo(n)),
    }


def sweep(width: int, n: int) -> dict[str, tuple]:
    """The rows of Table 5: one setting changed at a time."""
    plan = {"VAR-STREAM (delta = 1.5, M = 5, epsilon = 1/6)": (variable(width), EPSILON)}
    plan |= {f"delta = {d}": (variable(width, threshold=d), EPSILON) for d in (0.5, 2.5)}
    plan |= {f"M = {m}": (variable(width, max_candidates=m), EPSILON) for m in (3, 10)}
    plan |= {f"epsilon = {e:.3g}": (variable(width), e) for e in (1 / 3, 1 / 2)}
    return {
        name: (algorithm, pybeam.Streaming(n, epsilon))
        for name, (algorithm, epsilon) in plan.items()
    }


def variable(width: int, threshold: float = 1.5, max_candidates: int = 5):
    return pybeam.variable_beam(
        width, threshold, max_candidates, max_length=MAX_LENGTH, scoring=NORMALISED
    )


def row(name: str, ours: Ours, seconds: float, bleu: float) -> dict:
    stats = ours.decoder.stats
    return {
        "method": name,
        "BLEU": bleu,
        "seconds": seconds,
        "steps": stats.steps,
        "expansions": stats.expansions,
        "exp/step": stats.expansions_per_step,
        "refills": stats.refills,
    }


if __name__ == "__main__":
    main()
