"""The sum of many answers: how many a second, how late, how many in time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pybeam.text.counts import counted
from pybeam.traffic.clients import Answer
from pybeam.traffic.loops import Window

PERCENTS = (50, 90, 99)
# a client is slow itself if it computes for so much of the time, or if the 99th percentile of its lags is
# above these seconds and this share of that of latencies
BUSY_SHARE, LAG_SECONDS, LAG_SHARE = 0.8, 0.002, 0.1


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of numbers in order, as numpy has it; NaN if there are none."""
    if not ordered:
        return math.nan
    place = percent / 100 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass
class Summary:
    """Counts answers.

    Percentiles are those of good ones alone, since whoever refuses is quick. Time is that from the end of the
    warm-up to the last answer.

    Attributes:
        window: which requests count.
        statuses: how many answers had each status; 0: there was no answer, or a stream broke off.
        problems: how many answers had each status and problem.
        latencies, firsts, lags: seconds, see `Answer`.
        until: end of the last answer that counts, in seconds from the start.
    """

    window: Window
    statuses: Counter[int] = field(default_factory=Counter)
    problems: Counter[tuple[int, str]] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    until: float = 0.0

    def add(self, moment: float, answer: Answer) -> None:
        """Count the answer to a request that was due at this moment."""
        if not self.window.counts(moment):
            return
        self.statuses[answer.status] += 1
        self.lags.append(answer.lag)
        if answer.problem:
            self.problems[answer.status, answer.problem] += 1
        # a request that waited in vain makes the time no longer
        self.until = max(self.until, moment + answer.latency if answer.status else moment)
        if answer.is_good:
            self.latencies.append(answer.latency)
            if answer.first is not None:
                self.firsts.append(answer.first)

    @property
    def seconds(self) -> float:
        """The time that counts."""
        return max(0.0, self.until - self.window.warm_up)

    def numbers(self, deadline: float) -> dict[str, Any]:
        """Return all numbers, times in ms.

        Args:
            deadline: seconds in which an answer is of use.
        """
        in_time = sum(one <= deadline for one in self.latencies)
        return {
            "requests": self.statuses.total(),
            "seconds": self.seconds,
            "answers_per_second": self._per_second(len(self.latencies)),
            "deadline_ms": 1e3 * deadline,
            "goodput_per_second": self._per_second(in_time),
            "latency_ms": _percentiles(self.latencies),
            "first_text_ms": _percentiles(self.firsts),
            "statuses": {str(status): number for status, number in sorted(self.statuses.items())},
            "problems": [
                {"status": status, "problem": problem, "requests": number}
                for (status, problem), number in self.problems.most_common()
            ],
            "client_lag_ms": _percentiles(self.lags),
        }

    def _per_second(self, number: int) -> float:
        return number / self.seconds if number else 0.0

    def slowness(self, busy_share: float) -> str | None:
        """Say why the client may have been slower than the server; None: it was not.

        Args:
            busy_share: share of the time for which the client computed.
        """
        lag, latency = (percentile(sorted(one), 99) for one in (self.lags, self.latencies))
        if lag > LAG_SECONDS and not lag < LAG_SHARE * latency:
            return f"a hundredth of its requests were sent {1e3 * lag:.1f} ms late or more"
        if busy_share > BUSY_SHARE:
            return f"it computed for {busy_share:.0%} of the time"
        return None


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    found = {f"p{percent}": 1e3 * percentile(ordered, percent) for percent in PERCENTS}
    return found | {"max": 1e3 * ordered[-1]}


def as_text(numbers: dict[str, Any]) -> str:
    """Write what `Summary.numbers` returns as a table."""
    return "\n".join(_lines(numbers))


def _lines(numbers: dict[str, Any]) -> Iterator[str]:
    yield f"{counted(numbers['requests'], 'request')} in {numbers['seconds']:.1f} s"
    yield f"answers/s       {numbers['answers_per_second']:10,.1f}"
    deadline = f"within {numbers['deadline_ms']:,.0f} ms"
    yield f"goodput/s       {numbers['goodput_per_second']:10,.1f}   {deadline}"
    names = [f"p{percent}" for percent in PERCENTS] + ["max"]
    yield " " * 16 + "".join(f"{name:>10}" for name in names)
    for title, key in (("latency, ms", "latency_ms"), ("first text, ms", "first_text_ms")):
        if found := numbers[key]:
            yield f"{title:16}" + "".join(f"{found[name]:10,.1f}" for name in names)
    for status, number in numbers["statuses"].items():
        of_status = [one for one in numbers["problems"] if str(one["status"]) == status]
        if status != "0":
            said = f"   {of_status[0]['problem']}" if of_status else ""
            yield f"status {status:9}{number:10,}{said}"
        for one in of_status if status == "0" else ():
            yield f"no answer       {one['requests']:10,}   {one['problem']}"
