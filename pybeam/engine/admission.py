"""From requests to sources: what is asked is checked, sorted and queued until the schedule takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from pybeam.arguments import ids
from pybeam.engine.request_queue import RequestQueue, next_of
from pybeam.engine.schedule import Schedule
from pybeam.engine.source import Source
from pybeam.models.base import Alignment, Model
from pybeam.request import Hypothesis, Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.search.overrides import for_target, overridden

# sources encoded together when the schedule admits one at a time
ENCODE_AHEAD = 16


class Admission:
    """The queue of one stream: requests become sources here, or results at once.

    Args:
        requests: what the caller wants decoded; read a window ahead (`Schedule.queue_window`), of a
            `RequestQueue` what has arrived.
        check_memory: raises ValueError for a source that can never fit.
    """

    def __init__(
        self,
        requests: Iterable[Any] | RequestQueue,
        model: Model,
        algorithm: Algorithm,
        schedule: Schedule,
        check_memory,
        *,
        wants_log_probs: bool,
    ) -> None:
        self._next_request = next_of(requests)
        self._model, self._algorithm, self._schedule = model, algorithm, schedule
        self._check_memory = check_memory
        self._wants_log_probs = wants_log_probs
        self._queue: deque[Source] = deque()  # sorted within a window
        self._encoded: deque[Source] = deque()  # encoded, waiting for a place

    def next(self) -> Source | None:
        """The source whose turn it is, left in the queue."""
        return next(iter(self._encoded or self._queue), None)

    def take(self) -> Source:
        """Remove and return that source."""
        return (self._encoded or self._queue).popleft()

    def go_on(self, source: Source) -> None:
        """Put a source that was taken before in front, to be searched again."""
        self._queue.appendleft(source)

    def take_ahead(self, missing: int, room: float) -> list[Source]:
        """Up to so many sources that come next, to be encoded now and taken later.

        All they may need fits in `room` bytes: what an encoded source holds then never exceeds what
        would be free for it.
        """
        ahead: list[Source] = []
        while self._queue and len(ahead) < missing:
            room -= self._queue[0].max_bytes
            if room < 0:
                break
            ahead.append(self._queue.popleft())
        self._encoded += ahead
        return ahead

    def read(self, *, may_wait: bool) -> Iterator[Result]:
        """Take the next window of requests, longest sources first; bad requests become results."""
        window: list[Source] = []
        while len(window) < self._schedule.queue_window:
            arrived = self._next_request(may_wait and not window)
            if arrived is None:
                break
            result = self._receive(*arrived, window)
            if result is not None:
                yield result
        self._queue.extend(sorted(window, key=lambda source: -source.source_length))

    def _receive(self, index: int, request: Any, window: list[Source]) -> Result | None:
        """Check one request. It joins the window, or a result says at once what became of it."""
        if not isinstance(request, Request):
            request = Request(request)
        try:
            content = self._model.check(request.source)
            prefix = self._check_tokens("prefix", request.prefix)
            target = self._check_target(request.target)
            length = self._model.source_length(content)
            limits = self._limits(request, self._model.room(content), length)
            for processor in request.processors or ():
                processor.check(self._model)
            if limits.scoring.coverage:
                self._model.check_alignment(Alignment())
            self._schedule.check_width(limits.most_rows)
            if length == 0 and len(target) > 1:
                raise ValueError(
                    f"`target` must be empty for an empty source, whose only output that is, but has "
                    f"{len(target) - 1} tokens; do sources and targets belong together?"
                )
            source = Source(
                index=index,
                request=request,
                content=content,
                algorithm=limits,
                source_length=length,
                prefix=prefix,
                target=target,
                guesses=self._guesses(limits, request),
                prompt=self._model.prompt(content),
                num_committed=len(prefix),
            )
            self._check_memory(source)
        except Exception as error:  # whatever a request, or a function of it, makes go wrong
            return Result(index, request.id, [], "error", error=error)
        if length == 0:
            log_probs = [] if self._wants_log_probs else None
            empty = Hypothesis(prefix, 0.0, 0.0, True, log_probs, eos_id=self._model.eos_id)
            return Result(index, request.id, [empty], "empty_source")
        window.append(source)
        return None

    def _limits(self, request: Request, room: int | None, source_length: int) -> Algorithm:
        if request.target is not None:
            return for_target(self._algorithm, request, room)
        return overridden(self._algorithm, request, room, source_length)

    def _guesses(self, algorithm: Algorithm, request: Request) -> list[int]:
        """What will be generated, as far as it is guessed; -1 for what is no token."""
        if algorithm.draft is None:
            return []
        guesses = algorithm.draft.initialiser.guesses(request)
        vocab_size = self._model.vocab_size
        return [int(token) if 0 <= token < vocab_size else -1 for token in guesses]

    def _check_target(self, target) -> list[int]:
        if target is None:
            return []
        return [*self._check_tokens("target", target), self._model.eos_id]

    def _check_tokens(self, name: str, given) -> list[int]:
        if given is None:
            return []
        if not isinstance(given, Sized):
            raise TypeError(f"`{name}` must be a list of token ids, but is {given!r}")
        tokens = list(ids(name, given))
        for token in tokens:
            if token >= self._model.vocab_size:
                raise ValueError(
                    f"`{name}` must hold token ids from 0 to {self._model.vocab_size - 1}, "
                    f"but holds {token!r}"
                )
            if token in self._model.eos_ids:
                what = "nothing could follow it" if name == "prefix" else "it is added at the end"
                raise ValueError(f"`{name}` must not hold EOS ({token}): {what}; leave it out")
        return tokens
