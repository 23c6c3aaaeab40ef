"""`Ticket`: a request on its way through a service."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from pybeam.engine.arrivals import Phase, Watch
from pybeam.request import Partial, Request, Result
from pybeam.serving.answers import Cost, ServedResult, Times
from pybeam.serving.errors import DeadlineExceeded
from pybeam.serving.forecast import NO_OUTLOOK, Outlook
from pybeam.serving.options import Options


@dataclass(eq=False, kw_only=True)
class Ticket:
    """A request on its way through a service.

    Attributes:
        request, cost, priority, client: what was asked for.
        most_steps: that it can take, as far as is known before it begins.
        deadline: when its time is over, on the service's clock.
        wants_best: whether it takes the best so far at its deadline.
        watch, tell: what it hears before its result, and who is told.
        future: what the caller holds. It stays pending until it has a result, so that it can be cancelled.
        index: its number in the queue of its model.
        num_certain: tokens that were certain when it last heard.
        tag: its place in the fair order of clients.
        width: the width of its beam, when it has begun.
        outlook: the time that it was expected to take when that was last asked.
        num_steps: those that its engine had behind it when it took the request.
        longest_step: the seconds that each of its steps may take if it is probably to be done in time.
        is_interrupted: whether its engine has been told to give the best so far.
        is_hopeless: whether it is not to begin, since its time is over, or expected to be too short.
        lateness: seconds by which it is expected to miss its deadline; 0: nothing says so.
        retry_after: seconds after which a request like it is expected to be done in time; None: never.
    """

    request: Request
    cost: Cost
    submitted: float
    most_steps: float = math.inf
    priority: int = 0
    client: Hashable = None
    deadline: float | None = None
    wants_best: bool = False
    watch: Watch = Watch.NOTHING
    tell: Callable[[Partial], None] | None = None
    future: Future[ServedResult] = field(default_factory=Future)
    index: int = -1
    num_certain: int = 0
    tag: float = 0.0
    width: int = 1
    outlook: Outlook = NO_OUTLOOK
    num_steps: int = 0
    longest_step: float = math.inf
    is_interrupted: bool = False
    is_hopeless: bool = False
    lateness: float = 0.0
    retry_after: float | None = None
    _phase: Phase = "wait"
    _since: float = 0.0
    _seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("wait", "encode", "decode"), 0.0)
    )

    def __post_init__(self) -> None:
        self._since = self.submitted

    @classmethod
    def of(cls, request: Request, options: Options, now: float) -> Ticket:
        """Return the ticket of a request that comes now, whose cost is not known yet."""
        timeout, since = options.get("timeout"), min(now, options.get("since", now))
        return cls(
            request=request,
            cost=Cost(0, 1),
            submitted=since,
            priority=options.get("priority", 0),
            client=options.get("client"),
            deadline=None if timeout is None else since + timeout,
            wants_best=options.get("on_deadline") == "best",
        )

    def enter(self, phase: Phase, now: float) -> None:
        """Count the time until now for the phase that ends."""
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def spare_step(self, now: float) -> float:
        """Return the seconds that each of its steps may take if it is probably to be done in time."""
        if self.deadline is None or self.wants_best or not self.outlook.steps:
            return math.inf
        return (self.deadline - now) / self.outlook.steps

    def too_late(self) -> DeadlineExceeded:
        """The error of its caller when its time is over, or too short."""
        assert self.deadline is not None
        seconds = self.deadline - self.submitted
        if self.lateness:
            again = (
                "" if self.retry_after is None else f" again in {self.retry_after:.1f} seconds, or"
            )
            return DeadlineExceeded(
                f"the request is expected to take {self.lateness:.2g} seconds longer than its `timeout` of "
                f"{seconds:g} seconds, beside those that run, and has not begun; send it{again} with a "
                "longer `timeout`",
                self.retry_after,
            )
        return DeadlineExceeded(f"the request's `timeout` of {seconds:g} seconds has passed")

    def resolve(self, answer: ServedResult | BaseException) -> None:
        """Give the caller the answer, unless it has gone or has one."""
        # a caller may go between two lines of code
        with contextlib.suppress(InvalidStateError):
            if isinstance(answer, BaseException):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)

    def times(self, result: Result | None = None) -> Times:
        """Where its time went until it entered its last phase."""
        cost = (0, 0) if result is None else (result.steps, result.expansions)
        seconds = self._seconds
        return Times(seconds["wait"], seconds["encode"], seconds["decode"], *cost)
