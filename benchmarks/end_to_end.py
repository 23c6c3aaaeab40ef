"""Whole translations: the methods of Yang et al. 2020 beside `transformers.generate`.

Cases are NETWORK-WIDTH, NETWORK-steps, NETWORK-latency, on a GPU example-agreement and NETWORK-reports and,
on a CPU, NETWORK-memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import pybeam
from benchmarks import agreement, latency, memory, step_time, translation
from benchmarks.peers import GENERATE, PEER
from benchmarks.plans import methods, sweep
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.translation import MAX_LENGTH, Case, CTranslate2Process, Ours, Transformers, fixed

# what generate takes at a larger width on a CPU tells nothing new and lasts for minutes
MAX_GENERATE_WIDTH = {"cpu": 10, "cuda": 128}

# sources that are decoded one after another
ALONE_LINES = 32
# they take a tenth of a second
REPORTS_REPEATS = 5


def reports(network: str, setup: Setup) -> dict[str, Case]:
    """Many sources, and one after another, with so many steps between two reports to the host."""
    lines, n = setup.size.lines_of(network, 5), setup.size.n_of(network, 5)
    # a CPU knows no other number
    numbers = (1, 2, 4, 8) if setup.device == "cuda" else (1,)

    def systems(n: int, searches: dict[str, object]) -> dict[str, Ours]:
        return {
            f"{name}, {number}": Ours(search, pybeam.Fifo(n), reports_every=number)
            for name, search in searches.items()
            for number in numbers
        }

    beam = {"beam of 5": fixed(5)}
    many = systems(n, beam | {"greedy": pybeam.greedy(max_length=MAX_LENGTH)})
    repeats = 1 if setup.is_tiny else REPORTS_REPEATS
    alone = Case(systems(1, beam), ALONE_LINES, network, repeats, is_spread=True)
    return {
        f"{network}-reports": Case(many, lines, network, repeats),
        f"{network}-reports-alone": alone,
    }


def end_to_end(setup: Setup) -> Iterator[list[Task]]:
    """Whole translations: throughput, latency under load, time of a step, memory, energy.

    Step times come first: they are soon known and say most.
    """
    size = setup.size
    # a GPU's peers, which next to nothing tries out on a CPU
    is_like_gpu = setup.device == "cuda" or setup.is_tiny
    for network in size.networks:
        yield step_time.tasks(setup, network)
    if is_like_gpu:
        yield agreement.tasks(setup)
        for network in size.networks:
            yield from translation.cases(setup, reports(network, setup))
    for network in size.networks:
        for width in size.widths:
            n = size.n_of(network, width)
            systems: dict = dict(methods(width, n))
            if width <= MAX_GENERATE_WIDTH[setup.device]:
                systems[GENERATE] = Transformers(width, n)
            if is_like_gpu and width == size.widths[0]:
                systems[f"{GENERATE}, greedy"] = Transformers(1, n)
                systems[f"compiled {GENERATE}, greedy"] = Transformers(1, n, "static")
                systems[f"{PEER} beam_size={width}"] = CTranslate2Process(width, n)
            lines = size.lines_of(network, width)
            case = Case(systems, lines, network, size.repeats)
            yield from translation.cases(setup, {f"{network}-{width}": case})
    width, n = size.widths[-1], size.n_of("example", size.widths[-1])
    lines = size.lines_of("example", width)
    swept = Case(sweep(width, n), lines, repeats=1)
    yield from translation.cases(setup, {f"example-{width}-sweep": swept})
    if setup.device == "cpu":
        for network in size.networks:
            yield memory.tasks(setup, network)
    for network in size.networks:
        # where requests take seconds, latency is measured only if asked for
        if network in size.latency_of or f"{network}-latency" in setup.only:
            yield latency.tasks(setup, network)
