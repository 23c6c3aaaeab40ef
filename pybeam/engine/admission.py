"""Turn requests into sources: check, sort and queue them until the schedule takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sized
from typing import Any

from pybeam.arguments import ids, whole
from pybeam.engine.arrivals import Arrivals, Watch
from pybeam.engine.failures import kept
from pybeam.engine.schedule import Schedule
from pybeam.engine.source import Source
from pybeam.engine.workspace import Workspace
from pybeam.limits import SourceLimit
from pybeam.models.base import Alignment
from pybeam.processors.base import Processor
from pybeam.request import Hypothesis, Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.search.overrides import (
    for_target,
    of_source,
    overridden,
    rule_of,
    with_default_prefix,
)

# Sources encoded together when the schedule admits one at a time. An encoder batch of one wastes the
# processor; each source more takes memory before it is needed.
ENCODE_AHEAD = 16
# algorithms that requests share, at most
MAX_SHARED = 256


class Admission:
    """The queue of one stream: requests become sources here, or results at once.

    Args:
        arrivals: the requests, read a window ahead (`Schedule.queue_window`), or less if their order counts.
        workspace: decodes them.
        wants_log_probs: whether hypotheses have log-probabilities.
        wants_partials: whether every request hears what is certain.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        workspace: Workspace,
        schedule: Schedule,
        *,
        wants_log_probs: bool,
        wants_partials: bool,
    ) -> None:
        self._arrivals = arrivals
        self._work, self._schedule = workspace, schedule
        self._model, self._algorithm = workspace.model, workspace.algorithm
        self._wants_log_probs, self._least_watch = wants_log_probs, Watch(wants_partials)
        self._window = schedule.queue_window
        if arrivals.keeps_order:
            # few, because those that come later may be in a hurry; several, to be encoded together
            self._window = min(ENCODE_AHEAD, max(1, schedule.n // 4))
        # by what they follow from; see `_algorithm_of`
        self._shared: dict[tuple[int, int, type, int], Algorithm] = {}
        self._has_read_all = False
        self._queue: deque[Source] = deque()  # sorted within a window
        self._encoded: deque[Source] = deque()  # encoded, waiting for a place

    @property
    def is_done(self) -> bool:
        """Whether no source waits and no request can come any more."""
        return self._has_read_all and not self._queue and not self._encoded

    @property
    def has_encoded(self) -> bool:
        """Whether a source waits that is encoded, and so holds memory."""
        return bool(self._encoded)

    def next(self) -> Source | None:
        """Return the source whose turn it is, and leave it in the queue."""
        return next(iter(self._encoded or self._queue), None)

    def take(self) -> Source:
        """Remove and return the source whose turn it is."""
        return (self._encoded or self._queue).popleft()

    def requeue(self, source: Source) -> None:
        """Put a source that was taken before in front of the queue, to be searched again."""
        self._queue.appendleft(source)

    def take_ahead(self, missing: int, free_bytes: float) -> list[Source]:
        """Remove and return up to so many sources that come next, to be encoded now.

        All that they may need fits in `free_bytes`, so encoded sources never take memory that others need.
        Give them back with `put_encoded`.
        """
        ahead: list[Source] = []
        while self._queue and len(ahead) < missing:
            free_bytes -= self._queue[0].max_bytes
            if free_bytes < 0:
                break
            ahead.append(self._queue.popleft())
        return ahead

    def remove(self, indices: Container[int]) -> list[Source]:
        """Remove and return the waiting sources with these indices. Those that are encoded have a slot."""
        removed = [one for one in (*self._encoded, *self._queue) if one.index in indices]
        if removed:
            self._encoded = deque(one for one in self._encoded if one.index not in indices)
            self._queue = deque(one for one in self._queue if one.index not in indices)
        return removed

    def put_encoded(self, sources: Iterable[Source]) -> None:
        """Put sources in front of the queue that are encoded already."""
        self._encoded += sources

    def read(self, *, may_wait: bool) -> Iterator[Result]:
        """Take the next window of requests, longest sources first; bad requests become results."""
        window: list[Source] = []
        while len(window) < self._window:
            waits = may_wait and not window
            arrived = self._arrivals.next(waits)
            if arrived is None:
                self._has_read_all = waits or not self._arrivals.may_get_more
                break
            result = self._receive(*arrived, window)
            if result is not None:
                yield result
        if not self._arrivals.keeps_order:
            window.sort(key=lambda source: -source.source_length)
        self._queue += window

    def _receive(self, index: int, request: Any, window: list[Source]) -> Result | None:
        """Check one request. It joins the window, or becomes a result at once.

        Functions of the request are called here, so that it fails alone, whatever they raise.
        """
        request = Request.of(request)
        try:
            source = self._source(index, request)
        except Exception as error:
            return Result(index, request.id, [], "error", error=kept(error))
        if source.source_length == 0:
            log_probs: list[float] | None = [] if self._wants_log_probs else None
            eos_id = self._model.eos_id
            empty = Hypothesis(list(source.prefix), 0.0, 0.0, True, log_probs, eos_id=eos_id)
            found = [empty] if source.allows_cuts else []
            return Result(index, request.id, found, "empty_source")
        window.append(source)
        return None

    def _source(self, index: int, request: Request) -> Source:
        """Make the source of a request. Raises whatever its checks or its functions raise."""
        model = self._model
        content = model.check(request.source)
        request = with_default_prefix(request, self._algorithm, model)
        room = model.room(content)
        if room is None:
            room = self._check_longest(request)
        prefix = self._check_tokens("prefix", request.prefix)
        target = self._check_target(request.target)
        length = model.source_length(content)
        algorithm = self._algorithm_of(request, room, length)
        if algorithm.by_source:
            algorithm = of_source(algorithm, content, prefix)
        for processor in request.processors or ():
            processor.check(model)
        if request.target is None:
            _check_lengths(algorithm)
        if algorithm.scoring.coverage:
            model.check_alignment(Alignment())
        self._schedule.check_width(algorithm.max_rows)
        if length == 0 and len(target) > 1:
            raise ValueError(
                f"`target` must be empty for an empty source, whose only output that is, but has "
                f"{len(target) - 1} tokens; do sources and targets belong together?"
            )
        if request.source_id is not None:
            whole("source_id", request.source_id, -(2**63), 2**63 - 1)
        source = Source(
            index=index,
            request=request,
            content=content,
            algorithm=algorithm,
            source_length=length,
            start=self._check_start(request.start, content),
            prefix=prefix,
            target=target,
            guesses=self._guesses(algorithm, request),
            prompt=model.prompt(content),
            num_committed=len(prefix),
            watch=self._watch(index, algorithm, target),
        )
        source.max_bytes = self._work.room.max_bytes(source)
        return source

    def _check_longest(self, request: Request) -> int:
        """Return the tokens that a prefix and what follows may have, where the model has no limit of its own.

        Raises ValueError if the request asks for more.
        """
        most, prefix, target = self._model.max_tokens, request.prefix, request.target
        if target is None:
            asked = self._algorithm.max_length if request.max_length is None else request.max_length
            # what follows the source is cut there
            num = asked if isinstance(asked, int) else 1
            if rule_of(self._algorithm, request).in_limits:
                num -= request.prefix_length
        else:
            num = len(target) + 1 if isinstance(target, Sized) else 1
        before = len(prefix) if isinstance(prefix, Sized) else 0
        if before + num > most:
            raise ValueError(
                f"`prefix` with `{'max_length' if target is None else 'target'}` must have at most {most} "
                f"tokens (`max_tokens` of the model), but has {before} + {num}; ask for less, or set "
                "`max_tokens`"
            )
        return most

    def _algorithm_of(self, request: Request, room: int, source_length: int) -> Algorithm:
        """The algorithm of a request. Requests without options of their own share theirs."""
        own = self._algorithm
        asks_each = own.draft is not None and callable(own.draft.horizon)
        if asks_each or not request.overrides_nothing:
            return self._own_algorithm(request, room, source_length)
        follows = isinstance(own.max_length, SourceLimit)
        # prefixes of the same length may count differently
        key = room, request.prefix_length, type(request.prefix), source_length if follows else 0
        found = self._shared.get(key)
        if found is None:
            if len(self._shared) == MAX_SHARED:
                self._shared.clear()
            found = self._shared[key] = self._own_algorithm(request, room, source_length)
        return found

    def _own_algorithm(self, request: Request, room: int, source_length: int) -> Algorithm:
        if request.target is not None:
            return for_target(self._algorithm, request, room, source_length)
        return overridden(self._algorithm, request, room, source_length)

    def _watch(self, index: int, algorithm: Algorithm, target: list[int]) -> Watch:
        """The source's news: nothing is certain of several groups, or if coverage ranks in the end."""
        if target or algorithm.num_groups > 1 or algorithm.scoring.coverage:
            return Watch.NOTHING
        return max(self._arrivals.watch(index), self._least_watch)

    def _guesses(self, algorithm: Algorithm, request: Request) -> list[int]:
        """Return the guessed tokens; -1 stands for guesses that are no token."""
        if algorithm.draft is None:
            return []
        guesses = algorithm.draft.initialiser.guesses(request)
        vocab_size = self._model.vocab_size
        return [int(token) if 0 <= token < vocab_size else -1 for token in guesses]

    def _check_target(self, target: Any) -> list[int]:
        if target is None:
            return []
        return [*self._check_tokens("target", target), self._model.eos_id]

    def _check_start(self, given: Any, content: Any) -> int | None:
        if given is None:
            return None
        if self._model.prompt(content) is not None:
            raise ValueError(
                f"`start` must be left out for a model whose sources are prompts, but is {given!r}"
            )
        whole("start", given, 0, self._model.vocab_size - 1)
        return int(given)

    def _check_tokens(self, name: str, given: Any) -> list[int]:
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


def _check_lengths(algorithm: Algorithm) -> None:
    assert isinstance(algorithm.max_length, int), "requests have a length limit of their own"
    for processor in algorithm.processors:
        if isinstance(processor, Processor):
            processor.check_lengths(algorithm.min_length, algorithm.max_length)
