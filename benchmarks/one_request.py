"""Latency of one request at a time, beside CTranslate2, every system in a process of its own.

Systems take turns. In its turn a system decodes all lines, one after the other, while the others sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from benchmarks import one_row
from benchmarks.corpus import Corpus
from benchmarks.latency import percentiles
from benchmarks.peers import PEER
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.worker import System, Worker

PEER_TYPES, TYPES = ("float32", "int8"), ("float32", "bfloat16", "int8")
PERCENTS = (50, 95)
# seconds after which the threads of the system before have stopped spinning
SETTLE = 0.3


@dataclass(frozen=True)
class Search:
    """How much of it is measured."""

    lines: int
    repeats: int = 3


PLAN: dict[str, dict[str, Search]] = {
    "example": {
        "greedy": Search(60),
        "fixed-5": Search(60),
        "variable-5": Search(60),
        "variable-50": Search(60, repeats=1),
    },
    "widened": {
        "greedy": Search(8, repeats=2),
        "fixed-5": Search(8, repeats=2),
        "variable-5": Search(8, repeats=2),
        "variable-50": Search(4, repeats=1),
    },
}


def one_request(setup: Setup) -> Iterator[list[Task]]:
    """Latency of one request at a time, beside CTranslate2; what a step of one row costs."""
    for network, searches in PLAN.items():
        # the large network with one thread would take as long as all the rest
        numbers = (setup.threads, 1) if network == "example" else (setup.threads,)
        # every system is a process
        numbers = (1,) if setup.is_tiny else numbers
        for threads in dict.fromkeys(numbers):
            workers = _workers(setup, network, threads)
            own = systems(threads)
            # next to nothing: one of each library
            own = [own[0], own[-1]] if setup.is_tiny else own
            for name, search in searches.items():
                case = name if network == "example" else f"{network}-{name}"
                yield _tasks(setup, case, name, search, threads, workers, own)
    yield from one_row.tasks(setup)


def systems(threads: int) -> list[System]:
    """The peer's come first: ours are compared with them."""
    # with one thread nobody waits
    policies = (None,) if threads == 1 else (None, "passive")
    return [
        System(library, dtype, policy)
        for library, dtypes in ((PEER, PEER_TYPES), ("pybeam", TYPES))
        for dtype in dtypes
        for policy in policies
    ]


def _workers(setup: Setup, network: str, threads: int) -> Callable[[System], Worker]:
    """Workers by system; each is started when it is first needed."""

    @cache
    def worker(system: System) -> Worker:
        # made here once, for all
        setup.networks.directory(network)
        options = {
            "network": network,
            "threads": threads,
            "folder": str(setup.folder),
            "widened": dict(setup.size.widened),
            "data": str(setup.data) if setup.data else None,
        }
        return Worker(system, options)

    return worker


def _tasks(
    setup: Setup,
    case: str,
    name: str,
    search: Search,
    threads: int,
    workers: Callable[[System], Worker],
    measured: list[System],
) -> list[Task]:
    @cache
    def data() -> Corpus:
        return setup.corpus().spread(setup.lines or search.lines)

    latencies: dict[System, Latency] = {}
    for system in measured:
        latencies[system] = Latency(
            lambda sources, system=system: workers(system).decode(name, sources), data, latencies
        )
    return [
        Task(case, str(system), latency, search.repeats, more={"threads": threads})
        for system, latency in latencies.items()
    ]


class Latency:
    """The turns of one system; all requests of all turns count.

    Args:
        decode: sources to what `worker.Server.decode` returns.
        systems: this one and those it is compared with.
    """

    def __init__(
        self,
        decode: Callable[[list[list[int]]], dict],
        data: Callable[[], Corpus],
        systems: Mapping[System, Latency],
    ) -> None:
        self._decode, self._data, self._systems = decode, data, systems
        self.seconds: list[float] = []
        self.outputs: list[list[int]] = []
        self._turns = 0

    @property
    def median(self) -> float:
        return percentiles(self.seconds, (50,))["p50_ms"]

    def __call__(self) -> dict:
        data = self._data()
        time.sleep(SETTLE)
        answer = self._decode(data.sources)
        self.seconds += answer["seconds"]
        self.outputs = answer["outputs"]
        self._turns += 1
        num = len(data.sources)
        # with the token that ends an output, which takes a step too
        tokens = sum(len(output) + 1 for output in self.outputs) / num
        mean = 1e3 * sum(self.seconds) / len(self.seconds)
        row = {
            "lines": num,
            "repeats": self._turns,
            **percentiles(self.seconds, PERCENTS),
            "tokens": tokens,
            "ms/token": mean / tokens,
        }
        if None not in answer["steps"]:
            steps = sum(answer["steps"]) / num
            row |= {"steps": steps, "ms/step": mean / steps}
        return row | self._beside_others() | {"BLEU": data.bleu(self.outputs)}

    def _beside_others(self) -> dict:
        """Our median as a share of the peer's, whose threads wait as is better for it."""
        measured = {system: other for system, other in self._systems.items() if other.seconds}
        row = {}
        for dtype in PEER_TYPES:
            theirs = [s.median for system, s in measured.items() if _is_peer(system, dtype)]
            if theirs:
                row[f"of {PEER} {dtype}"] = self.median / min(theirs)
        first = next(iter(measured.values()))
        same = [a == b for a, b in zip(self.outputs, first.outputs, strict=True)]
        return row | {"same outputs": sum(same) / len(same)}


def _is_peer(system: System, dtype: str) -> bool:
    return (system.library, system.dtype) == (PEER, dtype)
