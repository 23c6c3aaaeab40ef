"""Decode sources with one search, once: what a journal has is not decoded again."""

from __future__ import annotations

import dataclasses
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pybeam.arguments import whole
from pybeam.contracts import MAX_WIDTH
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.request import Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import greedy
from pybeam.search.overrides import with_default_prefix
from pybeam.study.exact import exact_search
from pybeam.study.identity import digest, digest_and_unknown, digest_of
from pybeam.study.journal import Journal

# a source that is decoded first, so that what is done once is not timed
PROBE_LENGTH, MOST_PROBES = 16, 64


@dataclass(frozen=True)
class Exact:
    """The search for the most probable output, with proof: `pybeam.exact_search` with these options.

    Args:
        max_length, min_length, width, together, max_expansions: as there.

    Raises:
        ValueError, TypeError: one of them is out of range.
    """

    max_length: int
    min_length: int = 0
    width: int = 128
    together: int = 32
    max_expansions: int | None = None

    def __post_init__(self) -> None:
        whole("max_length", self.max_length, 1)
        whole("min_length", self.min_length, 0, self.max_length - 1)
        whole("width", self.width, 1, MAX_WIDTH)
        whole("together", self.together, 1)
        if self.max_expansions is not None:
            whole("max_expansions", self.max_expansions, 1)


class Record(NamedTuple):
    """The output of a search for a source, as a journal keeps it.

    Attributes:
        tokens: generated ids, without prefix and EOS; None: nothing was found.
        ended: whether they end in EOS, and are not cut.
        stop_reason, steps, expansions: as in `pybeam.Result`.
        cpu_seconds: of the process, between the result before and this one.
        error: why there is none.
        is_proven: whether it is known that no output is more probable.
    """

    tokens: list[int] | None
    ended: bool
    stop_reason: str
    steps: int
    expansions: int
    cpu_seconds: float
    error: str | None = None
    is_proven: bool = False


Tell = Callable[[], object]


class Run(ABC):
    """One search over all sources.

    Attributes:
        name: of the search.
        by: says what its results depend on, besides the source.
        unknown: types of objects that cannot be told from others, so that no other call finds a result.
        proves: whether it may prove that no output is more probable.
    """

    name: str
    by: str
    unknown: Sequence[str] = ()
    proves = False

    def records(self, requests: Sequence[Request], journal: Journal, tell: Tell) -> list[Record]:
        """Return a record of each request, of which the journal may have some; `tell` is called for each.

        Raises RuntimeError if all fail."""
        if journal.is_kept and self.unknown:
            warnings.warn(
                f"the journal cannot give the outputs of {self.name!r} to another call: it depends on "
                f"{', '.join(sorted({*self.unknown}))}, whose objects cannot be told from others; those of a "
                "class that can be pickled can",
                stacklevel=3,
            )
        sources = [digest_of(request) for request in requests]
        found: dict[int, Record] = {}
        for place, source in enumerate(sources):
            kept = journal.get(self.by, source)
            if kept is not None:
                found[place] = Record(**kept)
                tell()
        left = [place for place in range(len(requests)) if place not in found]
        for index, record in self._decoded([requests[place] for place in left]):
            place = left[index]
            found[place] = record
            # an error may be gone the next time
            if record.error is None:
                journal.add(self.by, sources[place], record._asdict())
            tell()
        errors = [one.error for one in found.values()]
        if None not in errors:
            raise RuntimeError(
                f"the search {self.name!r} fails for every source, for the first with {errors[0]}"
            )
        return [found[place] for place in range(len(requests))]

    @abstractmethod
    def _decoded(self, requests: list[Request]) -> Iterator[tuple[int, Record]]:
        """Yield a record of each request, with its place, as soon as it is known."""

    def latencies(self, requests: Sequence[Request], journal: Journal, tell: Tell) -> list[float]:
        """Return the seconds that each request takes when it comes alone; `tell` is called for each."""
        found = []
        for request in requests:
            source = digest_of(request)
            kept = journal.get(f"{self.by} alone", source)
            if kept is None:
                start = time.perf_counter()
                for _ in self._decoded([request]):
                    pass
                kept = {"seconds": time.perf_counter() - start}
                journal.add(f"{self.by} alone", source, kept)
            found.append(float(kept["seconds"]))
            tell()
        return found


class DecoderRun(Run):
    """The search of a decoder."""

    def __init__(self, name: str, decoder: Decoder, requests: Sequence[Request]) -> None:
        self.name, self._decoder = name, decoder
        algorithm = decoder.algorithm
        depends_on = repr(decoder), algorithm, decoder.schedule, _probe(decoder, requests)
        self.by, self.unknown = digest_and_unknown(name, *depends_on)

    def _decoded(self, requests: list[Request]) -> Iterator[tuple[int, Record]]:
        before = time.process_time()
        for result in self._decoder.stream(requests):
            now = time.process_time()
            yield result.index, self._record(requests[result.index], result, now - before)
            before = now

    def _record(self, request: Request, result: Result, cpu_seconds: float) -> Record:
        common = (result.stop_reason, result.steps, result.expansions, cpu_seconds)
        if not result.hypotheses:
            error = None if result.error is None else str(result.error)
            return Record(None, False, *common, error)
        best = result.hypotheses[0]
        model, algorithm = self._decoder.model, self._decoder.algorithm
        prefix = with_default_prefix(request, algorithm, model).prefix_length
        return Record(list(best.tokens[prefix:]), best.ended, *common)


class ExactRun(Run):
    """`exact_search`, some sources at a time."""

    proves = True

    def __init__(self, name: str, exact: Exact, model: Model, requests: Sequence[Request]) -> None:
        self.name, self._exact, self._model = name, exact, model
        self.by = digest(name, exact, identity(model, requests))

    def _decoded(self, requests: list[Request]) -> Iterator[tuple[int, Record]]:
        together = self._exact.together
        for start in range(0, len(requests), together):
            some = requests[start : start + together]
            before = time.process_time()
            results = exact_search(self._model, some, **dataclasses.asdict(self._exact))
            share = (time.process_time() - before) / len(some)
            for index, found in enumerate(results, start):
                tokens = None if found.tokens is None else list(found.tokens)
                ended = found.tokens is not None
                cost = 0, found.expansions, share
                yield index, Record(tokens, ended, "exact", *cost, is_proven=found.is_exact)


def run_of(
    name: str, search: Any, model: Model, schedule: Schedule | None, requests: Sequence[Request]
) -> DecoderRun | ExactRun:
    """Return the run of a search that has this name. Raises TypeError if it is none."""
    if isinstance(search, Exact):
        return ExactRun(name, search, plain(model), requests)
    if isinstance(search, Algorithm):
        search = Decoder(model, search, schedule)
    if not isinstance(search, Decoder):
        raise TypeError(
            f"a search must be an algorithm such as pybeam.fixed_beam(5), a pybeam.Decoder, or a "
            f"pybeam.study.Exact, but {name!r} is {search!r}"
        )
    return DecoderRun(name, search, requests)


def plain(model: Model) -> Model:
    """Return the model without the settings of its folder, which are no part of its log-probabilities."""
    return model.without(*model.settings.names)


def identity(model: Model, requests: Sequence[Request]) -> str:
    """Return what tells a model from others: how it looks, and what it says of a source."""
    decoder = Decoder(model, greedy(max_length=PROBE_LENGTH, ended_only=False))
    return digest(type(model).__qualname__, repr(model), _probe(decoder, requests))


def _probe(decoder: Decoder, requests: Sequence[Request]) -> object:
    """The outputs of the first source that has one. Only they depend on weights, an error does not.

    Without any, it is an object that no other is like, so that nothing is taken from a journal.
    """
    for request in requests[:MOST_PROBES]:
        [result] = decoder.decode([request], on_error="return")
        if result.hypotheses:
            # the last digits may differ on a GPU
            return [(one.tokens, f"{one.score:.5f}") for one in result.hypotheses]
    return object()


def log_probs(
    model: Model,
    requests: Sequence[Request],
    outputs: Sequence[Sequence[list[int] | None]],
    journal: Journal,
    schedule: Schedule | None,
) -> list[list[float]]:
    """Return the log-probability of outputs and of EOS behind them, by the model alone.

    Args:
        model: has no settings.
        requests: whose sources and prefixes count.
        outputs: lists with an output for each request; None has -inf.
        journal: may have some.
        schedule: of those that it has not.
    """
    by = f"{identity(model, requests)} score" if requests else ""
    asked: dict[str, Request] = {}
    keys: list[list[str | None]] = []
    for own in outputs:
        keys.append([])
        for request, tokens in zip(requests, own, strict=True):
            key = None
            if tokens is not None:
                given = Request(request.source, request.prefix, source_id=request.source_id)
                key = digest_of(dataclasses.replace(given, target=tokens))
                if journal.get(by, key) is None:
                    asked.setdefault(key, dataclasses.replace(given, target=tokens))
            keys[-1].append(key)
    places = list(asked)
    for result in Decoder(model, greedy(), schedule).stream(list(asked.values())):
        # where a model has no position for EOS, the output ends nowhere
        score = result.hypotheses[0].score if result.hypotheses else -float("inf")
        journal.add(by, places[result.index], {"log_prob": score})
    return [
        [-float("inf") if key is None else _known(journal, by, key) for key in own] for own in keys
    ]


def _known(journal: Journal, by: str, key: str) -> float:
    found = journal.get(by, key)
    assert found is not None
    return float(found["log_prob"])
