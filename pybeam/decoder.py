"""`Decoder`: a model, an algorithm and a schedule, ready to decode."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from pybeam import backends
from pybeam.arguments import check_list, names_checked, whole
from pybeam.engine.arrivals import Arrivals
from pybeam.engine.engine import Engine, StreamOptions
from pybeam.engine.fit import check_ends, check_kinds, check_longest
from pybeam.engine.schedule import Fifo, Schedule
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream
from pybeam.engine.workspace import Workspace
from pybeam.models.base import Alignment, InProcess, Model
from pybeam.processors.base import Processor
from pybeam.request import Partial, Request, Result
from pybeam.search.algorithms import Algorithm

if TYPE_CHECKING:
    from pybeam.engine.request_queue import RequestQueue

log = logging.getLogger(__name__)

OnError = Literal["raise", "return"]

_MISSING = object()


class DecodeError(RuntimeError):
    """Raised when some requests failed and all others have finished.

    Attributes:
        results: what became of each request, in their order: hypotheses, or an `error`.
    """

    def __init__(self, results: list[Result]) -> None:
        failed = [result for result in results if result.error is not None]
        told = f"{len(failed)} of {len(results)} requests failed"
        super().__init__(f"{told}; the first is request {failed[0].index}: {failed[0].error}")
        self.results = results

    def __reduce__(self) -> tuple[type[DecodeError], tuple[list[Result]]]:
        return DecodeError, (self.results,)


class Decoder(InProcess):
    """Decode requests with one algorithm. `schedule` and `backend` change speed, never results.

    Args:
        model: from `pybeam.load_model`, or any `pybeam.models.base.Model`.
        algorithm: `pybeam.greedy()`, `fixed_beam(5)`, `variable_beam(50, threshold=1.5)`, …
        schedule: `Batch`, `Streaming` or `Fifo`; default ``Fifo(64)``.
        backend: "auto", "reference", "native" or "triton", see `pybeam.ops`.
        log_probs: whether `Hypothesis.log_probs` is filled.
        alignment: whether `Hypothesis.attention` is filled, for models that have attention: True, or an
            `Alignment` that says of which layer and heads. It is computed from final hypotheses.
        graphs: whether steps are captured as CUDA graphs; None: on a GPU, if the model and all
            processors allow it.
        reports_every: steps on a GPU between two reports to the host. More steps cost the host less, and
            results wait for longer. None: as many as suit the model and the number of sources.
        memory_limit: bytes that keys and values may take. Sources wait until there is room for all they may
            need. A source that can never fit fails alone. None: no limit on a CPU, 90 % of the free memory
            on a GPU.

    Attributes:
        algorithm: the given one, with the `settings` of the model's folder.
        stats: `pybeam.engine.stats.Stats` of the latest call.

    Memory is kept from one call to the next; `release` frees it. A `copy.copy` shares the model, not memory.

    Raises:
        ValueError, TypeError: options do not fit together.
    """

    # what is decoded and returned, and what changes speed and memory alone
    @names_checked
    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        schedule: Schedule | None = None,
        backend: str = "auto",
        *,
        log_probs: bool = False,
        alignment: bool | Alignment = False,
        graphs: bool | None = None,
        reports_every: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        check_kinds(model, algorithm)
        schedule = Fifo() if schedule is None else schedule
        if not isinstance(schedule, Schedule):
            raise TypeError(f"`schedule` must be a Batch, Streaming or Fifo, but is {schedule!r}")
        schedule.check_width(algorithm.max_rows)
        if model.settings.names:
            # they bring processors that most models do without
            from pybeam.search.settings import applied

            algorithm = applied(algorithm, model)
        if algorithm.draft is not None and not model.can_draft:
            raise ValueError(
                f"`algorithm` guesses tokens ahead, but a step of this {type(model).__name__} cannot "
                "score guesses behind one another; use pybeam.greedy()"
            )
        check_longest(model, algorithm)
        check_ends(model, algorithm)
        for processor in algorithm.processors:
            if isinstance(processor, Processor):
                processor.check(model)
        if algorithm.draft is not None:
            draft = algorithm.draft.for_sources(schedule.n)
            if isinstance(fill := draft.initialiser.fill, int):
                whole("fill", fill, 0, model.vocab_size - 1, remedy="it is a token id of the model")
            algorithm = dataclasses.replace(algorithm, draft=draft)
        self.model, self.algorithm, self.schedule = model, algorithm, schedule
        self.log_probs = log_probs
        if not isinstance(alignment, bool | Alignment):
            raise TypeError(
                f"`alignment` must be True, False or a pybeam.Alignment, but is {alignment!r}"
            )
        self._alignment = Alignment() if alignment is True else alignment or None
        if self._alignment is not None or algorithm.scoring.coverage:
            model.check_alignment(self._alignment or Alignment())
        self.stats = Stats()
        self._backend = backends.for_decoding(backend, model.device)
        self._reads_late = model.device.type == "cuda"
        self._uses_graphs = self._decide_on_graphs(graphs)
        self._reports_every: tuple[int, int] = (1, 0)
        if self._reads_late or reports_every is not None:
            from pybeam.engine.report_steps import report_steps

            self._reports_every = report_steps(reports_every, model)
        if memory_limit is not None:
            whole("memory_limit", memory_limit, 1, remedy="it is a number of bytes")
        self._memory_limit = memory_limit
        self._idle: list[Workspace] = []

    def __repr__(self) -> str:
        backend = self._backend.__name__.rsplit(".", 1)[-1]
        return f"Decoder({self.model!r}, {self.algorithm!r}, {self.schedule!r}, {backend!r})"

    def __copy__(self) -> Decoder:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), stats=Stats(), _idle=[])
        return twin

    def _decide_on_graphs(self, graphs: bool | None) -> bool:
        obstacles = []
        if self.model.device.type != "cuda":
            obstacles.append(f"the model is on {self.model.device}")
        if not self.model.can_capture:
            obstacles.append(self.model.why_not_captured)
        if graphs and obstacles:
            raise ValueError(
                f"`graphs` needs a GPU and a model whose steps are static: {obstacles[0]}"
            )
        for processor in self.algorithm.processors:
            if not (isinstance(processor, Processor) and processor.can_capture):
                # a caller who asks for graphs may know that this one can be captured, so do not refuse
                obstacles.append(f"{processor!r} may not be captured")
        if graphs is None and obstacles and self.model.device.type == "cuda":
            log.info("steps are not captured as CUDA graphs: %s", obstacles[0])
        return not obstacles if graphs is None else graphs

    def decode(
        self, requests: Iterable[Any] | RequestQueue, *, on_error: OnError = "raise"
    ) -> list[Result]:
        """Decode requests; returns results in their order.

        Args:
            requests: sources (lists or 1-D tensors of token ids, feature tensors) or `Request` objects.
            on_error: what to do about requests that fail, after all others have finished: "raise" raises
                `DecodeError`, which holds all results; "return" returns them, with `Result.error` set.

        Raises:
            DecodeError: a request failed, unless `on_error` is "return".
            TypeError: `requests` is one source and not a list of them.
        """
        self._check_requests(requests)
        return self._collect(requests, on_error, log_probs=self.log_probs)

    def score(
        self, requests: Iterable[Any], targets: Iterable[Any], *, on_error: OnError = "raise"
    ) -> list[Result]:
        """Score given outputs; returns results in the order of the requests.

        Each result has one hypothesis, the target. Its ``log_probs[t] = log p(y_t | y_<t, x)`` are those of
        its tokens and EOS, ``score`` is their sum, and ``final_score`` follows the algorithm's or the
        request's scoring. Processors apply; width, pruning and length limits do not. An output of `decode`
        gets the score that `decode` gave it. A token that cannot follow gets -inf, and tokens behind it
        get their own log-probs.

        `decode` and `stream` do the same for requests with a `Request.target`, beside searches.

        Args:
            requests: as for `decode`; a `Request.prefix` comes before the target and is not scored.
            targets: as many sequences of token ids, without EOS.
            on_error: as for `decode`.

        Raises:
            DecodeError: as for `decode`.
            TypeError: `requests` or `targets` is a single one and not a list of them.
            ValueError: there are more or fewer targets than requests.
        """
        check_list("requests", requests, self.model.check)
        check_list("targets", targets)
        pairs = itertools.zip_longest(requests, targets, fillvalue=_MISSING)
        paired = (_with_target(*pair) for pair in pairs)
        return self._collect(paired, on_error, log_probs=True)

    def alternatives(
        self,
        requests: Iterable[Any],
        num: int = 5,
        *,
        min_probability: float = 0.0,
        on_error: OnError = "raise",
    ) -> list[Result]:
        """Find the best next tokens after each request's prefix, and the best output that begins with each.

        It takes the `num` tokens y with the highest ``p(y | prefix, x)``, without EOS. It then decodes from
        each of them as `decode` would with y at the end of the prefix, all of them side by side.
        `Result.hypotheses` are in the order of those probabilities. Their ``score`` is the log-probability of
        y and of all tokens behind it; ``final_score`` and the length limits count y. `stats` counts the
        decoding from y on.

        Args:
            requests: as for `decode`; the position is the end of `Request.prefix`.
            num: number of next tokens, 1 to 4,095. Each EOS id beyond the first takes one away.
            min_probability: leave out tokens less probable than this.
            on_error: as for `decode`.

        Raises:
            DecodeError: as for `decode`.
            TypeError, ValueError: `num` or `min_probability` is no such number, a request has a target,
                coverage is to rank, the algorithm samples, has groups, guesses ahead or allows but some
                sequences or items, or its prefixes count for something.

        CTranslate2 calls it `return_alternatives`. It bans EOS before the softmax, so that the first token's
        probability is ``p(y) / (1 - p(EOS))``, and normalises without y.
        """
        _check_on_error(on_error)
        check_list("requests", requests, self.model.check)
        requests = [Request.of(request) for request in requests]
        # few programs ask for them
        from pybeam.search.alternatives import alternatives

        decode = partial(self.decode, on_error="return")
        results = alternatives(decode, self.model, self.algorithm, requests, num, min_probability)
        return _checked(results, on_error)

    @overload
    def stream(
        self, requests: Iterable[Any] | Arrivals, *, partial: Literal[False] = False
    ) -> Iterator[Result]: ...
    @overload
    def stream(
        self, requests: Iterable[Any] | Arrivals, *, partial: bool
    ) -> Iterator[Result | Partial]: ...
    def stream(self, requests: Iterable[Any] | Arrivals, *, partial: bool = False) -> Iterator[Any]:
        """Yield results as they finish; `Result.index` says which request each belongs to.

        `requests`, as for `decode`, are read a window ahead (`Schedule.window`) and sorted by length in
        it. The stream never waits for an iterable without a length, such as a generator: a thread of its
        own reads it, and what has arrived is decoded meanwhile. If the iterable raises, the stream raises
        the same after the results of what came before. Requests that come from several places go through
        a `RequestQueue`. Several streams of one decoder may run at a time; `stats` is that of the latest
        call.

        With ``partial=True`` a `Partial` comes too whenever more of a request's best hypothesis is
        certain: the tokens that all rows of its beam share with each other, with what is held and with
        the best hypothesis that has finished. They are never taken back. A request that ends without
        any hypothesis, or with an error, may have had some; one with a target has none.

        A request that fails gives a result with an `error`; nothing is raised for it.

        Raises:
            TypeError: `requests` is one source and not a list of them.
            ValueError: `partial` with an algorithm of several groups.
        """
        if partial and self.algorithm.num_groups > 1:
            raise ValueError(
                f"`partial` needs one beam per request, but the algorithm has {self.algorithm.num_groups} "
                "groups, the last of which may find the best hypothesis"
            )
        self._check_requests(requests)
        # `decode` has no queue
        from pybeam.engine.request_queue import ReadAhead, arriving, until_done

        arrived = arriving(requests, self.schedule.queue_window)
        results = self._start(arrived, log_probs=self.log_probs, partials=partial)
        return until_done(results, arrived) if isinstance(arrived, ReadAhead) else results

    def warm_up(self) -> None:
        """Decode random requests, so that the first real one need not wait for what is done once.

        Memory is allocated for as many sources as the schedule decodes at once, but for 64 at most, and for 4
        recordings. On a GPU, kernels are compiled, which takes seconds for each where Triton's cache has
        none, and what these requests need is captured: steps, encoders, and what opens and closes beams.
        `Service.start` does it, too. Whether the requests succeed does not matter: a model whose vocabulary
        is unknown may refuse them.
        """
        # few programs ask for it
        from pybeam.engine.warm_up import LENGTHS, some_requests

        requests = some_requests(self.model, min(self.schedule.n, 64))
        # few rows have steps of their own, and where encoders are captured, few positions have one of theirs
        alone = requests[: len(LENGTHS) if self._uses_graphs else 1]
        batches = requests, *([one] for one in alone)
        # memory grows with the first, and what is captured is asked for twice
        for batch in batches * 2:
            self.decode(batch, on_error="return")

    def release(self) -> None:
        """Free the memory that is kept between calls: keys, values, beams, captured steps.

        A stream that is still running keeps its own. The weights stay with the model.
        """
        self._idle.clear()

    def _check_requests(self, requests: Iterable[Any] | Arrivals) -> None:
        if not isinstance(requests, Arrivals):
            check_list("requests", requests, self.model.check)

    def _collect(
        self, requests: Iterable[Any] | RequestQueue, on_error: str, *, log_probs: bool
    ) -> list[Result]:
        _check_on_error(on_error)
        found = self._start(requests, log_probs=log_probs)
        results = [result for result in found if isinstance(result, Result)]
        return _checked(sorted(results, key=lambda result: result.index), on_error)

    def _start(
        self, requests: Iterable[Any] | Arrivals, *, log_probs: bool, partials: bool = False
    ) -> Stream[Result | Partial]:
        stats = self.stats = Stats()
        reading = self._reads_late, self._reports_every
        options = StreamOptions(log_probs, partials, self._alignment, *reading)
        return Stream(self._run(requests, stats, options), self.model.device, stats)

    def _run(
        self, requests: Iterable[Any] | Arrivals, stats: Stats, options: StreamOptions
    ) -> Generator[list[Result | Partial]]:
        # another thread may take it first
        try:
            workspace = self._idle.pop()
        except IndexError:
            workspace = self._workspace()
        yield from Engine(workspace, self.schedule, stats, options).run(requests)
        # only here, so that a stream that was given up takes its half-done sources with it
        if not self._idle and not workspace.is_too_large:
            self._idle.append(workspace)

    def _workspace(self) -> Workspace:
        return Workspace(
            self.model,
            self.algorithm,
            self._backend,
            uses_graphs=self._uses_graphs,
            memory_limit=self._memory_limit,
        )


def _with_target(request: Any, target: Any) -> Request:
    if request is _MISSING or target is _MISSING:
        more, fewer = ("targets", "requests") if request is _MISSING else ("requests", "targets")
        raise ValueError(
            f"there must be one target for every request, but there are more {more} than {fewer}"
        )
    return dataclasses.replace(Request.of(request), target=target)


def _check_on_error(on_error: str) -> None:
    if on_error not in ("return", "raise"):
        raise ValueError(f"`on_error` must be 'return' or 'raise', but is {on_error!r}")


def _checked(results: list[Result], on_error: str) -> list[Result]:
    if on_error == "raise" and any(result.error is not None for result in results):
        raise DecodeError(results)
    return results
