"""Whether a GPU translates as a CPU does, token for token, and whether decoders leave each other alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import islice

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.translation import NORMALISED

LINES, WIDTH, N, MAX_LENGTH = 64, 5, 16, 64
# Sums have another order on a GPU, so outputs that a CPU finds equally good are both right: their final
# scores differ by no more than this. A tie within a search may lead to another beam, whose best output is
# another one; so few lines may differ by more.
TIE, MOST_DIFFERENT = 1e-3, 1
SCHEDULES = {"Fifo": pybeam.Fifo(N), "Streaming": pybeam.Streaming(N, 1 / 6)}


class Disagreement(Exception):
    """The device gives other outputs than it should."""


def tasks(setup: Setup) -> list[Task]:
    """Lines of the example model in float32. Rows with an error disagree."""
    model = _Models(setup)
    case = "example-agreement"
    alike = [
        Task(case, name, lambda schedule=schedule: _compared(setup, model, schedule))
        for name, schedule in SCHEDULES.items()
    ]
    return [*alike, Task(case, "two decoders", lambda: _two_decoders(setup, model))]


class _Models:
    """The model on the device, and a decoder that says what is right.

    On a GPU that is one on the CPU. On a CPU, where this is tried out, it is the reference backend.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    @property
    def own(self):
        return self._setup.networks.ours("example", "float32")

    def oracle(self) -> pybeam.Decoder:
        if self._setup.device == "cpu":
            return pybeam.Decoder(self.own, _search(), backend="reference")
        model = pybeam.load_model(
            self._setup.networks.directory("example"), device="cpu", dtype="float32"
        )
        return pybeam.Decoder(model, _search())


def _search() -> pybeam.Algorithm:
    return pybeam.variable_beam(WIDTH, 1.6, 3, max_length=MAX_LENGTH, scoring=NORMALISED)


def _sources(setup: Setup) -> list[list[int]]:
    return setup.corpus().spread(setup.lines or LINES).sources


def _compared(setup: Setup, models: _Models, schedule: pybeam.Schedule) -> dict:
    sources, oracle = _sources(setup), models.oracle()
    decoder = pybeam.Decoder(models.own, _search(), schedule)
    wanted = _best(oracle.decode(sources))
    # the second time all steps of a GPU are graphs
    return {
        name: value
        for turn in ("first", "replayed")
        for name, value in agreement(
            sources, _best(decoder.decode(sources)), wanted, _scores(oracle), turn
        ).items()
    }


def agreement(
    sources: Sequence[list[int]],
    found: Sequence[list[int]],
    wanted: Sequence[list[int]],
    scores: Callable[[list[pybeam.Request]], list[float]],
    turn: str,
) -> dict:
    """Count outputs that are the same, and those that are as good by `scores`.

    Raises:
        Disagreement: more than `MOST_DIFFERENT` are neither.
    """
    apart = [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]
    both = [(found[i], wanted[i]) for i in apart]
    requests = [
        pybeam.Request(sources[i], target=output)
        for i, pair in zip(apart, both, strict=True)
        for output in pair
    ]
    score = scores(requests) if requests else []
    gaps = [abs(a - b) for a, b in zip(score[::2], score[1::2], strict=True)]
    different = [i for i, gap in zip(apart, gaps, strict=True) if not gap <= TIE]
    if len(different) > MOST_DIFFERENT:
        i = different[0]
        raise Disagreement(
            f"{turn}: {len(different)} of {len(sources)} outputs differ; that of line {i} is {found[i]} and "
            f"must be {wanted[i]}"
        )
    return {
        "lines": len(sources),
        f"same, {turn}": len(sources) - len(apart),
        f"as good, {turn}": len(apart) - len(different),
        f"different, {turn}": len(different),
    }


def _scores(oracle: pybeam.Decoder) -> Callable[[list[pybeam.Request]], list[float]]:
    def scores(requests: list[pybeam.Request]) -> list[float]:
        return [result.hypotheses[0].final_score for result in oracle.decode(requests)]

    return scores


def _best(results: Sequence[pybeam.Result]) -> list[list[int]]:
    for result in results:
        if result.error:
            raise result.error
    return [list(result.hypotheses[0].tokens) for result in results]


def _two_decoders(setup: Setup, models: _Models) -> dict:
    """Two decoders in turn, with graphs of their own; then one is dropped while the other is in a stream."""
    sources, model = _sources(setup), models.own
    one = pybeam.Decoder(model, _search(), pybeam.Fifo(N))
    other = pybeam.Decoder(model, pybeam.greedy(max_length=MAX_LENGTH), pybeam.Fifo(N))
    wanted = _best(one.decode(sources))
    for _ in range(2):
        other.decode(sources)
        _expect(_best(one.decode(sources)), wanted, "behind another decoder's turn")
    stream = one.stream(sources)
    results = list(islice(stream, len(sources) // 3))
    del other
    gc.collect()
    results += stream
    results.sort(key=lambda result: result.index)
    _expect(_best(results), wanted, "while another decoder was dropped")
    return {"lines": len(sources), "same, replayed": len(sources)}


def _expect(found: list[list[int]], wanted: list[list[int]], when: str) -> None:
    num = sum(a != b for a, b in zip(found, wanted, strict=True))
    if num:
        raise Disagreement(f"{num} of {len(wanted)} outputs changed {when}")
