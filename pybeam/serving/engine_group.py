"""`EngineGroup`: the engines of one model, and the queue that they share."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection

import torch

from pybeam.decoder import Decoder
from pybeam.limits import SourceLimit
from pybeam.platforms.system import give_way
from pybeam.request import Request
from pybeam.search.widths import is_width, widest
from pybeam.serving.answers import Cost, ServiceStatus
from pybeam.serving.engine_process import serve_streams
from pybeam.serving.engine_thread import EngineThread
from pybeam.serving.fork_server import ForkServer
from pybeam.serving.forked_decoder import ForkedDecoder
from pybeam.serving.model_queue import ModelQueue
from pybeam.text.counts import counted

log = logging.getLogger("pybeam.serving")


class EngineGroup:
    """The engines of one model. Each engine has a thread and memory of its own. All engines share the queue,
    and the engines of one device share the weights.

    Args:
        queue: where requests come from.
        decoders: one for each device. Their schedules say how many requests each engine decodes at once.
        num_engines: how many there are of each decoder.
        on_end: called when the last thread ends.
        in_processes: whether each thread has a process that computes for it.
    """

    def __init__(
        self,
        queue: ModelQueue,
        decoders: Sequence[Decoder],
        num_engines: int,
        on_end: Callable[[EngineGroup], None],
        *,
        in_processes: bool,
    ) -> None:
        self.queue, self.decoder = queue, decoders[0]
        self._on_end, self._lock = on_end, threading.Lock()
        self._server: ForkServer | None = None
        own = [
            decoder if i == 0 else copy.copy(decoder)
            for i in range(num_engines)
            for decoder in decoders
        ]
        if in_processes:
            serve = partial(_serve, own, queue, torch.get_num_threads())
            self._server = ForkServer(serve)
            own = [ForkedDecoder(one, self._server, number) for number, one in enumerate(own)]
        self._num_alive = len(own)
        self._engines = [EngineThread(queue, one, len(own), self._ended) for one in own]

    def __repr__(self) -> str:
        queue = self.queue
        engines = counted(len(self._engines), "engine")
        counts = f"{len(queue.taken)} taken, {len(queue.waiting)} wait"
        return f"EngineGroup({self.decoder!r}, {engines}, {counts})"

    def warm_up(self) -> None:
        """Let every engine decode some requests, before it is started. If that fails, nothing is left."""
        at_once = 1 if self._server is None else len(self._engines)
        try:
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(Decoder.warm_up, [engine.decoder for engine in self._engines]))
        except BaseException:
            self.release()
            self.end_processes()
            raise

    def start(self) -> None:
        """Start the threads."""
        for engine in self._engines:
            engine.thread.start()

    def join(self, timeout: float | None) -> bool:
        """Wait until all threads have ended, at most so many seconds. Returns whether they have."""
        end = None if timeout is None else time.monotonic() + timeout
        for engine in self._engines:
            if engine.thread.ident is not None:
                engine.thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(engine.thread.is_alive() for engine in self._engines)

    def release(self) -> None:
        """Free the memory that the engines keep."""
        for engine in self._engines:
            engine.decoder.release()

    def assess(self, request: Request) -> tuple[Cost, float]:
        """Return what a request would cost, and the most steps that it can take, as far as that is known.

        Raises TypeError or ValueError if its source is unfit. Others of its fields are refused later.
        """
        model, algorithm = self.decoder.model, self.decoder.algorithm
        num_tokens, target = model.source_length(model.check(request.source)), request.target
        if target is not None:
            return Cost(num_tokens, 1), len(target) + 1 if isinstance(target, Sized) else math.inf
        width = widest(request.width) if is_width(request.width) else algorithm.max_rows
        most = algorithm.max_length if request.max_length is None else request.max_length
        if isinstance(most, SourceLimit):
            most = most.tokens(num_tokens)
        most_steps = most if isinstance(most, int) and most > 0 else math.inf
        return Cost(num_tokens, width), most_steps

    def end_processes(self) -> None:
        """End the processes, whatever they do."""
        if self._server is not None:
            self._server.stop()

    def _ended(self) -> None:
        with self._lock:
            self._num_alive -= 1
            is_last = not self._num_alive
        if is_last:
            if self._server is not None:
                self.release()
                self._server.stop()
            self._on_end(self)

    @property
    def is_ready(self) -> bool:
        """Whether the queue takes requests and an engine is running."""
        queue, engines = self.queue, self._engines
        is_alive = any(engine.thread.is_alive() for engine in engines)
        return is_alive and not queue.is_closed and not queue.is_stalled

    def status(self) -> ServiceStatus:
        """The state of the model."""
        queue, engines = self.queue, self._engines
        with queue.changed:
            stats = [engine.stats for engine in engines]
            pages = sum(one.pages for one in stats)
            free_pages = sum(one.free_pages for one in stats)
            phases: Counter[str] = Counter()
            for one in stats:
                phases.update(one.phase_seconds)
            return ServiceStatus(
                is_ready=self.is_ready,
                num_running=len(queue.taken),
                num_waiting=len(queue.waiting),
                waiting_work=queue.waiting.work,
                num_rows=sum(engine.load.rows for engine in engines),
                num_steps=sum(one.steps for one in stats),
                num_pages=pages,
                cache_use=1 - free_pages / pages if pages else 0.0,
                phase_seconds=dict(phases),
            )

    def look(self) -> float:
        """Notice deadlines that have passed, and steps that do not end. Returns when to look again."""
        queue = self.queue
        queue.expire()
        again, most, now = queue.next_alarm, queue.limits.max_step_seconds, queue.clock()
        if most is None:
            return again
        with queue.changed:
            stalled = [engine for engine in self._engines if engine.has_just_stalled(now, most)]
            queue.is_stalled = all(engine.is_stalled for engine in self._engines)
        error = queue.stalled()
        for engine in stalled:
            log.error("%s", error)
            queue.cancel_taken(engine.tickets(), error)
            if isinstance(engine.decoder, ForkedDecoder):
                # a thread cannot be ended, but a process can
                engine.decoder.kill()
        if stalled and queue.is_stalled:
            queue.cancel_waiting(error)
        # a step that begins now is noticed a quarter too late
        return min(again, now + most / 4)


def _serve(
    decoders: Sequence[Decoder],
    queue: ModelQueue,
    num_threads: int,
    number: int,
    connection: Connection,
) -> None:
    """Decode in a copy of this process."""
    give_way(queue.limits.nice)
    torch.set_num_threads(num_threads)
    flags = queue.has_news, queue.must_leave, queue.has_read[number]
    serve_streams(decoders[number], flags, connection)
