"""`compare`: what searches find with one model, and what they cost, beside one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pybeam.arguments import ArgumentError, check_list, names_checked, whole
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import greedy
from pybeam.search.overrides import with_default_prefix
from pybeam.study.journal import Journal
from pybeam.study.metrics import (
    Bootstrap,
    Floats,
    Measure,
    Metric,
    checked_references,
    metric_of,
    one_each,
    ratio,
)
from pybeam.study.metrics import plain as plain_measure
from pybeam.study.runs import Exact, Record, log_probs, plain, run_of
from pybeam.study.tables import Comparison, Found
from pybeam.text.tokenizer import Tokenizer

# of float32 sums: outputs that are as probable have no error
TOLERANCE = 1e-4
QUANTILE = 0.95
# columns of every table, which no metric may have as its name
BUILT_IN = {"log prob", "search errors", "length", "expansions", "steps", "no output"}
BUILT_IN |= {"CPU ms", "latency ms", "95 %"}
OF_TEXTS, OF_IDS = ("bleu", "chrf"), ("exact_match",)


@runtime_checkable
class Task(Protocol):
    """A model with texts, such as `pybeam.load` returns.

    Attributes:
        decoder: has the model.
    """

    decoder: Decoder

    def request(self, source: Any) -> Request:
        """Return the request of a source."""

    def text(self, request: Request, tokens: Sequence[int]) -> str:
        """Return the text of an output."""


class _Reader(NamedTuple):
    """Makes requests of sources, and texts of outputs, which are ids without it."""

    model: Model
    request: Callable[[Any], Request]
    text: Callable[[Request, Sequence[int]], str] | None

    @classmethod
    def of(cls, model: Any, tokenizer: Tokenizer | None) -> _Reader:
        if isinstance(model, Task):
            if tokenizer is not None:
                raise ValueError("`tokenizer` must be left out, as the model has one")
            return cls(model.decoder.model, model.request, model.text)
        if not isinstance(model, Model):
            raise TypeError(
                "`model` must be a pybeam.Model, or a translator, a generator or a recognizer from "
                f"pybeam.load, but is {model!r}"
            )
        if tokenizer is None:
            return cls(model, Request.of, None)
        encode, decode = tokenizer.encode, tokenizer.decode
        return cls(
            model,
            lambda source: Request.of(encode(source) if isinstance(source, str) else source),
            lambda _, tokens: decode(tokens),
        )

    def requests(self, sources: Any) -> list[Request]:
        if isinstance(sources, str):
            raise TypeError("`sources` must be a list of sources, but is a text")
        if self.text is None:
            check_list("sources", sources, self.model.check)
        found = [self.request(source) for source in sources]
        if not found:
            raise ArgumentError("sources", "must have one source at least, but is empty")
        # outputs that are drawn follow from it, whatever is decoded beside them
        return [
            dataclasses.replace(one, source_id=i if one.source_id is None else one.source_id)
            for i, one in enumerate(found)
        ]


# one for each option of a call
@names_checked
def compare(
    searches: Mapping[str, Algorithm | Decoder | Exact],
    model: Model | Task,
    sources: Sequence[Any],
    references: Sequence[Any] | None = None,
    *,
    metrics: Sequence[Any] | None = None,
    tokenizer: Tokenizer | None = None,
    against: Algorithm | Decoder | Exact | None = None,
    schedule: Schedule | None = None,
    latency: int = 20,
    samples: int = 1000,
    seed: int = 12345,
    journal: str | None = None,
    progress: bool = True,
) -> Comparison:
    """Decode the same sources with several searches, and compare what they find and what they cost.

    The first search is the baseline, which the others are tested against by paired bootstrap (Koehn 2004).
    The columns of the result are

    - each of `metrics`, if there are references,
    - "log prob": the mean log-probability of outputs and their EOS, by the model alone. An output that was
      cut counts as if it ended there,
    - "search errors": the percentage of sources for which a more probable output is known, from the other
      searches or `against` (Stahlberg and Byrne 2019). It is a lower bound of the true number, and the true
      number where `against` is an `Exact` that has proven all its outputs,
    - "length": tokens, EOS included; "expansions": rows that the model computes; "steps": of a source,
    - "CPU ms": CPU time of the process for each source, under the schedule,
    - "latency ms" and "95 %": the median of the time of a source that comes alone, and what 95 % do not
      exceed.

    All but the times are the same each time, whatever the schedule.

    Args:
        searches: algorithms by name. A `pybeam.Decoder` has its own model and schedule; a
            `pybeam.study.Exact` is `pybeam.exact_search`.
        model: from `pybeam.load`, which reads texts or recordings, or from `pybeam.load_model`.
        sources: texts, recordings, or what a `pybeam.Decoder` takes. A source that fails has no output.
        references: an output for each source: texts, or ids where nothing makes texts of them. None: quality
            is not measured.
        metrics: "bleu", "chrf" and "ter" (by sacrebleu, with its defaults), "wer" (word error rate in
            percent, by jiwer), "exact_match" (in percent), any metric of sacrebleu, or functions of an output
            and its reference, whose mean counts. None: BLEU and chrF of texts, exact match of ids.
        tokenizer: makes ids of texts and texts of outputs, for a model from `pybeam.load_model`.
        against: another search whose outputs show search errors: a wider beam, or an `Exact`. It is not in
            the table.
        schedule: of algorithms; None: a decoder's default.
        latency: so many sources are also decoded alone, the first ones; 0: none.
        samples: of the sources, for intervals and tests; 0: there are none.
        seed: of these samples.
        journal: a file that keeps what is decoded. A comparison that was interrupted goes on from it, with
            the same result, and one with more searches, metrics or sources behind the others decodes only
            what is new. Times of a resumed search hold the work that was lost. None: there is no such file.
        progress: whether a bar is shown, on a terminal.

    Raises:
        ValueError, TypeError: an option is none, or the searches do not fit the model.
        ValueError: another comparison writes the journal.
        ImportError: a library that computes a metric is not installed.
        RuntimeError: all sources fail in a search.
    """
    if not isinstance(searches, Mapping) or not searches:
        raise TypeError(f"`searches` must be algorithms by name, but is {searches!r}")
    whole("latency", latency, 0)
    whole("samples", samples, 0)
    whole("seed", seed, 0)
    reader = _Reader.of(model, tokenizer)
    requests = reader.requests(sources)
    has_texts = reader.text is not None
    if references is not None:
        references = checked_references(references, len(requests), has_texts)
    asked = _metrics(metrics, references is not None, has_texts)
    runs = {
        name: run_of(name, search, reader.model, schedule, requests)
        for name, search in searches.items()
    }
    judge = None if against is None else run_of("", against, reader.model, schedule, requests)
    kept = Journal(journal)
    alone = requests[:latency]
    total = (len(runs) + (judge is not None)) * len(requests) + len(runs) * len(alone)
    # as a decoder gives it to a search that says nothing else
    prefixed = [with_default_prefix(one, greedy(), reader.model) for one in requests]
    try:
        with _bar(total, progress) as bar:
            records = {n: run.records(requests, kept, bar.update) for n, run in runs.items()}
            times = {n: run.latencies(alone, kept, bar.update) for n, run in runs.items()}
            judged = [] if judge is None else [judge.records(requests, kept, bar.update)]
        outputs = [[one.tokens for one in own] for own in (*records.values(), *judged)]
        scores = log_probs(plain(reader.model), prefixed, outputs, kept, schedule)
    finally:
        kept.close()
    found = {
        name: [_found(reader, *one) for one in zip(requests, own, records[name], strict=True)]
        for name, own in zip(records, scores, strict=False)
    }
    best = np.array(scores).max(0)
    table = _Table(Bootstrap(len(requests), samples, seed), list(found.values()))
    table.add_quality(asked, list(references or ()))
    table.add_search(best)
    table.add_times(list(times.values()))
    rows = dict(zip(found, table.rows, strict=True))
    is_exact = [run.proves for run in (*runs.values(), *([judge] if judge else []))]
    proven = [[one.is_proven for one in own] for own in (*records.values(), *judged)]
    num_proven = int(np.any(np.array(proven)[is_exact], 0).sum()) if any(is_exact) else None
    return Comparison(rows, found, best.tolist(), samples, num_proven, table.digits)


def _metrics(metrics: Sequence[Any] | None, has_references: bool, has_texts: bool) -> list[Metric]:
    """Return the metrics that are asked for. Raises for those that do not fit."""
    if not has_references:
        if metrics:
            raise ArgumentError("metrics", "must be left out where no references are given")
        return []
    if isinstance(metrics, str):
        raise TypeError(f"`metrics` must be a list, but is a text: [{metrics!r}]")
    given = (OF_TEXTS if has_texts else OF_IDS) if metrics is None else metrics
    unfit = [
        one for one in given if isinstance(one, str) and not has_texts and one != "exact_match"
    ]
    if unfit:
        raise ArgumentError(
            "metrics", f"must be of ids without a `tokenizer`, but {unfit[0]!r} reads texts"
        )
    found = [metric_of(one) for one in given]
    names = [one.name for one in found]
    taken = [name for name in names if name in BUILT_IN]
    if taken:
        raise ValueError(
            f"`metrics` must have names other than those of built-in columns, but one is {taken[0]!r}; "
            "rename the function, or use pybeam.study.Metric(name=...)"
        )
    # the same metric of sacrebleu with other options
    found = [
        one
        if names.count(one.name) == 1 or one.longer is None
        else dataclasses.replace(one, name=one.longer)
        for one in found
    ]
    names = [one.name for one in found]
    if len({*names}) < len(names):
        raise ArgumentError("metrics", f"must have names that differ, but has {names}")
    return found


def _bar(total: int, progress: bool) -> Any:
    from tqdm import tqdm

    # None: off unless stderr is a terminal
    return tqdm(total=total, unit=" sources", disable=None if progress else True)


def _found(reader: _Reader, request: Request, log_prob: float, record: Record) -> Found:
    tokens = record.tokens
    output: Any = tuple(tokens or ())
    if reader.text is not None:
        output = "" if tokens is None else reader.text(request, tokens)
    length = 0 if tokens is None else len(tokens) + record.ended
    return Found(output, log_prob, length, *record[1:7])


class _Table:
    """Measures of searches, column by column.

    Attributes:
        rows: of each search, its measures by column.
        digits: of each column, behind the point.
    """

    def __init__(self, bootstrap: Bootstrap, found: list[list[Found]]) -> None:
        self._bootstrap, self._found = bootstrap, found
        self.rows: list[dict[str, Measure]] = [{} for _ in found]
        self.digits: dict[str, int] = {}

    def add_quality(self, metrics: list[Metric], references: list[Any]) -> None:
        """Add what metrics say of the outputs."""
        for one in metrics:
            outputs = ([found.output for found in own] for own in self._found)
            statistics = [one.statistics(own, references) for own in outputs]
            self._add(one.name, self._bootstrap.measures(one.value, statistics), one.digits)

    def add_search(self, best: Any) -> None:
        """Add what follows from searches alone. `best` are the largest known log-probabilities."""
        log_prob = self._each("log_prob")
        # only where all have an output, so that searches are compared on the same sources
        shared = np.isfinite(log_prob).all(0)
        means = [np.stack([np.where(shared, own, 0.0), shared], 1) for own in log_prob]
        self._add("log prob", self._bootstrap.measures(ratio, means), 2)
        least = best - TOLERANCE * np.maximum(1.0, np.abs(best))
        self._add_means("search errors", 100.0 * ((log_prob < least) & np.isfinite(best)))
        for name in ("length", "expansions", "steps"):
            self._add_means(name, self._each(name))
        num_lost = (self._each("length") == 0).sum(1)
        if num_lost.any():
            self._add("no output", [plain_measure(float(one)) for one in num_lost], 0)

    def add_times(self, alone: list[list[float]]) -> None:
        """Add the times of all sources, and of those that came alone."""
        times = {"CPU ms": self._each("cpu_seconds").mean(1)}
        if alone[0]:
            times["latency ms"] = np.median(alone, 1)
            times["95 %"] = np.quantile(alone, QUANTILE, 1)
        for name, seconds in times.items():
            self._add(name, [plain_measure(1e3 * one) for one in seconds], 2)

    def _each(self, field: str) -> Floats:
        """[searches, sources] of a field."""
        found = [[getattr(one, field) for one in own] for own in self._found]
        return np.array(found, np.float64)

    def _add_means(self, name: str, values: Floats) -> None:
        self._add(name, self._bootstrap.measures(ratio, list(map(one_each, values))), 1)

    def _add(self, name: str, measures: list[Measure], digits: int) -> None:
        self.digits[name] = digits
        for row, measure in zip(self.rows, measures, strict=True):
            row[name] = measure
