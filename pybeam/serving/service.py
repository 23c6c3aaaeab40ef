"""`Service`: models that decode requests of many callers, in threads of their own."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal, Unpack

from pybeam.decoder import Decoder
from pybeam.engine.arrivals import Watch
from pybeam.request import Partial, Request
from pybeam.serving.answers import Cost, Listener, ServedResult, ServiceStatus
from pybeam.serving.bell import awaited
from pybeam.serving.deadline_timer import DeadlineTimer
from pybeam.serving.engine_group import EngineGroup
from pybeam.serving.engine_groups import EngineGroups
from pybeam.serving.errors import ServiceClosed
from pybeam.serving.events import Mailbox, ServedStream
from pybeam.serving.forking import on_fork
from pybeam.serving.model_queue import Limits, ModelQueue
from pybeam.serving.options import Decoders, Options, check_engines, check_options, check_replicas
from pybeam.serving.ticket import Ticket


class Service:
    """Decode requests that come from any number of threads and asyncio tasks, in threads of its own.

    Results are those of `Decoder.decode`, whatever runs beside them::

        with pybeam.Service(decoder) as service:
            served = service.submit([4, 5, 6], timeout=0.5).result()  # or: await service.decode(...)
            print(served.result.hypotheses, served.times)

    Requests that wait are bounded, and cost nothing but memory. Whenever the schedule of a decoder has room,
    it takes the request of the highest level: its priority, and one more for each `ageing` seconds that it
    has waited. Within a level, clients take turns by work, and each client is served in order. Nobody begins
    beside whom others will probably miss their timeouts; who will miss its own lets all others pass. One that
    has been taken is decoded until it is done: those that come later never push it out.

    A request whose future is cancelled, or whose `timeout` has passed, leaves the queue at once and the beam
    before its next step. Its slot and pages are given back, and the results of others stay the same.

    Args:
        decoders: one decoder, or several by name. Only the service should use them. A list of decoders
            instead of one makes a model that is on several devices: requests go to whichever has room, and
            their results do not say where they were decoded. On a GPU scores may differ in their last bits.
        engines: threads that decode for each decoder. They share its weights and the requests that wait; each
            has memory of its own, and decodes as many requests at once as the decoder's schedule says. On a
            CPU let each compute with few threads, ``torch.set_num_threads(cores // engines)``: engines do not
            wait for each other, as the threads of one step do, so more requests are answered, each of them
            a little later when there are few. On a GPU one is best.
        processes: whether each engine computes in a process of its own, so that Python's lock is not shared.
            The processes are copies of this one, made by `os.fork` at `start`, and read the same weights. If
            one ends, for want of memory for example, its requests get `EngineCrashed`, and another takes its
            place. A processor's own memory is that of its process. Each computes with as many threads as
            ``torch.get_num_threads()`` says when the service is made. It is for CPUs, and for Linux.
        max_waiting: most requests of a model that may wait for their turn. Those of lower levels give way to
            one that comes, the last one first, and get `QueueFull`.
        max_waiting_work: most work of a model that may wait: the sum of `Cost.work`. A request that waits
            alone may have more. None: no limit.
        ageing: seconds in which a request that waits rises by one level.
        max_step_seconds: a step that takes longer is an error of the engine: all callers of its model get
            `EngineStalled`, and so do new ones until the step ends. None: never.
        width_by_load: trades quality for speed. With ``{16: 3, 64: 1}``, a request that begins while 16
            others wait for the same model has a beam of at most 3 in any step, and with 64 of 1, but never
            less than its n_best. `ServedResult.width` says it. None: every request gets the width that it
            asked for.
        nice: added to the niceness of what decodes, so that other threads have cores before it. On Linux.
        listener: is told what happens to requests, for metrics; see `Listener`.
        clock: returns seconds that never go back.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """

    # each is a number that a service has, and all but the first are named
    def __init__(
        self,
        decoders: Decoders | Mapping[str, Decoders],
        *,
        engines: int = 1,
        processes: bool = False,
        max_waiting: int = 256,
        max_waiting_work: int | None = None,
        ageing: float = 10.0,
        max_step_seconds: float | None = 60.0,
        width_by_load: Mapping[int, int] | None = None,
        nice: int = 0,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        named = check_engines(decoders, engines, processes)
        widths = tuple((width_by_load or {}).items())
        self._limits = Limits(max_waiting, max_waiting_work, ageing, max_step_seconds, widths, nice)
        self._listener, self._clock = listener, clock
        self._timer = DeadlineTimer(self._look, clock)
        self._num_engines, self._in_processes = engines, processes
        self._groups = EngineGroups(max_step_seconds)
        self._groups.put({name: self._group(name, one) for name, one in named.items()})
        self._state: Literal["new", "running", "closed", "a copy that os.fork made"] = "new"
        on_fork(self)

    def __repr__(self) -> str:
        # no lock is taken: the process that made it may hold it for ever
        groups = (f"{name!r}: {group!r}" for name, group in self._groups.items())
        return f"Service({self._state}, {{{', '.join(groups)}}})"

    def _group(self, name: str, decoders: Decoders) -> EngineGroup:
        replicas = check_replicas(name, decoders, will_fork=self._in_processes)
        queue = ModelQueue(name, self._limits, self._clock, self._listener, self._timer.wake_by)
        return EngineGroup(
            queue,
            replicas,
            self._num_engines,
            self._groups.forget,
            in_processes=self._in_processes,
        )

    def start(self, *, warm_up: bool = True) -> Service:
        """Start the engines. Returns the service. If that fails, the service is closed.

        Args:
            warm_up: whether some random requests are decoded first, so that memory is there, and kernels are
                compiled, when the first request comes.

        Raises:
            ServiceClosed: it was started before.
        """
        with self._groups.lock:
            if self._state != "new":
                raise ServiceClosed("a service is started once; make a new one")
            self._state = "running"
        try:
            for group in self._groups.values():
                if warm_up:
                    group.warm_up()
                group.start()
        except BaseException:
            self.close(timeout=0)
            raise
        self._timer.start()
        return self

    def close(self, *, timeout: float | None = None) -> None:
        """Take no more requests, finish those that it has, and stop. It may be called again.

        Args:
            timeout: seconds to wait for them; then those that are left get `ServiceClosed`. None: as long
                as it takes.
        """
        if self._state.startswith("a copy"):
            return  # nothing runs here
        with self._groups.lock:
            self._state = "closed"
        problem = "the service was closed before the request was done"
        self._groups.end(self._groups.all, timeout, problem)
        self._timer.stop()

    def after_fork(self) -> None:
        """Note that `os.fork` made this process: it has no engines, and its locks may be held for ever."""
        self._state, self._groups.lock = "a copy that os.fork made", threading.Lock()

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Service:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(self._groups)

    @property
    def is_ready(self) -> bool:
        """Whether every model takes requests: it is warm, not closing, and no step takes too long."""
        return self._state == "running" and all(group.is_ready for group in self._groups.values())

    @property
    def statuses(self) -> dict[str, ServiceStatus]:
        """Each model's name, and what it does now."""
        return {name: group.status() for name, group in self._groups.items()}

    def status(self, model: str | Decoder | None = None) -> ServiceStatus:
        """Return what a model does now.

        Args:
            model: its name or its decoder; None: the only one. Raises ValueError if there is none.
        """
        return self._groups.of(model).status()

    def estimate(self, request: Any, model: str | Decoder | None = None) -> Cost:
        """Say what a request would cost.

        Args:
            request: a source or a `Request`.
            model: its name or its decoder; None: the only one.

        Raises:
            TypeError, ValueError: the source is unfit for the model, or there is no such model.
        """
        return self._groups.of(model).assess(Request.of(request))[0]

    def submit(self, request: Any, **options: Unpack[Options]) -> Future[ServedResult]:
        """Let a request wait for its turn. Any thread may call it. Returns its future.

        Cancelling the future cancels the request, at any time before its result.

        Args:
            request: a source or a `Request`.
            options: `model`: the name of the model, or its decoder; None: the only one. `timeout`: seconds
                from now in which it is to be done; None: no limit. `priority`: an int, higher ones first.
                `client`: whom it counts for when clients take turns, such as a key or an address; None: all
                without one count as one. `on_deadline`: what happens when the timeout passes: "raise" gives
                `DeadlineExceeded`, and beside others a hopeless request does not even begin; "best" gives the
                best so far, if there is any, see `ServedResult`. Neither waits for a step. `since`: when the
                request came, on the service's clock; its times count from then. Left out: now.

        The future raises `DeadlineExceeded`, `ServiceClosed`, `EngineStalled` or `EngineCrashed`; TypeError
        or ValueError if this request is wrong; or what its model raised. Other requests are not affected.

        Raises:
            QueueFull: too many wait.
            ServiceClosed: the service has not been started, or is closing.
            EngineStalled: the engine is busy with a step that takes too long.
            TypeError, ValueError: an option is wrong.
        """
        return self._submit(request, options).future

    @property
    def has_room(self) -> bool:
        """Whether every model takes a small request now, whatever its priority."""
        return all(group.queue.has_room for group in self._groups.values())

    def check_room(self, **options: Unpack[Options]) -> None:
        """Raise what `submit`, or its future at once, would raise for a request of one token."""
        self._check_runs()
        self._groups.of(options.get("model")).queue.check_room(options)

    async def decode(self, request: Any, **options: Unpack[Options]) -> ServedResult:
        """Decode a request, and wait for its result. Cancelling the task cancels the request.

        Args:
            request: a source or a `Request`.
            options: see `submit`.

        Raises:
            QueueFull, ServiceClosed, EngineStalled, EngineCrashed, DeadlineExceeded, TypeError, ValueError:
                see `submit`.
        """
        return await awaited(self.submit(request, **options))

    def stream(
        self, request: Any, *, best_so_far: bool = False, **options: Unpack[Options]
    ) -> ServedStream:
        """Decode a request, and say meanwhile what is certain. To be called in an asyncio task.

        The iterator gives a `Certain` when more of the best hypothesis is certain, and at the end the
        `ServedResult`. A reader that is slow gets only the latest ones. A request with a target, with groups,
        or with coverage in its scoring gets its result alone. Closing the iterator cancels the request::

            async for event in service.stream(request, best_so_far=True):
                match event:
                    case pybeam.serving.Certain(tokens): ...
                    case pybeam.serving.BestSoFar(tokens): ...
                    case pybeam.serving.ServedResult(result): ...

        Args:
            request: a source or a `Request`.
            best_so_far: whether a `BestSoFar` comes too whenever the best row of the beam changes.
            options: see `submit`.

        Raises:
            QueueFull, ServiceClosed, EngineStalled, TypeError, ValueError: see `submit`. The iterator
                raises what the future of `submit` would raise.
        """
        mailbox = Mailbox()
        watch = Watch.BEST if best_so_far else Watch.CERTAIN
        ticket = self._submit(request, options, watch, mailbox.put)
        return ServedStream(ticket.future, mailbox)

    def load(self, decoders: Mapping[str, Decoders], *, warm_up: bool = True) -> None:
        """Add models by name, while others decode: all of them, or none.

        If there is one of a name, requests that come from now on are decoded by the new one. The old one
        still takes those that name its decoder, until `unload`.

        Args:
            decoders: one decoder for each name, or a list of them, one for each device.
            warm_up: whether they are warmed up first; see `start`.

        Raises:
            ServiceClosed: the service is not running.
            TypeError, ValueError: the decoders are wrong.
        """
        self._put(decoders, warm_up)

    def swap(self, model: str, decoder: Decoders, *, warm_up: bool = True) -> None:
        """Replace a model. Requests that it has are finished by the old decoder, which is then released.

        Args:
            model: its name.
            decoder, warm_up: see `load`.

        Raises:
            ValueError: there is no such model.
            ServiceClosed, TypeError: see `load`.
        """
        self._groups.of(model)
        for old in self._put({model: decoder}, warm_up):
            old.queue.close()

    def unload(self, model: str | Decoder, *, timeout: float | None = None) -> None:
        """Remove a model: it takes no more requests, finishes those that it has, and is released.

        Args:
            model: its name, or its decoder, whose name may stand for another by now.
            timeout: seconds to wait for its requests; then those that are left get `ServiceClosed`. None: as
                long as it takes.

        Raises:
            ValueError: there is no such name.
            ServiceClosed: the service is not running, or the decoder has been unloaded.
        """
        self._check_runs()
        group = self._groups.of(model)
        self._groups.take_name(group)
        self._groups.end([group], timeout, "the model was unloaded before the request was done")

    def _put(self, decoders: Mapping[str, Decoders], warm_up: bool) -> list[EngineGroup]:
        """Let names stand for new decoders. Returns the groups for which they stood."""
        made = {name: self._group(name, one) for name, one in decoders.items()}
        try:
            for group in made.values() if warm_up else ():
                group.warm_up()
            with self._groups.lock:
                self._check_runs()
                for group in made.values():
                    group.start()
                replaced = self._groups.put(made)
        except BaseException:
            for group in made.values():
                group.release()
                group.end_processes()
            raise
        # it sleeps while there is none
        self._timer.wake_by(self._clock())
        return replaced

    def _check_runs(self) -> None:
        if self._state != "running":
            raise ServiceClosed(f"the service is {self._state}, and takes nothing; start one")

    def _submit(
        self,
        request: Any,
        options: Options,
        watch: Watch = Watch.NOTHING,
        tell: Callable[[Partial], None] | None = None,
    ) -> Ticket:
        check_options(options)
        self._check_runs()
        group = self._groups.of(options.get("model"))
        now = self._clock()
        ticket = Ticket.of(Request.of(request), options, now)
        ticket.watch, ticket.tell = watch, tell
        try:
            if ticket.deadline is not None and ticket.deadline <= now:
                raise ticket.too_late()
            ticket.cost, ticket.most_steps = group.assess(ticket.request)
        except Exception as error:
            ticket.future.set_exception(error)
            return ticket
        while True:
            try:
                group.queue.submit(ticket)
                return ticket
            except ServiceClosed:
                # the model may have been replaced meanwhile
                current = self._groups.of(options.get("model"))
                if current is group:
                    raise
                group = current

    def _look(self) -> float:
        """Look at deadlines and steps. Returns when to look again."""
        return min((group.look() for group in self._groups.all), default=math.inf)
