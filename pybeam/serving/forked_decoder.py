"""`ForkedDecoder`: a decoder that computes in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from pybeam.decoder import Decoder
from pybeam.engine.arrivals import Arrivals, IterableArrivals
from pybeam.engine.engine import StreamOptions
from pybeam.engine.stats import Stats
from pybeam.request import Partial, Request, Result
from pybeam.serving.engine_process import (
    Answer,
    Beginning,
    HungUp,
    Report,
    in_both,
    packed_request,
    receive,
    send,
)
from pybeam.serving.errors import EngineCrashed
from pybeam.serving.fork_server import ForkServer, hang_up

# processes that may end one after another, before they have decoded anything, until callers hear of it
MOST_LOSSES = 3
# the second of them is followed after this time, each later one after twice as long, at most so long
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class ForkedDecoder(Decoder):
    """A decoder whose streams run in another process, one at a time.

    Its questions between two steps are put to the `Arrivals` here, which need not know where it runs. If the
    process ends while it has requests, the stream raises `EngineCrashed`. The next one has a new process.

    Args:
        decoder: of which the other process has a copy.
        server: makes processes that decode, see `serve_streams`.
        number: of the decoder there.

    Attributes:
        number: the same.
    """

    def __init__(self, decoder: Decoder, server: ForkServer, number: int) -> None:
        vars(self).update(vars(decoder), stats=Stats(), _idle=[])
        self._server, self.number = server, number
        self._connection: Connection | None = None
        self._pid = self._maker = self._num_losses = 0

    def kill(self) -> None:
        """End the process in the middle of its step. The stream hears of it; any thread may call it."""
        if self._connection is not None:
            with suppress(ProcessLookupError):  # it has ended, which the stream has not heard yet
                os.kill(self._pid, signal.SIGKILL)

    def release(self) -> None:
        """End the process, and so free what it keeps between calls. The next stream has a new one."""
        if self._connection is not None:
            # a copy of this program that ends leaves the engine to its maker
            end = hang_up if self._maker == os.getpid() else Connection.close
            end(self._connection)
            self._connection = None

    def _run(
        self, requests: Iterable[Any] | Arrivals, stats: Stats, options: StreamOptions
    ) -> Generator[list[Result | Partial]]:
        arrivals = requests if isinstance(requests, Arrivals) else IterableArrivals(requests)
        beginning = Beginning(options.log_probs, options.partials, stats)
        questions = _Questions(arrivals, in_both(self.algorithm))
        connection: Connection | None = None
        end: Exception | bool | None = None
        try:
            while end is None:
                try:
                    if connection is None:
                        connection = self._begin(beginning)
                    report: Report = receive(connection)
                    vars(stats).update(vars(report.stats))
                    if items := questions.read(report):
                        self._num_losses = 0
                        yield items
                    end = report.end
                    if end is None:
                        if refused := questions.ask(report):
                            yield refused
                        send(connection, questions.answer)
                        questions.are_answered()
                except (HungUp, OSError) as error:
                    self._lose()
                    if questions.ids or self._num_losses >= MOST_LOSSES:
                        raise EngineCrashed(
                            f"the process {self._pid} that decoded the request has ended; send it again"
                        ) from error
                    connection = None
        finally:
            if end is None:
                self.release()
        if isinstance(end, Exception):
            raise end

    def _begin(self, beginning: Beginning) -> Connection:
        """Begin a stream in the process. Returns the connection to it."""
        if self._connection is None:
            self._connection, self._pid = self._server.fork(self.number)
            self._maker = os.getpid()
        send(self._connection, beginning)
        return self._connection

    def _lose(self) -> None:
        """Note that the process has ended, and pause if another had before it did anything."""
        self.release()
        if self._num_losses:
            # many may be lost, and a float is not endless
            num_doubled = min(self._num_losses - 1, 30)
            time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**num_doubled))
        self._num_losses += 1


class _Questions:
    """The questions that a process asks of the arrivals of its stream.

    Args:
        arrivals: answer them.
        known: what both processes have, of `in_both`.

    Attributes:
        ids: of the requests that the process has, by index.
        answer: to its last questions.
    """

    def __init__(self, arrivals: Arrivals, known: list[Any]) -> None:
        self._arrivals, self._known = arrivals, known
        self.ids: dict[int, Any] = {}
        self.answer = Answer({}, [])
        self._new_ids: dict[int, Any] = {}

    def read(self, report: Report) -> list[Result | Partial]:
        """Pass on what a report says. Returns what the stream has given."""
        now = time.monotonic()
        for phase, indices, at in report.entered:
            self._arrivals.enter(phase, indices, now - at)
        return [self._own(item) for item in report.items]

    def ask(self, report: Report) -> list[Result | Partial]:
        """Find the answer to a report; what a lost process did not hear comes first.

        Returns what becomes of requests that cannot be sent.
        """
        leaving: Mapping[int, Exception] = {}
        if report.load is not None:
            leaving = self._arrivals.between_steps(report.load)
        arrived, refused = self.answer.arrived, list[Result | Partial]()
        is_last = False
        while len(arrived) < report.wanted:
            waits = report.waits and not (arrived or refused)
            found = self._arrivals.next(waits)
            if found is None:
                is_last = waits
                break
            index, request = found[0], Request.of(found[1])
            try:
                plain = request if request.id is None else replace(request, id=None)
                content = packed_request(plain, self._known)
            # whatever a class of the caller does
            except Exception as error:
                problem = TypeError(
                    f"the request cannot be sent to the process that decodes: {error}; leave out what does "
                    "not pickle, or let threads decode"
                )
                refused.append(Result(index, request.id, [], "error", error=problem))
                continue
            self._new_ids[index] = request.id
            arrived.append((index, content, self._arrivals.watch(index), bool(plain.processors)))
        self.answer = Answer(leaving, arrived, is_last)
        return refused

    def are_answered(self) -> None:
        """Note that the process has the answer."""
        self.ids |= self._new_ids
        self.answer, self._new_ids = Answer({}, []), {}

    def _own(self, item: Result | Partial) -> Result | Partial:
        """Give an item the id of its request."""
        own = self.ids.pop(item.index) if isinstance(item, Result) else self.ids[item.index]
        return item if own is None else replace(item, id=own)
