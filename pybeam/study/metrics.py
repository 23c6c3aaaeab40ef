"""Measures of outputs beside references, by sums over sources, so that samples of sources cost little."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pybeam.arguments import ArgumentError, some

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacrebleuMetric

Floats = NDArray[np.float64]

INSTALL = "which is not installed: pip install 'pybeam-search[study]'"
# of samples that are drawn at once
MOST_DRAWN = 2**22
# 95 % lie between the 1/40 and the 39/40 of all
TAILS = 40


@dataclass(frozen=True)
class Metric:
    """A measure of many outputs, computed from sums.

    Attributes:
        name: the name of its column.
        statistics: makes numbers [N, k] of N outputs and their references.
        value: the measure, from the sums [k] of such numbers.
        digits: behind the point, in a table.
        longer: the name where another metric has the same one, by which the two differ; None: there is none.
    """

    name: str
    statistics: Callable[[Sequence[Any], Sequence[Any]], Floats]
    value: Callable[[Floats], float]
    digits: int = 1
    longer: str | None = None


class Measure(NamedTuple):
    """A number, and how far it can be trusted.

    Attributes:
        value: of all sources.
        low, high: 95 % of the samples of sources are between them.
        p_value: of the difference to the baseline; None: this is the baseline, or nothing was tested.
    """

    value: float
    low: float
    high: float
    p_value: float | None = None


def plain(value: float) -> Measure:
    """Return a number of which nothing more is known."""
    return Measure(value, math.nan, math.nan)


def metric_of(given: Any) -> Metric:
    """Return the metric of a name, of a metric of sacrebleu, or of a function of an output and its reference.

    Raises:
        ImportError: the library that computes it is not installed.
        ValueError, TypeError: it is none of these.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        if given not in NAMED:
            raise ArgumentError(
                "metrics",
                f"must hold {', '.join(map(repr, NAMED))}, a metric of sacrebleu, or a function of an output "
                f"and its reference, but holds {given!r}",
            )
        return NAMED[given]()
    if hasattr(given, "corpus_score"):
        return of_sacrebleu(given)
    if callable(given):
        return of_function(given)
    raise TypeError(f"`metrics` must hold names, metrics of sacrebleu and functions, not {given!r}")


def of_sacrebleu(metric: SacrebleuMetric, name: str | None = None) -> Metric:
    """Return a metric of sacrebleu, such as ``sacrebleu.metrics.BLEU(tokenize="zh")``."""

    # sacrebleu's own paired tests take these methods
    def statistics(outputs: Sequence[Any], references: Sequence[Any]) -> Floats:
        found = metric._extract_corpus_statistics(list(outputs), [list(references)])
        return np.array(found, np.float64)

    def value(sums: Floats) -> float:
        return float(metric._compute_score_from_stats(list(sums)).score)

    signature: Any = metric._SIGNATURE_TYPE({**vars(metric), "num_refs": 1})
    longer = f"{type(metric).__name__} {signature.format(short=True)}"
    return Metric(name or type(metric).__name__, statistics, value, longer=longer)


def of_function(function: Callable[[Any, Any], float]) -> Metric:
    """Return the mean of a function of an output and its reference."""

    def values(outputs: Sequence[Any], references: Sequence[Any]) -> list[float]:
        return [float(function(*pair)) for pair in zip(outputs, references, strict=True)]

    return _mean_of(getattr(function, "__name__", repr(function)), values, digits=3)


def _mean_of(
    name: str, values: Callable[[Sequence[Any], Sequence[Any]], Sequence[float]], digits: int = 1
) -> Metric:
    def statistics(outputs: Sequence[Any], references: Sequence[Any]) -> Floats:
        return one_each(values(outputs, references))

    return Metric(name, statistics, ratio, digits)


def one_each(values: Any) -> Floats:
    """Return numbers [N] as statistics [N, 2], whose `ratio` is the mean."""
    found = np.array(values, np.float64)
    return np.stack([found, np.ones_like(found)], 1)


def ratio(sums: Floats) -> float:
    """Divide the first sum by the second."""
    return float(sums[0] / sums[1]) if sums[1] else math.nan


def _sacrebleu(kind: str, name: str) -> Metric:
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ImportError(f"the metric needs sacrebleu, {INSTALL}") from error
    return of_sacrebleu(getattr(metrics, kind)(), name)


def _word_error_rate() -> Metric:
    try:
        import jiwer
    except ImportError as error:
        raise ImportError(f"the metric needs jiwer, {INSTALL}") from error

    def statistics(outputs: Sequence[Any], references: Sequence[Any]) -> Floats:
        rows = []
        for output, reference in zip(outputs, references, strict=True):
            words = jiwer.process_words(reference, output)
            wrong = words.substitutions + words.deletions + words.insertions
            rows.append((100.0 * wrong, words.hits + words.substitutions + words.deletions))
        return np.array(rows, np.float64)

    return Metric("WER", statistics, ratio)


def _exact_match() -> Metric:
    def values(outputs: Sequence[Any], references: Sequence[Any]) -> list[float]:
        return [100.0 * (a == b) for a, b in zip(outputs, references, strict=True)]

    return _mean_of("exact match", values)


NAMED: dict[str, Callable[[], Metric]] = {
    "bleu": lambda: _sacrebleu("BLEU", "BLEU"),
    "chrf": lambda: _sacrebleu("CHRF", "chrF"),
    "ter": lambda: _sacrebleu("TER", "TER"),
    "wer": _word_error_rate,
    "exact_match": _exact_match,
}


class Bootstrap:
    """Samples of N sources, with replacement, the same ones for all searches.

    Args:
        num_sources: N.
        samples: how many samples; 0: none, and nothing is tested.
        seed: of the samples.
    """

    def __init__(self, num_sources: int, samples: int, seed: int) -> None:
        self._num, self._samples, self._seed = num_sources, samples, seed

    def measures(
        self, value: Callable[[Floats], float], statistics: Sequence[Floats]
    ) -> list[Measure]:
        """Return the measure of each search; the first is the baseline.

        As in sacrebleu's paired bootstrap (Koehn 2004), with d the difference to the baseline and d_b that in
        sample b: ``p = (1 + |{b: |d_b| - mean |d_b| >= |d|}|) / (1 + samples)``. Equality counts here, and
        not there, so that equal outputs have p = 1.

        Args:
            value: of sums [k].
            statistics: [N, k] for each search.
        """
        values = [value(own.sum(0)) for own in statistics]
        if not self._samples:
            return [plain(one) for one in values]
        drawn = self._values(value, statistics)
        # samples in which a measure has no value, as all their references are empty, say nothing
        drawn = drawn[:, ~np.isnan(drawn).any(0)]
        if not drawn.shape[1]:
            return [plain(one) for one in values]
        num = drawn.shape[1]
        tail = num // TAILS
        found = []
        for place, one in enumerate(values):
            ordered = np.sort(drawn[place])
            p_value = None
            if place:
                differences = np.abs(drawn[place] - drawn[0])
                is_as_large = differences - differences.mean() >= abs(one - values[0])
                p_value = float((is_as_large.sum() + 1) / (num + 1))
            found.append(Measure(one, float(ordered[tail]), float(ordered[-tail - 1]), p_value))
        return found

    def _values(self, value: Callable[[Floats], float], statistics: Sequence[Floats]) -> Floats:
        """[searches, samples] values."""
        generator = np.random.default_rng(self._seed)
        at_once = max(1, MOST_DRAWN // max(self._num, 1))
        found: list[list[float]] = [[] for _ in statistics]
        for first in range(0, self._samples, at_once):
            size = min(at_once, self._samples - first)
            places = generator.choice(self._num, size=(size, self._num), replace=True)
            counts = np.stack([np.bincount(one, minlength=self._num) for one in places])
            for values, own in zip(found, statistics, strict=True):
                values += [value(sums) for sums in counts @ own]
        return np.array(found)


def checked_references(references: Sequence[Any], num_sources: int, texts: bool) -> list[Any]:
    """Return references as texts, or as tuples of ids. Raises ValueError or TypeError for what is none."""
    if isinstance(references, str):
        raise TypeError("`references` must be a list with one for each source, but is a text")
    listed = list(references)
    if len(listed) != num_sources:
        raise ArgumentError(
            "references",
            f"must have one for each of the {num_sources} sources, but has {len(listed)}",
        )
    wrong = [i for i, one in enumerate(listed) if isinstance(one, str) != texts]
    if wrong:
        kind = "texts" if texts else "lists of token ids, as there is no tokenizer"
        places = some(map(str, wrong))
        raise TypeError(f"`references` must be {kind}, but others are at places {places}")
    return listed if texts else [tuple(map(int, one)) for one in listed]
