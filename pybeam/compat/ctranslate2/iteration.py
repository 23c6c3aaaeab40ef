"""Iterables of examples, and tokens as they come."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pybeam.compat.ctranslate2.results import AsyncResult, GenerationStepResult

# batches that are read at once, so that inputs of similar lengths meet
READ_AHEAD = 16
_MISSING = object()


def iterated(
    run: Callable[..., Any],
    iterables: Sequence[Iterable[Any]],
    max_batch_size: int,
    batch_type: str,
    options: dict[str, Any],
) -> Iterator[Any]:
    """Yield the results of `run` for iterables of examples side by side, in their order."""
    if max_batch_size < 1:
        raise ValueError("max_batch_size must be >= 1")
    options = {**options, "max_batch_size": max_batch_size, "batch_type": batch_type}
    size = READ_AHEAD * max_batch_size if max_batch_size > 1 else 1
    waiting: deque[AsyncResult[Any]] = deque()
    for columns in _columns(iterables, size, batch_type):
        waiting.extend(run(*columns, asynchronous=True, **options))
        while waiting and waiting[0].done():
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _columns(
    iterables: Sequence[Iterable[Any]], size: int, batch_type: str
) -> Iterator[list[list[Any]]]:
    """Yield `size` examples or tokens at a time, the elements of each iterable in a list."""
    batch: list[tuple[Any, ...]] = []
    longest = 0
    for example in itertools.zip_longest(*iterables, fillvalue=_MISSING):
        if any(one is _MISSING for one in example):
            raise ValueError("Input iterables do not have the same length")
        longest = max(longest, len(example[0])) if batch_type == "tokens" else 1
        if batch and (len(batch) + 1) * longest > size:
            yield [list(column) for column in zip(*batch, strict=True)]
            batch, longest = [], len(example[0]) if batch_type == "tokens" else 1
        batch.append(example)
    if batch:
        yield [list(column) for column in zip(*batch, strict=True)]


def streamed(
    run: Callable[..., Any], *given: Any, **options: Any
) -> Iterator[GenerationStepResult]:
    """Yield what the callback of `run` is told; the search stops when nobody asks for more."""
    own = options.pop("callback", None)
    steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
    is_closed = threading.Event()

    def tell(step: GenerationStepResult) -> bool:
        wants_end = bool(own is not None and own(step))
        steps.put(step)
        return wants_end or is_closed.is_set()

    results = run(*given, callback=tell, asynchronous=True, **options)

    def wait() -> None:
        try:
            for one in results:
                one.result()
            steps.put(None)
        except BaseException as error:  # whoever asks for the next token shall see it
            steps.put(error)

    threading.Thread(target=wait, daemon=True).start()
    try:
        while (step := steps.get()) is not None:
            if isinstance(step, BaseException):
                raise step
            yield step
    finally:
        is_closed.set()
