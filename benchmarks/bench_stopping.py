"""Figures 1 and 2 and Tables 2 and 3 of Huang, Zhao and Ma 2017 on the example model.

    python -m benchmarks.bench_stopping [--lines 200] [--widths 1 2 5 10] [--rewards 0.5 1]

When should a beam search end, and what does a reward per token do about outputs that are too short?
Six decoders translate the dev set at every width; those that take a reward r, at every reward. The width and
reward with the best BLEU on dev then translate the test set.

    top finished         ends when the best candidate of a step has ended, and returns that one
                         (OpenNMT in 2017)
    shrinking, norm      every ending takes a place; ranked by log p / n (RNNsearch)
    shrinking, reward    the same beam, ranked by log p + r * n
    fixed, norm          ends when as many as the beam is wide have ended; ranked by log p / n
                         (fairseq; not in the paper)
    optimal              ends when nothing can beat log p of the best that has ended
    optimal, reward      the same for log p + r * min(rho * |x|, n)

rho is measured on dev. "log prob" is the mean log p of the outputs, "length ratio" that of words to the
reference's, "steps" the mean number of steps until a line is done. All numbers are exact but for the model's
rounding, whatever else the machine does. Every row is kept at once in stopping-cpu.json, so that an
interrupted run keeps what it has, and --resume goes on from there; rows of other lines or widths stay.
`python -m benchmarks.plots_stopping` draws the figures again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import pybeam
from benchmarks import corpus, plots_stopping, report
from benchmarks.bench_translate import MAX_LENGTH, vars_of
from benchmarks.corpus import Corpus
from benchmarks.journal import Journal
from pybeam.scoring import Scoring

TOP, NORM, REWARD, FIXED, OPTIMAL, BOUNDED = (
    "top finished",
    "shrinking, norm",
    "shrinking, reward",
    "fixed, norm",
    "optimal",
    "optimal, reward",
)
NORMALISED = pybeam.scoring.power(1.0)
# ranks what ended last before all else, so that "top finished" returns what ended its search
LATEST = pybeam.scoring.reward(100.0)
IDENTITY = ("split", "decoder", "r", "width", "lines", "beside")


@dataclass(frozen=True)
class Search:
    """One decoding of a data set, and the decoders whose outputs can be read out of it.

    A search that stops by count has the same hypotheses whatever ranks them, so it runs once for many
    scorings.
    """

    algorithm: pybeam.Algorithm
    readings: dict[tuple[str, float], Scoring]  # (decoder, r) -> what ranks


def searches(width: int, rewards: list[float], ratio: float, only: str | None) -> Iterator[Search]:
    """What to decode for every decoder, or `only` for one."""
    limit = {"max_length": MAX_LENGTH}
    if only in (None, TOP):
        stop = pybeam.stopping.top_finished()
        yield Search(
            pybeam.fixed_beam(width, stop=stop, scoring=LATEST, **limit), {(TOP, 0.0): LATEST}
        )
    if only in (None, NORM, REWARD):
        readings = {(NORM, 0.0): NORMALISED}
        readings |= {(REWARD, r): pybeam.scoring.reward(r) for r in rewards}
        yield Search(pybeam.shrinking_beam(width, n_best=width, **limit), readings)
    if only in (None, FIXED):
        yield Search(pybeam.fixed_beam(width, n_best=width, **limit), {(FIXED, 0.0): NORMALISED})
    if only in (None, OPTIMAL):
        yield Search(pybeam.optimal_beam(width, **limit), {(OPTIMAL, 0.0): pybeam.scoring.raw()})
    if only in (None, BOUNDED):
        for r in rewards:
            algorithm = pybeam.optimal_beam(width, r, ratio, **limit)
            yield Search(algorithm, {(BOUNDED, r): algorithm.scoring})


class Bench:
    """Decodes, and writes down what came out."""

    def __init__(self, journal: Journal, options: argparse.Namespace) -> None:
        self.journal, self.n = journal, options.n
        self.model = pybeam.load_model(corpus.MODEL, device="cpu", dtype="float32")
        # places of rows, as in IDENTITY, that are not measured again
        self.known = {_place(row) for row in journal.rows if "BLEU" in row and options.resume}
        # (decoder, r, width) -> steps of every line
        self.steps: dict[tuple[str, float, int], list[int]] = {}

    def run(self, split: str, data: Corpus, width: int, search: Search) -> None:
        lines = len(data.sources)
        if {(split, *reading, width, lines) for reading in search.readings} <= self.known:
            return
        decoder = pybeam.Decoder(self.model, search.algorithm, pybeam.Fifo(self.n))
        results = decoder.decode(data.sources)
        for (name, r), scoring in search.readings.items():
            steps = self.steps[name, r, width] = [result.steps for result in results]
            place = {"split": split, "decoder": name, "r": r, "width": width}
            row = {
                **place,
                "lines": lines,
                **measures(data, results, scoring),
                "steps": statistics.mean(steps),
                "expansions": decoder.stats.expansions,
            }
            with tqdm.external_write_mode(file=sys.stdout):
                self.journal.add(row)


def _place(row: dict) -> tuple:
    return tuple(row[name] for name in IDENTITY if name != "beside")


def measures(data: Corpus, results: list[pybeam.Result], scoring: Scoring) -> dict:
    """BLEU, length ratio and mean log-probability of what the scoring ranks first."""
    best = [
        max(
            result.hypotheses,
            key=lambda h: scoring.final_score(h.score, len(h.tokens) + h.ended, len(source)),
        )
        for result, source in zip(results, data.sources, strict=True)
    ]
    bleu = data.bleu_score([hypothesis.tokens for hypothesis in best])
    return {
        "BLEU": round(bleu.score, 2),
        "length ratio": round(bleu.sys_len / bleu.ref_len, 4),
        "log prob": statistics.mean(hypothesis.score for hypothesis in best),
        "cut": sum(not hypothesis.ended for hypothesis in best),
    }


def best_on_dev(rows: list[dict]) -> dict[str, dict]:
    """The row of the best BLEU of each decoder; of equal ones the first, which is the narrowest."""
    best: dict[str, dict] = {}
    for row in rows:
        name = row["decoder"]
        if name not in best or row["BLEU"] > best[name]["BLEU"]:
            best[name] = row
    return best


def tuning(rows: list[dict]) -> list[dict]:
    """Table 2: the best width of every reward."""
    own = [row for row in rows if row["decoder"] in (OPTIMAL, BOUNDED)]
    table = []
    for r in sorted({row["r"] for row in own}):
        best = max((row for row in own if row["r"] == r), key=lambda row: row["BLEU"])
        table.append({name: best[name] for name in ("r", "BLEU", "length ratio", "width")})
    return table


def final(best: dict[str, dict], rows: list[dict]) -> list[dict]:
    """Table 3: the best setting of every decoder on dev, and what it makes of the test set."""
    test = {row["decoder"]: row for row in rows}
    return [
        {
            "decoder": name,
            "width": row["width"],
            "r": row["r"],
            "dev": row["BLEU"],
            "test": test[name]["BLEU"],
            "length ratio": test[name]["length ratio"],
        }
        for name, row in best.items()
        if name in test
    ]


def compared(
    steps: dict[tuple[str, float, int], list[int]], pairs: list[tuple[tuple, tuple]]
) -> list[dict]:
    """How often the first of a pair of decoders ends a line earlier or later than the second."""
    rows = []
    for ours, theirs in pairs:
        for width in sorted({width for *_, width in steps}):
            if (*ours, width) not in steps or (*theirs, width) not in steps:
                continue
            both = zip(steps[*ours, width], steps[*theirs, width], strict=True)
            ahead = [other - own for own, other in both]
            row = {"split": "dev", "decoder": ours[0], "r": ours[1], "width": width}
            row |= {"lines": len(ahead), "beside": theirs[0]}
            row |= {"earlier": sum(a > 0 for a in ahead), "later": sum(a < 0 for a in ahead)}
            rows.append(row | {"mean steps ahead": statistics.mean(ahead)})
    return rows


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    dev, test = (
        corpus.load(options.data, split, lines)
        for split, lines in (("dev", options.lines), ("test", options.test_lines))
    )
    # EOS in them too, as in all that is generated
    targets = [[*dev.pieces.encode(line), corpus.EOS] for line in dev.references]
    ratio = pybeam.stopping.length_ratio(dev.sources, targets)
    settings = vars_of(options) | {"length_ratio": ratio}
    journal = Journal(options.output, "stopping-cpu", options.minutes, IDENTITY, settings)
    bench = Bench(journal, options)
    try:
        _measure(bench, dev, test, ratio, options)
    except KeyboardInterrupt:
        journal.say("interrupted; what has been measured is kept")
    finally:
        _finish(bench, options, len(dev.sources), len(test.sources))


def _measure(bench: Bench, dev: Corpus, test: Corpus, ratio: float, options) -> None:
    plan = [
        (width, search)
        for width in options.widths
        for search in searches(width, options.rewards, ratio, None)
    ]
    bar = tqdm(total=sum(width for width, _ in plan), unit="width", disable=None)
    with bar:
        for width, search in plan:
            bar.set_description(f"dev, width {width}")
            bench.run("dev", dev, width, search)
            bar.update(width)
            if bench.journal.is_over:
                return
        steps = dict(bench.steps)  # of dev; those of test are not compared
        for name, row in best_on_dev(_rows(bench, "dev", len(dev.sources), options)).items():
            bar.set_description(f"test, {name}")
            rewards = [row["r"]]
            for search in searches(row["width"], rewards, ratio, name):
                kept = {key: value for key, value in search.readings.items() if key[0] == name}
                bench.run("test", test, row["width"], Search(search.algorithm, kept))
        bench.steps = steps


def _rows(bench: Bench, split: str, lines: int, options: argparse.Namespace) -> list[dict]:
    """What there is of a split at these widths and rewards, this run's or an earlier one's."""
    return [
        row
        for row in bench.journal.rows
        if "BLEU" in row
        and (row["split"], row["lines"]) == (split, lines)
        and row["width"] in options.widths
        and row["r"] in (0.0, *options.rewards)
    ]


def _finish(bench: Bench, options: argparse.Namespace, lines: int, test_lines: int) -> None:
    """Tables and figures of what there is."""
    journal = bench.journal
    dev, test = (
        _rows(bench, split, number, options)
        for split, number in (("dev", lines), ("test", test_lines))
    )
    best = best_on_dev(dev)
    shrinking = (NORM, 0.0)  # as many steps whatever ranks its hypotheses
    pairs = [((OPTIMAL, 0.0), (TOP, 0.0)), ((OPTIMAL, 0.0), shrinking)]
    if BOUNDED in best:
        pairs.append(((BOUNDED, best[BOUNDED]["r"]), shrinking))
    comparison = compared(bench.steps, pairs)
    for row in comparison:
        journal.add(row)
    journal.save(is_complete=bool(test))
    for table in (tuning(dev), final(best, test), comparison):
        journal.say("\n" + report.table(table))
    if dev:
        for drawing in plots_stopping.draw(options.output / "stopping-cpu.json"):
            journal.say(str(drawing))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=corpus.DATA,
        help="folder with dev.es, dev.en, test.es, test.en",
    )
    parser.add_argument("--lines", type=int, default=200, help="first lines of dev to tune on")
    parser.add_argument("--test-lines", type=int, default=300, help="first lines of test")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[1, 2, 3, 4, 5, 7, 10, 15, 20], metavar="K"
    )
    parser.add_argument(
        "--rewards",
        type=float,
        nargs="+",
        default=[0.2, 0.4, 0.6, 0.8, 1.0, 1.2],
        metavar="r",
        help="nats for a token; without one is always measured",
    )
    parser.add_argument("--n", type=int, default=64, help="lines decoded at once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="leave out what the file has already")
    parser.add_argument("--minutes", type=float, default=60, help="end after so long")
    parser.add_argument("--output", type=Path, default=report.RESULTS, metavar="FOLDER")
    return parser.parse_args()


if __name__ == "__main__":
    main()
