"""An engine process: it decodes what another process sends.

Both are copies of one program, and nobody else can write to the socket between them, so messages are pickled.
The engine speaks, the other process answers, and each waits for the other before it speaks again. So neither
can be stuck while both write. The engine goes on with its steps until the answer is there.
"""

from __future__ import annotations

import io
import pickle
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pybeam.decoder import Decoder
from pybeam.engine.admission import ENCODE_AHEAD
from pybeam.engine.arrivals import Arrivals, Phase, Watch
from pybeam.engine.schedule import LoadLevel, Schedule
from pybeam.engine.stats import Stats
from pybeam.request import Partial, Request, Result
from pybeam.search.algorithms import Algorithm

# see `Arrivals`: between two steps Python takes about a millisecond, for one that comes or is done or several
PATIENCE = 0.0005
# threads that read requests, and for how long an engine without others waits before it asks for more
READERS, READING_SECONDS = 2, 0.02


class Beginning(NamedTuple):
    """A stream begins; see `StreamOptions`. It goes on with the counts of the one before."""

    log_probs: bool
    partials: bool
    stats: Stats


class Report(NamedTuple):
    """The words of an engine.

    Attributes:
        items: the results and partial results of its stream.
        entered: phases that requests have entered, which ones, and when, on the system's monotonic clock.
        stats: of the stream.
        load: what it decodes, if it is between two steps.
        wanted: requests that it has room for.
        waits: whether it has nothing to do until one comes.
        end: None: the stream goes on; True: it is over; or the error that ended it.
    """

    items: list[Result | Partial]
    entered: list[tuple[Phase, list[int], float]]
    stats: Stats
    load: LoadLevel | None = None
    wanted: int = 0
    waits: bool = False
    end: Exception | bool | None = None


class Answer(NamedTuple):
    """The answer that an engine hears.

    Attributes:
        leaving: the requests that must leave, and why.
        arrived: those that it is to decode: index, the packed request, what is to be heard of it, and
            whether it may take long to be read.
        is_last: whether none will come, now that it waits.
    """

    leaving: Mapping[int, Exception]
    arrived: list[tuple[int, bytes, Watch, bool]]
    is_last: bool = False


def packed(message: object) -> bytes:
    """Return a message as bytes. Raises what its classes raise if they do not pickle."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


class HungUp(Exception):
    """The other process has ended, or wants nothing more."""


def send(connection: Connection, message: object) -> None:
    """Send a message. Raises HungUp."""
    content = packed(message)
    try:
        connection.send_bytes(content)
    except OSError as error:
        raise HungUp from error


def receive(connection: Connection) -> Any:
    """Wait for a message. Raises HungUp."""
    try:
        content = connection.recv_bytes()
    except (EOFError, OSError) as error:
        raise HungUp from error
    return pickle.loads(content)


def in_both(algorithm: Algorithm) -> list[Any]:
    """Return what both processes have of an algorithm: the fields of its processors, such as a catalogue."""
    own: list[Any] = [one for one in algorithm.processors if is_dataclass(one)]
    return [getattr(one, field.name) for one in own for field in fields(one)]


class RequestPickler(pickle.Pickler):
    """Writes requests: what both processes have as its place there, so that it is the same object again."""

    def __init__(self, file: io.BytesIO, known: Sequence[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = {id(one): place for place, one in enumerate(known)}

    def persistent_id(self, one: Any) -> int | None:
        return self._places.get(id(one))


class RequestUnpickler(pickle.Unpickler):
    """Reads what `RequestPickler` has written."""

    def __init__(self, file: io.BytesIO, known: Sequence[Any]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, place: int) -> Any:
        return self._known[place]


def packed_request(request: Request, known: Sequence[Any]) -> bytes:
    """Return a request as bytes; `known` is of `in_both`.

    Raises what its classes raise if they do not pickle.
    """
    source = request.source
    if isinstance(source, Tensor) and source.untyped_storage().nbytes() > source.nbytes:
        # a part of a batch would take the batch along
        request = replace(request, source=source.clone())
    if not request.processors:
        return packed(request)
    file = io.BytesIO()
    RequestPickler(file, known).dump(request)
    return file.getvalue()


class SentArrivals(Arrivals):
    """The requests that another process sends.

    Args:
        connection: to the other process.
        schedule: says how much room there is.
        known: what both processes have, of `in_both`.
        flags: `has_news`, `must_leave` and its own `has_read` of `ModelQueue`, in memory that both processes
            share.

    Attributes:
        stats: of the stream.
    """

    keeps_order = True
    patience = PATIENCE
    has_news: np.ndarray

    def __init__(
        self,
        connection: Connection,
        schedule: Schedule,
        known: Sequence[Any],
        flags: Sequence[np.ndarray],
    ) -> None:
        self._connection, self._schedule, self._known = connection, schedule, known
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self.has_news, self.must_leave, self._has_read = flags
        self._has_read[0] = False  # the process before may have ended
        self.stats = Stats()
        self._arrived: deque[tuple[int, Request]] = deque()
        # a grammar may take seconds, in which the steps of others go on
        self._reader = ThreadPoolExecutor(READERS, "pybeam requests")
        self._reading: dict[Future[Request], int] = {}
        self._watches: dict[int, Watch] = {}
        self._inside: set[int] = set()  # the stream
        self._leaving: dict[int, Exception] = {}
        self._items: list[Result | Partial] = []
        self._entered: list[tuple[Phase, list[int], float]] = []
        self._load: LoadLevel | None = None
        self._has_asked = self._is_over = False

    def next(self, may_wait: bool) -> tuple[int, Request] | None:
        self._take_read()
        if self._items or (may_wait and not self._arrived):
            self._hear()
        while may_wait and not (self._arrived or self._is_over):
            self._tell(wanted=self._room(LoadLevel()), waits=not self._reading)
            self._hear()
            if self._reading and not self._arrived:
                wait(self._reading, READING_SECONDS, FIRST_COMPLETED)
            self._take_read()
        if self._items:
            # what has left must not wait until the next ones are encoded
            self._tell()
        if not self._arrived:
            return None
        index, request = self._arrived.popleft()
        self._inside.add(index)
        return index, request

    def between_steps(self, load: LoadLevel) -> Mapping[int, Exception]:
        self._load = load
        self._take_read()
        if not self._inside and not self._arrived:
            return {}  # `next` is asked now, and tells the rest
        if self._has_asked and (self._items or self._poll.poll(0)):
            self._hear()
        if not self._has_asked:
            self._tell(wanted=self._room(load))
        leaving = {i: error for i, error in self._leaving.items() if i in self._inside}
        # those that have not begun will hear it when they have
        self._leaving = {i: e for i, e in self._leaving.items() if i in self._watches}
        return leaving

    def watch(self, index: int) -> Watch:
        return self._watches.pop(index)

    def enter(self, phase: Phase, indices: Iterable[int], ago: float = 0.0) -> None:
        self._entered.append((phase, list(indices), time.monotonic() - ago))

    def put(self, item: Result | Partial) -> None:
        """Take what the stream gives."""
        if isinstance(item, Result):
            self._inside.discard(item.index)
            # many requests are never watched
            self._watches.pop(item.index, None)
            self._leaving.pop(item.index, None)
            if item.error is not None:
                item = replace(item, error=portable(item.error))
        self._items.append(item)

    def end(self, error: Exception | None = None) -> None:
        """Say that the stream is over."""
        self._hear()
        self._tell(end=True if error is None else portable(error))

    def _room(self, load: LoadLevel) -> int:
        """The number of requests that may come now: all that have a place, or a few to encode together."""
        schedule = self._schedule
        if not (schedule.refills(load) and schedule.may_have_room(load)):
            return 0
        places = max(schedule.n - load.sources, min(ENCODE_AHEAD, schedule.n // 4))
        num_waiting = len(self._arrived) + len(self._reading) + len(self._inside) - load.sources
        return max(0, places - num_waiting)

    def _tell(self, **facts: Any) -> None:
        report = Report(self._items, self._entered, self.stats, self._load, **facts)
        send(self._connection, report)
        self._items, self._entered, self._load = [], [], None
        self._has_asked = report.end is None

    def _hear(self) -> None:
        if not self._has_asked:
            return
        answer: Answer = receive(self._connection)
        self._has_asked, self._is_over = False, answer.is_last
        self._leaving.update(answer.leaving)
        for index, request, watch, is_long in answer.arrived:
            self._watches[index] = watch
            if is_long:
                reading = self._reader.submit(self._read, request)
                self._reading[reading] = index
                reading.add_done_callback(self._note_read)
            else:
                self._take(index, partial(self._read, request))

    def _read(self, request: bytes) -> Request:
        read: Request = RequestUnpickler(io.BytesIO(request), self._known).load()
        return read

    def _note_read(self, _: Future[Request]) -> None:
        """End a call of many steps, so that the stream asks for what has been read."""
        # whoever settles the news looks at the first behind the second
        self._has_read[0] = True
        self.has_news[0] = True

    def _take_read(self) -> None:
        """Take the requests that have been read meanwhile."""
        self._has_read[0] = False
        for reading in [one for one in self._reading if one.done()]:
            self._take(self._reading.pop(reading), reading.result)

    def _take(self, index: int, read: Callable[[], Request]) -> None:
        try:
            self._arrived.append((index, read()))
        # whatever a class of the caller does
        except Exception as error:
            del self._watches[index]
            self._items.append(Result(index, None, [], "error", error=portable(error)))


def portable(error: Exception) -> Exception:
    """Return the error, or one that says the same if another process would not read it as it is."""
    # whatever the error's class does
    with suppress(Exception):
        read = pickle.loads(packed(error))
        if type(read) is type(error) and str(read) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def serve_streams(decoder: Decoder, flags: Sequence[np.ndarray], connection: Connection) -> None:
    """Decode one stream after another until the other process closes the connection.

    Args:
        decoder: of this process alone.
        flags, connection: see `SentArrivals`.
    """
    known = in_both(decoder.algorithm)
    with suppress(HungUp):
        while True:
            beginning: Beginning = receive(connection)
            arrivals = SentArrivals(connection, decoder.schedule, known, flags)
            try:
                log_probs, partials, before = beginning
                stream = decoder._start(arrivals, log_probs=log_probs, partials=partials)
                arrivals.stats = decoder.stats.continuing(before)
                for item in stream:
                    arrivals.put(item)
            except HungUp:
                raise
            except Exception as error:
                arrivals.end(error)
            else:
                arrivals.end()
