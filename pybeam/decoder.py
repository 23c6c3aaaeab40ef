"""`Decoder`: a model, an algorithm and a schedule, ready to decode."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from pybeam import backends
from pybeam.engine import Engine, Stats
from pybeam.models.base import Model
from pybeam.request import Result
from pybeam.schedule import Fifo, Schedule
from pybeam.search.algorithms import Algorithm


class DecodeError(RuntimeError):
    """Some requests failed; `results` holds what became of all of them, in order."""

    def __init__(self, results: list[Result]) -> None:
        failed = [result for result in results if result.error is not None]
        first = failed[0]
        super().__init__(
            f"{len(failed)} of {len(results)} requests failed; the first is request {first.index}: "
            f"{first.error}"
        )
        self.results = results


class Decoder:
    """Decodes requests with one algorithm; `schedule` and `backend` change speed, never results.

    Args:
        model: from `pybeam.load_model`, or any `pybeam.models.base.Model`.
        algorithm: `pybeam.greedy()`, `fixed_beam(5)`, `variable_beam(50, threshold=1.5)`, …
        schedule: `Batch`, `Streaming` or `Fifo`; default ``Fifo(64)``.
        backend: "auto", "reference" or "native", see `pybeam.ops`.
        log_probs: whether `Hypothesis.log_probs` is filled.

    Raises:
        ValueError, TypeError: options do not fit together.
    """

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        schedule: Schedule | None = None,
        backend: str = "auto",
        *,
        log_probs: bool = False,
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(
                f"`model` must be a pybeam model, such as pybeam.load_model returns, but is {type(model)}"
            )
        if not isinstance(algorithm, Algorithm):
            raise TypeError(
                f"`algorithm` must be one such as pybeam.fixed_beam(5), but is {algorithm!r}"
            )
        schedule = Fifo() if schedule is None else schedule
        if not isinstance(schedule, Schedule):
            raise TypeError(f"`schedule` must be a Batch, Streaming or Fifo, but is {schedule!r}")
        schedule.check_width(algorithm.width)
        if algorithm.max_length is not None and model.max_positions is not None:
            if algorithm.max_length > model.max_positions:
                raise ValueError(
                    f"`max_length` must be at most the model's {model.max_positions} positions, "
                    f"but is {algorithm.max_length}"
                )
        self.model, self.algorithm, self.schedule = model, algorithm, schedule
        self.log_probs = log_probs
        self.stats = Stats()
        self._backend = backends.resolve(backend, model.device)

    def decode(self, requests: Iterable[Any], *, on_error: str = "return") -> list[Result]:
        """Results in the order of the requests.

        Args:
            requests: sources (lists or 1-D tensors of token ids, feature tensors) or `Request`s.
            on_error: "return" leaves a failed request's `Result.error` for the caller to see; "raise"
                raises `DecodeError` after the others have finished.
        """
        if on_error not in ("return", "raise"):
            raise ValueError(f"`on_error` must be 'return' or 'raise', but is {on_error!r}")
        results = sorted(self.stream(requests), key=lambda result: result.index)
        if on_error == "raise" and any(result.error is not None for result in results):
            raise DecodeError(results)
        return results

    def stream(self, requests: Iterable[Any]) -> Iterator[Result]:
        """Results as they finish; `Result.index` says which request each belongs to.

        Requests are read a window ahead (`Schedule.window`). Several streams of one decoder may run
        at a time; `stats` is that of the latest call.
        """
        stats = self.stats = Stats()
        engine = Engine(
            self.model,
            self.algorithm,
            self.schedule,
            self._backend,
            stats,
            wants_log_probs=self.log_probs,
        )
        return _timed(engine.run(requests), stats)


def _timed(results: Iterator[Result], stats: Stats) -> Iterator[Result]:
    while True:
        start = time.perf_counter()
        try:
            result = next(results)
        except StopIteration:
            return
        finally:
            stats.seconds += time.perf_counter() - start
        yield result
