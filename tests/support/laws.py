"""Algorithms, schedules, sources and searches for tests that check laws."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.engine import Engine, StreamOptions
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream
from pybeam.engine.workspace import Workspace
from support.invariants import check_state

ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=15),
    "fixed": pybeam.fixed_beam(4, n_best=4, max_length=15),
    "fixed-ours": pybeam.variable_beam(4, n_best=4, max_length=15),
    "variable": pybeam.variable_beam(5, threshold=2.0, max_candidates=3, n_best=5, max_length=15),
    "local": pybeam.variable_beam(5, local_threshold=0.1, n_best=3, max_length=15),
    "power": pybeam.variable_beam(
        5, threshold=2.0, n_best=5, max_length=15, scoring=pybeam.scoring.power(0.7)
    ),
    "shrinking": pybeam.shrinking_beam(4, n_best=4, max_length=15),
    "optimal": pybeam.optimal_beam(4, 0.5, 1.5, n_best=2, max_length=15),
    "top finished": pybeam.shrinking_beam(4, max_length=15, stop=pybeam.stopping.top_finished()),
    "stochastic": pybeam.stochastic_beam(4, seed=3, max_length=15),
    "regrowing": pybeam.compat.opennmt.beam_search(4, n_best=2, max_length=15),
    "adaptive": pybeam.adaptive_jacobi(
        3, price=0.1, initialiser=pybeam.drafts.ngram_lookup(1), max_length=15
    ),
    "wide": pybeam.fixed_beam(70, n_best=70, max_length=4),
    "by step": pybeam.variable_beam([2, 7, 4], threshold=3.0, n_best=4, max_length=15),
}

CPU = torch.device("cpu")


def schedules(width: int) -> dict:
    return {
        "one by one": pybeam.Batch(1),
        "batch": pybeam.Batch(4),
        "batch of tokens": pybeam.Batch(tokens=9),
        "batch, budget": pybeam.Batch(6, row_budget=width + 2),
        "streaming": pybeam.Streaming(5),
        "streaming, late refill": pybeam.Streaming(12, 1 / 12),
        "streaming, early refill": pybeam.Streaming(8, 1 / 4),
        "streaming, flush": pybeam.Streaming(5, 0.5, flush=3),
        "streaming, impatient": pybeam.Streaming(5, 0.5, max_wait=2),
        "streaming, budget": pybeam.Streaming(3, row_budget=2 * width + 1, max_wait=3),
        "fifo": pybeam.Fifo(5),
        "fifo, lazy": pybeam.Fifo(6, 0.3),
        "fifo, tight budget": pybeam.Fifo(3, row_budget=width),
        "fifo, budget": pybeam.Fifo(3, row_budget=3 * width, max_wait=1),
        "fifo, small window": pybeam.Fifo(2, window=3),
    }


def shares(num: int) -> list:
    """Number so many parts of the schedules. `make test` runs the first one."""
    return [0, *(pytest.param(share, marks=pytest.mark.slow) for share in range(1, num))]


THIRDS = shares(3)


def some_schedules(name: str, share: int, num: int = len(THIRDS)) -> list:
    """A share of the schedules, another one for each algorithm."""
    every = list(schedules(ALGORITHMS[name].max_rows).values())
    return every[(share + list(ALGORITHMS).index(name)) % num :: num]


SOURCES = [[1] * (1 + i * 7 % 5) for i in range(17)]


class CheckedEngine(Engine):
    """An engine that asserts the state's invariants after every step."""

    def _advance(self) -> None:
        super()._advance()
        check_state(self._work.state)

    def stream(self, requests) -> Stream:
        return Stream(self.run(requests), CPU)


def decoded(model, algorithm, schedule, backend, requests=SOURCES, workspace=None, **options):
    """Decode with an engine that checks the state's invariants after every step."""
    workspace = workspace or Workspace(model, algorithm, backends.load(backend))
    engine = CheckedEngine(workspace, schedule, Stats(), StreamOptions(**options))
    return sorted(engine.stream(requests), key=lambda result: result.index)


def essence(results):
    return [(r.index, r.hypotheses, r.stop_reason, r.steps, r.expansions) for r in results]
