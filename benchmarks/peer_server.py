"""The shell of `pybeam serve` around CTranslate2: the same endpoints, limits and logs, another engine.

python -m benchmarks.peer_server '{"directory": DIR, ...}'    what `PeerService` takes, as JSON

Requests that wait are translated together: as many as are there when the translator is free, or arrive a few
milliseconds later; several translators share them. A request whose deadline has passed, or would pass before
its batch is done, is left out.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from benchmarks import corpus
from benchmarks.translation import MAX_LENGTH
from pybeam import fixed_beam
from pybeam.request import Hypothesis, Request, Result
from pybeam.server import logs
from pybeam.server.app import build_app
from pybeam.server.lifecycle import serve
from pybeam.server.metrics import Metrics
from pybeam.server.models import ServedModel, load_tokenizers
from pybeam.server.settings import Settings
from pybeam.serving import DeadlineExceeded, QueueFull, ServedResult, ServiceClosed, ServiceStatus
from pybeam.serving.answers import Times

NAME = "bible-es-en"


@dataclass
class Waiting:
    """A request that waits for its batch."""

    tokens: list[str]
    deadline: float
    since: float = field(default_factory=time.monotonic)
    future: Future[ServedResult] = field(default_factory=Future)


class PeerService:
    """The methods that the shell asks of a `pybeam.Service`, with CTranslate2 behind it.

    Args:
        directory: CTranslate2's model.
        compute_type: of its weights.
        width: beam size.
        threads: cores.
        side_by_side: batches that are translated at the same time, and share the threads.
        max_batch: most requests in one.
        delay: seconds in which more may come before a batch that is not full begins.
        max_waiting: most requests that wait.
    """

    def __init__(
        self,
        directory: str,
        compute_type: str,
        width: int,
        threads: int,
        side_by_side: int = 1,
        max_batch: int = 64,
        delay: float = 0.003,
        max_waiting: int = 256,
    ) -> None:
        import ctranslate2

        self._translator = ctranslate2.Translator(
            directory,
            device="cpu",
            compute_type=compute_type,
            inter_threads=side_by_side,
            intra_threads=threads // side_by_side,
        )
        self._pieces = corpus.vocabulary(corpus.processor())
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._width, self._max_batch, self._delay = width, max_batch, delay
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._line: deque[Waiting] = deque()
        self._batch_seconds = 0.0
        self._is_open = True
        # each waits for its batch, which is what `asynchronous=True` is for
        self._threads = [threading.Thread(target=self._run) for _ in range(side_by_side)]

    def start(self) -> None:
        self._translate([self._pieces[5:10]] * self._max_batch)
        for thread in self._threads:
            thread.start()

    def close(self, *, timeout: float | None = None) -> None:
        with self._changed:
            self._is_open = False
            left = list(self._line)
            self._changed.notify_all()
        _fail(left, ServiceClosed("closed"))
        for thread in self._threads:
            thread.join()

    @property
    def models(self) -> tuple[str, ...]:
        return (NAME,)

    @property
    def is_ready(self) -> bool:
        return self._is_open

    def status(self, model: str | None = None) -> ServiceStatus:
        return ServiceStatus(self._is_open, 0, len(self._line), 0, 0, 0, 0, 0.0, {})

    @property
    def statuses(self) -> dict[str, ServiceStatus]:
        return {name: self.status() for name in self.models}

    def submit(self, request: Request, *, timeout: float, **_: Any) -> Future[ServedResult]:
        """The shell has turned the text into ids, as it does for its own service."""
        tokens = [self._pieces[i] for i in request.source]
        waiting = Waiting(tokens, time.monotonic() + timeout)
        with self._changed:
            self.check_room(timeout=timeout)
            self._line.append(waiting)
            self._changed.notify()
        return waiting.future

    @property
    def has_room(self) -> bool:
        return self._is_open and len(self._line) < self._max_waiting

    def check_room(self, *, timeout: float, since: float | None = None, **_: Any) -> None:
        if not self._is_open:
            raise ServiceClosed("closed")
        if len(self._line) >= self._max_waiting:
            raise QueueFull("max_waiting", self._max_waiting, len(self._line), 1.0)
        if since is not None and since + timeout <= time.monotonic():
            raise DeadlineExceeded("its time is over")

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if not batch:
                continue
            start = time.monotonic()
            try:
                outputs = self._translate([one.tokens for one in batch])
            except Exception as error:
                _fail(batch, error)
                continue
            self._batch_seconds = time.monotonic() - start
            for one, output in zip(batch, outputs, strict=True):
                times = Times(start - one.since, 0.0, self._batch_seconds)
                answer = ServedResult(Result(0, None, [output], "width"), times, self._width)
                if one.future.set_running_or_notify_cancel():
                    one.future.set_result(answer)

    def _next_batch(self) -> list[Waiting] | None:
        """Wait for requests; None: it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._line or not self._is_open)
            if not self._is_open:
                return None
            self._changed.wait_for(
                lambda: len(self._line) >= self._max_batch or not self._is_open, self._delay
            )
            batch: list[Waiting] = []
            late: list[Waiting] = []
            end = time.monotonic() + self._batch_seconds
            # the other translators get the rest
            share = min(self._max_batch, math.ceil(len(self._line) / len(self._threads)))
            while self._line and len(batch) < share:
                one = self._line.popleft()
                if not one.future.cancelled():
                    (batch if one.deadline > end else late).append(one)
            # what one batch took may not be what the next one takes
            if late and not batch and late[-1].deadline > time.monotonic():
                batch.append(late.pop())
        _fail(late, DeadlineExceeded("it would be too late"))
        return batch

    def _translate(self, sources: list[list[str]]) -> list[Hypothesis]:
        results = self._translator.translate_batch(
            sources,
            beam_size=self._width,
            length_penalty=1.0,
            max_batch_size=self._max_batch,
            max_decoding_length=MAX_LENGTH,
            return_scores=True,
        )
        return [
            Hypothesis(
                [self._ids[piece] for piece in result.hypotheses[0]],
                result.scores[0],
                result.scores[0],
                True,
            )
            for result in results
        ]


def _fail(requests: Iterable[Waiting], error: Exception) -> None:
    for one in requests:
        if one.future.set_running_or_notify_cancel():
            one.future.set_exception(error)


def main() -> None:
    logs.set_up("info")
    options, settings = json.loads(sys.argv[1]), Settings(port=0)

    def start() -> FastAPI:
        service: Any = PeerService(**options)
        # what the shell asks of a decoder
        decoder: Any = SimpleNamespace(
            model=SimpleNamespace(takes_features=False),
            algorithm=fixed_beam(options["width"], max_length=MAX_LENGTH),
        )
        directory = str(corpus.MODEL)
        model = ServedModel(NAME, directory, decoder, load_tokenizers(directory))
        service.start()
        return build_app(service, {NAME: model}, Metrics(), settings=settings)

    serve(start, settings)


if __name__ == "__main__":
    main()
