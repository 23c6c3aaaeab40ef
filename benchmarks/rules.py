"""Rules in Python beside the built-in rules that they repeat: variable_beam's pruning, huang_beam's stop and
finishing, the groups of diverse, and the plan of Batch.

Both search the same lines with the example translator, a batch at a time or one by one. One thread does all
of it, so that CPU seconds are those of the work. "times the first" is the share of the built-in rule's speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task, in_turn
from benchmarks.translation import MAX_LENGTH, NORMALISED
from pybeam.search.algorithms import Algorithm
from pybeam.study.rules import Beam, Candidates

LINES, ALONE = 256, 24
N = 64
WIDTHS = (5, 10, 50)
# what pages show at width 50; one for all widths, so that they can be compared
THRESHOLD, MAX_CANDIDATES = 1.6, 3
PENALTY, SIBLINGS = 0.7, 20


def few(candidates: Candidates, beam: Beam) -> None:
    candidates.keep &= (candidates.sibling_rank < MAX_CANDIDATES) | candidates.is_held


def near(candidates: Candidates, beam: Beam) -> None:
    counts = candidates.finishes | candidates.goes_on
    best = torch.where(counts, candidates.score, -torch.inf).amax(1, keepdim=True)
    best = torch.maximum(best, beam.best_finished)
    candidates.goes_on &= candidates.score > best - THRESHOLD


def hopeless(beam: Beam) -> torch.Tensor:
    best = beam.score.amax(1, keepdim=True)
    lengths = torch.minimum(beam.length + 1, beam.max_length), beam.max_length
    bound = torch.maximum(*[beam.final_score(best, length) for length in lengths])
    return beam.finished.gather(1, beam.n_best.long() - 1) >= bound


def narrow(candidates: Candidates, beam: Beam) -> None:
    candidates.goes_on &= torch.arange(candidates.score.shape[1]) < beam.width


def hamming(candidates: Candidates, beam: Beam) -> None:
    count = (candidates.token[..., None] == beam.earlier[:, None]).sum(-1)
    candidates.score -= PENALTY * count


class Everyone(pybeam.Batch):
    """`Batch` with a plan in Python."""

    def plan(
        self, depth: Tensor, num_rows: Tensor, waited: Tensor, limit: int | None = None
    ) -> Tensor:
        return num_rows > 0


def pairs(width: int) -> Iterator[tuple[str, Algorithm, Algorithm]]:
    """The name of each rule, the algorithm that has it, and the one to which it is written."""
    options = dict(max_length=MAX_LENGTH, scoring=NORMALISED)
    yield (
        f"pruning-{width}",
        pybeam.variable_beam(width, THRESHOLD, MAX_CANDIDATES, **options),
        pybeam.variable_beam(width, processors=[pybeam.rule(few, finish=near)], **options),
    )
    stop = pybeam.huang_beam(width, 0.6, 1.0, max_length=MAX_LENGTH)
    ruled = (pybeam.rule(stop=hopeless),)
    yield f"stop-{width}", stop, replace(stop, stop=pybeam.stopping.end(), processors=ruled)
    if width > WIDTHS[0]:
        return
    refilled = pybeam.optimal_beam(width, 0.6, 1.0, max_length=MAX_LENGTH)
    yield f"finish-{width}", stop, replace(refilled, processors=(pybeam.rule(finish=narrow),))
    grouped = pybeam.fixed_beam(width, max_length=MAX_LENGTH)
    diverse = pybeam.rule(hamming, siblings=SIBLINGS, groups=True)
    yield (
        f"diverse-{width}",
        pybeam.diverse(grouped, 2, PENALTY),
        replace(grouped, processors=(diverse,), num_groups=2),
    )
    yield f"plan-{width}", stop, stop


class Search:
    """A search of some lines of dev, `n` at once."""

    def __init__(
        self,
        setup: Setup,
        algorithm: Algorithm,
        n: int,
        schedule: type[pybeam.Batch] = pybeam.Batch,
    ) -> None:
        lines = setup.lines or (LINES if n > 1 else ALONE)
        self._sources = setup.corpus("dev").spread(lines).sources
        model = setup.networks.ours("example")
        self._decoder = pybeam.Decoder(model, algorithm, schedule(n))
        self._decoder.decode(self._sources[:8])

    def __call__(self) -> list[list[int]]:
        results = self._decoder.decode(self._sources)
        return [result.hypotheses[0].tokens if result.hypotheses else [] for result in results]


def rules(setup: Setup) -> Iterator[list[Task]]:
    """Rules and a plan in Python, beside the same rules in kernels."""
    for width in WIDTHS:
        for name, built_in, ruled in pairs(width):
            for n in (N, 1):
                own = Everyone if built_in is ruled else pybeam.Batch
                makers = {
                    "built in": partial(Search, setup, built_in, n),
                    "rule": partial(Search, setup, ruled, n, own),
                }
                yield in_turn(f"{name}-by-{n}", makers, threads=1)
