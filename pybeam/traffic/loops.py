"""When requests are sent: at moments of their own (an open loop), or behind answers (a closed loop).

In an open loop requests come when they are due, whatever the server does. Latency runs from then, not from
when the request was sent, so a server that falls behind pays for all that it holds up.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pybeam.traffic.clients import Answer, Clients

# is told when a request was due, in seconds from the start of the loop, and what became of it
Note = Callable[[float, Answer], None]


@dataclass
class Window:
    """Which requests are sent, and which of them count.

    Attributes:
        warm_up: seconds in which requests do not count.
        seconds: length of the time behind it.
        requests: most requests that count.
    """

    warm_up: float = 0.0
    seconds: float = math.inf
    requests: float = math.inf
    _num_counted: int = 0

    def takes(self, moment: float) -> bool:
        """Whether a request is still sent that is due at this moment; it counts from then on."""
        if moment > self.warm_up + self.seconds or self._num_counted >= self.requests:
            return False
        self._num_counted += self.counts(moment)
        return True

    def counts(self, moment: float) -> bool:
        """Whether a request that was due at this moment counts."""
        return moment >= self.warm_up


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Yield moments of a Poisson process, without end. Gaps are exponential with mean ``1 / rate``."""
    generator = random.Random(seed)
    return itertools.accumulate(generator.expovariate(rate) for _ in itertools.count())


async def open_loop(
    clients: Clients, contents: Iterable[bytes], due: Iterable[float], note: Note
) -> None:
    """Send each request when it is due, in seconds from now, until either ends."""
    start = time.perf_counter()

    async def one(content: bytes, moment: float) -> None:
        note(moment, await clients.ask(content, start + moment))

    async with asyncio.TaskGroup() as group:
        for moment, content in zip(due, contents, strict=False):
            await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
            group.create_task(one(content, moment))


async def closed_loop(
    clients: Clients, contents: Iterable[bytes], num_clients: int, window: Window, note: Note
) -> None:
    """Let each client send its next request when it has the last answer. `contents` have no end."""
    following, start = iter(contents), time.perf_counter()

    async def one() -> None:
        while window.takes(moment := time.perf_counter() - start):
            note(moment, await clients.ask(next(following), start + moment))

    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(one())
