"""When to end a search: Figures 1 and 2 and Tables 2 and 3 of Huang, Zhao and Ma 2017.

When should a beam search end, and what does a reward per token do about outputs that are too short?
Six decoders translate the first lines of dev at every width; those that take a reward r, at every reward.
The width and reward with the best BLEU on dev then translate the first lines of test.

    top finished         ends when the best candidate of a step has ended, and returns that one
                         (OpenNMT in 2017)
    shrinking, norm      every ending takes a place; ranked by log p / n (RNNsearch)
    shrinking, reward    the same beam, ranked by log p + r * n
    fixed, norm          ends when as many as the beam is wide have ended; ranked by log p / n
                         (fairseq; not in the paper)
    optimal              ends when nothing can beat log p of the best that has ended
    optimal, reward      the same for log p + r * min(rho * |x|, n)

rho is measured on dev. "log prob" is the mean log p of the outputs, "length ratio" that of words to the
reference's. All numbers are exact but for the model's rounding and the seconds. `beside` counts the lines
on which one decoder ends earlier or later than another.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import pybeam
from benchmarks.corpus import EOS, Corpus
from benchmarks.journal import table
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.translation import MAX_LENGTH, NORMALISED
from pybeam.engine.stats import Stats

TOP, NORM, REWARD, FIXED, OPTIMAL, BOUNDED = (
    "top finished",
    "shrinking, norm",
    "shrinking, reward",
    "fixed, norm",
    "optimal",
    "optimal, reward",
)
# ranks what ended last before all else, so that "top finished" returns what ended its search
LATEST = pybeam.scoring.reward(100.0)
N = 64
LINES = {"dev": 200, "test": 300}
WIDTHS = (1, 2, 3, 4, 5, 7, 10, 15, 20)
# nats for a token; without a reward is always measured
REWARDS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)


@dataclass(frozen=True)
class Search:
    """One decoding of a data set, and the decoders whose outputs can be read out of it.

    A search that stops by count has the same hypotheses whatever ranks them, so it runs once for many
    scorings.
    """

    algorithm: object
    readings: dict[tuple[str, float], object]  # (decoder, r) -> what ranks


def searches(
    width: int, rewards: tuple[float, ...], ratio: float, only: str | None
) -> Iterator[Search]:
    """The tasks for every decoder, or `only` for one."""
    # what is cut is an output too, so that every decoder has one for every line
    limit = {"max_length": MAX_LENGTH, "ended_only": False}
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
    """Decodes each search once, and knows how many steps every line took."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        # (split, decoder, r, width) -> steps of every line
        self.steps: dict[tuple[str, str, float, int], list[int]] = {}

    def data(self, split: str) -> Corpus:
        return self._setup.corpus(split).first(self.lines(split))

    def lines(self, split: str) -> int:
        return self._setup.lines or LINES[split]

    @cached_property
    def length_ratio(self) -> float:
        dev = self.data("dev")
        # EOS in them too, as in all that is generated
        targets = [[*dev.pieces.encode(line), EOS] for line in dev.references]
        return pybeam.stopping.length_ratio(dev.sources, targets)

    def tasks(self, split: str, width: int, search: Search) -> list[Task]:
        """A row for each reading of the search, which is decoded for the first of them."""
        found: list[tuple[list[pybeam.Result], Stats]] = []

        def read(name: str, r: float) -> dict:
            if not found:
                model = self._setup.networks.ours("example")
                decoder = pybeam.Decoder(model, search.algorithm, pybeam.Fifo(N))
                results = decoder.decode(self.data(split).sources)
                found.append((results, decoder.stats))
            results, stats = found[0]
            steps = self.steps[split, name, r, width] = [result.steps for result in results]
            return {
                **measures(self.data(split), results, search.readings[name, r]),
                "steps": statistics.mean(steps),
                "expansions": stats.expansions,
            }

        return [
            Task(
                split,
                name,
                lambda name=name, r=r: read(name, r),
                more={"r": r, "width": width, "lines": self.lines(split)},
            )
            for name, r in search.readings
        ]


def measures(data: Corpus, results: list[pybeam.Result], scoring) -> dict:
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
        name = row["system"]
        if name not in best or row["BLEU"] > best[name]["BLEU"]:
            best[name] = row
    return best


def tuning(rows: list[dict]) -> list[dict]:
    """Table 2: the best width of every reward."""
    own = [row for row in rows if row["system"] in (OPTIMAL, BOUNDED)]
    table = []
    for r in sorted({row["r"] for row in own}):
        best = max((row for row in own if row["r"] == r), key=lambda row: row["BLEU"])
        table.append({name: best[name] for name in ("r", "BLEU", "length ratio", "width")})
    return table


def final(best: dict[str, dict], rows: list[dict]) -> list[dict]:
    """Table 3: the best setting of every decoder on dev, and what it makes of the test set."""
    test = {row["system"]: row for row in rows}
    return [
        {
            "system": name,
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
    steps: dict[tuple[str, str, float, int], list[int]], pairs: list[tuple[tuple, tuple]]
) -> list[dict]:
    """How often the first of a pair of decoders ends a line of dev earlier or later than the second."""
    rows = []
    for ours, theirs in pairs:
        for width in sorted({width for *_, width in steps}):
            both = [steps.get(("dev", *own, width)) for own in (ours, theirs)]
            if None in both:
                continue
            ahead = [other - own for own, other in zip(*both, strict=True)]
            row = {"case": "dev", "system": ours[0], "r": ours[1], "width": width}
            row |= {"lines": len(ahead), "beside": theirs[0]}
            row |= {"earlier": sum(a > 0 for a in ahead), "later": sum(a < 0 for a in ahead)}
            rows.append(row | {"mean steps ahead": statistics.mean(ahead)})
    return rows


def stopping(setup: Setup) -> Iterator[list[Task]]:
    """When to end a search: the figures and tables of Huang et al. 2017."""
    bench = Bench(setup)
    widths, rewards = ((1, 2), (0.5,)) if setup.is_tiny else (WIDTHS, REWARDS)

    def measured(split: str) -> list[dict]:
        return [row for row in setup.journal.own_rows if "BLEU" in row and row["case"] == split]

    for width in widths:
        for search in searches(width, rewards, bench.length_ratio, None):
            yield bench.tasks("dev", width, search)
    best = best_on_dev(measured("dev"))
    for name, row in best.items():
        for search in searches(row["width"], (row["r"],), bench.length_ratio, name):
            kept = {key: value for key, value in search.readings.items() if key[0] == name}
            yield bench.tasks("test", row["width"], replace(search, readings=kept))
    shrinking = (NORM, 0.0)  # as many steps whatever ranks its hypotheses
    pairs = [((OPTIMAL, 0.0), (TOP, 0.0)), ((OPTIMAL, 0.0), shrinking)]
    if BOUNDED in best:
        pairs.append(((BOUNDED, best[BOUNDED]["r"]), shrinking))
    comparison = compared(bench.steps, pairs)
    for row in comparison:
        setup.journal.add(row)
    for rows in (tuning(measured("dev")), final(best, measured("test")), comparison):
        if rows:
            setup.journal.say("\n" + table(rows))
