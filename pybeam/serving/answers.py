"""The answers of a service about requests: costs, results with their times, events, its status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pybeam.request import Result

Reason = Literal["finished", "deadline", "cancelled", "error"]


@dataclass(frozen=True)
class Cost:
    """The cost of a request, as far as it is known before it begins.

    Attributes:
        source_tokens: ids, or frames, of its source.
        width: rows that its beam may have.
    """

    source_tokens: int
    width: int

    @property
    def work(self) -> int:
        """``source_tokens * width``, and at least 1."""
        return max(1, self.source_tokens * self.width)


@dataclass(frozen=True)
class Times:
    """Where the time of a request went.

    Attributes:
        queued: seconds in which it waited: for its turn, or for a place when its source had been encoded.
        encoding: seconds in which its source was encoded, beside others.
        decoding: seconds in which its beam was open.
        steps: steps in which its beam was extended.
        expansions: rows that were sent through the model for it.
    """

    queued: float
    encoding: float
    decoding: float
    steps: int = 0
    expansions: int = 0

    @property
    def rows(self) -> float:
        """Rows that it sent through the model in a step, on average."""
        return self.expansions / self.steps if self.steps else 0.0

    @property
    def total(self) -> float:
        """Seconds from `submit` to the result."""
        return self.queued + self.encoding + self.decoding


@dataclass(frozen=True)
class ServedResult:
    """The answer to a request.

    Attributes:
        result: what `Decoder.decode` returns. `Result.index` counts the requests of the model.
        times: where its time went.
        width: the width of its beam (of widths by step, the last); less than was asked for only by
            `Service`'s `width_by_load`.
        reason: "finished"; or "deadline": its timeout passed and `result` has the best so far, with
            `Result.stop_reason` "interrupted". These are the hypotheses that had finished, or else the best
            row of the beam as it was, whose `Hypothesis.ended` is False.
    """

    result: Result
    times: Times
    width: int
    reason: Literal["finished", "deadline"] = "finished"


@dataclass(frozen=True)
class Certain:
    """The certain tokens: the best hypothesis begins with these `tokens`, prefix included; see `Partial`."""

    tokens: list[int]


@dataclass(frozen=True)
class BestSoFar:
    """The `tokens` of the beam's best row, prefix included. The tokens behind the certain ones may change."""

    tokens: list[int]


@dataclass(frozen=True)
class ServiceStatus:
    """The state of a model of a service.

    Attributes:
        is_ready: whether it takes requests and its engine is running.
        num_running: requests that the engine has taken.
        num_waiting, waiting_work: requests that wait for their turn, and the sum of their `Cost.work`.
        num_rows: hypotheses that the last step sent through the model.
        num_steps: steps since the engine's stream began.
        num_pages: pages of keys and values that are allocated.
        cache_use: the share of them that sources hold.
        phase_seconds: seconds of each phase since the engine's stream began; see `Stats`.
    """

    is_ready: bool
    num_running: int
    num_waiting: int
    waiting_work: int
    num_rows: int
    num_steps: int
    num_pages: int
    cache_use: float
    phase_seconds: dict[str, float]


class Listener:
    """Hooks for metrics, which do nothing; subclasses override those that they need.

    They are called in the threads of the engines and of callers, and must be quick. An error in them is
    logged, and changes nothing.
    """

    def on_queued(self, model: str, cost: Cost) -> None:
        """A request of this `cost` waits for its turn at `model`."""

    def on_rejected(self, model: str, limit: str) -> None:
        """A request for `model` was refused by this `limit`, see `QueueFull`."""

    def on_started(self, model: str, cost: Cost, queued: float) -> None:
        """The engine of `model` took a request of this `cost` that was `queued` for so many seconds."""

    def on_certain(self, model: str, num_tokens: int, seconds: float) -> None:
        """`num_tokens` tokens of a streamed request for `model` are certain, `seconds` after `submit`."""

    def on_finished(
        self, model: str, reason: Reason, cost: Cost, times: Times, num_tokens: int
    ) -> None:
        """A request left.

        Args:
            model: its model.
            reason: "finished", "deadline" (it passed, or was out of reach), "cancelled" or "error".
            cost: what was known before.
            times: where its time went.
            num_tokens: tokens of its best hypothesis; 0 without one.
        """
