"""Many cores: how much a server would answer with 16 or 64 of them, in a simulation from measured costs.

Queue, turns and deadlines are the real ones, on a virtual clock (`simulated_service.py`). The steps and the
front take what was measured. The simulation assumes that

* each engine has a core, and its steps take as long as those of two engines on two cores: memory and caches
  are shared by no more;
* the front has a core, and each request takes of it what it took of the front of two engine processes with 64
  clients, half before the request is decoded;
* requests come as a Poisson process, and are as long as lines of the corpus.

So it tells what one queue and one front make of many engines, and nothing of the memory of a real machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.admission import Bench
from benchmarks.latency import percentiles
from benchmarks.service import MANY_CLIENTS
from benchmarks.setup import Setup
from benchmarks.simulated_service import (
    RESULTS,
    WIDTH,
    Costs,
    Lines,
    Sent,
    Simulation,
    capacity,
)
from benchmarks.tasks import Task
from pybeam.serving.ticket import Ticket

CORES = (4, 16, 64)
LOADS = (0.5, 0.8)
SECONDS, TIMEOUT = 3.0, 60.0
Lengths = Sequence[tuple[int, int]]


def cores(setup: Setup) -> Iterator[list[Task]]:
    """Servers of many cores, in a simulation: what one queue and one front make of many engines."""
    bench = Bench(setup)
    seconds = 0.2 if setup.is_tiny else SECONDS
    front = _front()
    for number in CORES[:1] if setup.is_tiny else CORES:
        for load in LOADS:
            yield [
                Task(
                    "cores",
                    f"{number} cores{name}",
                    partial(_row, bench, number, load, one, seconds),
                    more={"load": load},
                )
                for name, one in (("", front), (", engines alone", 0.0))
            ]


def _front() -> float:
    """Return the seconds that a front computes for a request: HTTP, and threads that speak with engines."""
    rows = json.loads((RESULTS / "service-cpu.json").read_text())["rows"]
    system, case = "pybeam int8, fixed, 2 processes", f"closed-{WIDTH}"
    wanted = {"case": case, "system": system, "clients": MANY_CLIENTS}
    return next(row["cpu_ms"] for row in rows if wanted.items() <= row.items()) / 1e3


def _row(bench: Bench, *server: Any) -> dict:
    # lines are decoded when the first row is measured
    return row(*server, bench.lengths)


def row(number: int, load: float, front: float, seconds: float, lengths: Lengths) -> dict:
    """Simulate a server of so many cores, of which the front has one, at a share of what it can answer."""
    costs, engines = Costs.measured(threads=1), number - 1
    can = engines * capacity(costs, lengths)
    rate = load * (min(can, 1 / front) if front else can)
    requests = Lines(lengths).poisson(rate, seconds, TIMEOUT)
    simulation = FrontedSimulation(costs, engines, front=front)
    simulation.run(requests)
    done = [one.answered - one.at for one in requests if one.end == "made"]
    return {
        "engines": engines,
        "engines can/s": can,
        "req/s": rate,
        "front ms": 1e3 * front,
        **percentiles(done, (50, 99)),
        "front busy %": 100 * simulation.front_seconds / seconds,
        "not answered": len(requests) - len(done),
    }


@dataclass
class FrontedSimulation(Simulation):
    """A service behind a front, through which requests and answers go one after the other.

    Attributes:
        front: seconds that it computes for a request.
        front_seconds: those that it has computed.
    """

    front: float = 0.0
    front_seconds: float = 0.0
    _free_at: float = 0.0
    _through: set[int] = field(default_factory=set)

    def _submit(self, one: Sent) -> None:
        if id(one) in self._through:
            super()._submit(one)
        else:
            self._through.add(id(one))
            self._come(one, self._passed())

    def _ended(self, ticket: Ticket, one: Sent) -> None:
        super()._ended(ticket, one)
        one.answered = self._passed()

    def _passed(self) -> float:
        """Let half of a request through. Returns when it is."""
        self._free_at = max(self.now, self._free_at) + self.front / 2
        self.front_seconds += self.front / 2
        return self._free_at
