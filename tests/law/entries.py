"""How the requests of a case are handed in, by each entry, and what happens to one of them meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import pytest

import pybeam
from law.case import BAD, NUM_ALTERNATIVES, Case
from pybeam.corpus import Worker
from pybeam.engine.arrivals import Arrivals
from pybeam.engine.failures import Interrupted
from pybeam.engine.workspace import Workspace
from pybeam.request import Partial, Result
from pybeam.serving import Certain, Service
from pybeam.serving.ticket import Ticket
from support.laws import CheckedEngine
from support.triton_process import is_interpreting

NO_TOKEN = 10**6
# more than any request takes, in a slow interpreter, too
SECONDS = 900.0 if is_interpreting() else 30.0


class Gone(Exception):
    """Why a request leaves."""


LEAVES: dict[str, type[Exception]] = {"cancel": Gone, "interrupted": Interrupted}


@dataclass
class Outcome:
    """The answers to the requests.

    Attributes:
        results: by the request's position; None: it was cancelled.
        partials: what was certain of each, one after another.
        decoders: those that decoded, for a look at what they left behind.
        found: what the engines of a service gave it for each, of which callers may see less.
    """

    results: dict[int, Result | None] = field(default_factory=dict)
    partials: dict[int, list[list[int]]] = field(default_factory=dict)
    decoders: list[pybeam.Decoder] = field(default_factory=list)
    found: dict[int, Result] = field(default_factory=dict)

    def add(self, index: int, result: Result | None) -> None:
        assert index not in self.results, "a request has two results"
        self.results[index] = result


class Leaving(Arrivals):
    """Requests of which one leaves before a step, the third one if nothing else is said."""

    def __init__(
        self, requests: list[pybeam.Request], index: int, error: Exception, step: int = 3
    ) -> None:
        self._requests = iter(list(enumerate(requests)))
        self._index, self._error, self._step = index, error, step
        self._num_passes = 0

    def next(self, may_wait: bool) -> tuple[int, Any] | None:
        return next(self._requests, None)

    def between_steps(self, load: Any) -> dict[int, Exception]:
        self._num_passes += 1
        return {self._index: self._error} if self._num_passes == self._step else {}


def handed_in(case: Case, requests: list[pybeam.Request]) -> list[pybeam.Request]:
    """The requests of the case, one of which is wrong if that is the event."""
    if case.event != "bad request":
        return requests
    wrong = dataclasses.replace(requests[BAD], prefix=[NO_TOKEN])
    return [wrong if i == BAD else request for i, request in enumerate(requests)]


def run(case: Case, requests: list[pybeam.Request], targets: list[list[int]] | None) -> Outcome:
    """Decode by the case's entry; `targets` are for the entry "score"."""
    model = case.failing_model() if case.event == "model raises" else None
    with pytest.MonkeyPatch.context() as patch, gives_back(case, patch):
        patch.setattr("pybeam.decoder.Engine", CheckedEngine)
        decoder = case.decoder(model=model)
        outcome = Outcome(decoders=[decoder])
        if targets is not None:
            for result in decoder.score(requests, targets, on_error="return"):
                outcome.add(result.index, result)
        elif case.output == "alternatives":
            results = decoder.alternatives(requests, NUM_ALTERNATIVES, on_error="return")
            for result in results:
                outcome.add(result.index, result)
        else:
            ENTRIES[case.entry](case, decoder, requests, outcome)
    assert sorted(outcome.results) == list(range(len(requests)))
    return outcome


@contextlib.contextmanager
def gives_back(case: Case, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """With the event "memory given back", whenever nothing is in flight after two sources."""
    if case.event == "memory given back":
        patch.setattr("pybeam.engine.workspace.LOOK_AFTER", 2)

        def look(self: Workspace) -> None:
            self.is_too_large, self._num_taken = True, 0

        patch.setattr(Workspace, "_look", look)
    yield


def _decode(case: Case, decoder: pybeam.Decoder, requests: list, outcome: Outcome) -> None:
    for result in decoder.decode(requests, on_error="return"):
        outcome.add(result.index, result)


def _stream(case: Case, decoder: pybeam.Decoder, requests: list, outcome: Outcome) -> None:
    arriving: Any = requests
    if case.event in LEAVES:
        arriving = Leaving(requests, BAD, LEAVES[case.event]())
    for item in decoder.stream(arriving, partial=case.output == "partials"):
        if isinstance(item, Partial):
            assert item.index not in outcome.results, "a partial result comes behind the result"
            outcome.partials.setdefault(item.index, []).append(item.tokens)
        elif isinstance(item.error, Gone):
            outcome.add(item.index, None)
        else:
            outcome.add(item.index, item)


def _service(case: Case, decoder: pybeam.Decoder, requests: list, outcome: Outcome) -> None:
    engines = 1 if case.entry == "Service" else 2
    service = Service(
        decoder,
        engines=engines,
        processes=case.entry == "Service, two processes",
        max_step_seconds=2 * SECONDS,
    )
    group = service._groups.of(None)
    done = group.queue.done

    def hear(ticket: Ticket, result: Result, num_steps: int) -> None:
        outcome.found[ticket.index] = result
        done(ticket, result, num_steps)

    vars(group.queue)["done"] = hear
    service.start(warm_up=False)
    try:
        if case.output == "partials":
            asyncio.run(_all_streamed(case, service, requests, outcome))
        else:
            _submitted(case, service, requests, outcome)
    finally:
        service.close(timeout=SECONDS)
    outcome.decoders = [engine.decoder for engine in group._engines]
    assert not [engine for engine in group._engines if engine.thread.is_alive()]
    assert not group.queue.taken and not len(group.queue.waiting), "a ticket is left"
    assert not [engine for engine in group._engines if engine._tickets], "a ticket is left"


def _submitted(case: Case, service: Service, requests: list, outcome: Outcome) -> None:
    futures = [
        service.submit(request, client=str(i % 2), **options_of(case, i))
        for i, request in enumerate(requests)
    ]
    if case.event == "cancel":
        futures[BAD].cancel()
    if case.event == "interrupted":
        interrupt(service, futures[BAD].done)
    for i, future in enumerate(futures):
        try:
            outcome.add(i, future.result(SECONDS).result)
        except CancelledError:
            outcome.add(i, None)
        except Exception as error:
            outcome.add(i, Result(i, requests[i].id, [], "error", error=error))


def options_of(case: Case, index: int) -> dict[str, Any]:
    """The options of a request that takes the best so far."""
    is_taken = case.event == "interrupted" and index == BAD
    return dict(timeout=1e6, on_deadline="best") if is_taken else {}


def interrupt(service: Service, is_done: Callable[[], bool]) -> None:
    """Pretend that the deadline of a request passes as soon as an engine has it, if it is not done before."""
    queue, end = service._groups.of(None).queue, time.monotonic() + SECONDS
    while BAD not in queue.taken and not is_done():
        assert time.monotonic() < end, "no engine takes it"
        time.sleep(0)
    with queue.changed:
        if (ticket := queue.taken.get(BAD)) is not None:
            queue._let_leave(ticket, Interrupted())


async def _all_streamed(case: Case, service: Service, requests: list, outcome: Outcome) -> None:
    """Listen to all requests at once; the one that is cancelled is closed after its first event."""

    async def listen(i: int, stream: Any) -> None:
        try:
            async for event in stream:
                if isinstance(event, Certain):
                    outcome.partials.setdefault(i, []).append(event.tokens)
                    if case.event == "cancel" and i == BAD:
                        await stream.aclose()
                        outcome.add(i, None)
                        return
                    if case.event == "interrupted" and i == BAD:
                        interrupt(service, stream._future.done)
                else:
                    outcome.add(i, event.result)
        except Exception as error:
            outcome.add(i, Result(i, requests[i].id, [], "error", error=error))

    streams = [service.stream(request, **options_of(case, i)) for i, request in enumerate(requests)]
    await asyncio.gather(*(listen(i, stream) for i, stream in enumerate(streams)))


def _worker(case: Case, decoder: pybeam.Decoder, requests: list, outcome: Outcome) -> None:
    """Lines are numbers of requests; the first comes again at the end, and is not decoded again."""

    def request_of(line: tuple[bytes, ...]) -> tuple[pybeam.Request, str]:
        return requests[int(line[0])], ""

    worker = Worker(decoder, request_of, lambda result: "", memory=9)
    lines = [(str(i).encode(),) for i in range(len(requests))]
    if case.event == "cancel":
        # the caller goes away; what it has seen does not count
        stream = worker.stream(lines)
        next(stream)
        stream.close()
        worker = Worker(decoder, request_of, lambda result: "", memory=9)
    again: list[Result] = []
    for answer in worker.stream([*lines, lines[0]]):
        if answer.result.index == len(lines):
            again.append(answer.result)
        else:
            outcome.add(answer.result.index, answer.result)
    first = outcome.results[0]
    assert [r.hypotheses for r in again] == [first.hypotheses], "an equal line has another answer"


ENTRIES: dict[str, Callable[[Case, pybeam.Decoder, list, Outcome], None]] = {
    "decode": _decode,
    "stream": _stream,
    "Service": _service,
    "Service, two engines": _service,
    "Service, two processes": _service,
    "Worker": _worker,
}
