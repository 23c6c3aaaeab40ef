"""The answers of a service if it has no result."""

from __future__ import annotations


class QueueFull(Exception):
    """A request was refused, because too many wait.

    Attributes:
        limit: the name of the limit that it would exceed, "max_waiting" or "max_waiting_work".
        retry_after: seconds after which a request like it is expected to be done within its `timeout`; or,
            without one, those that wait now will have begun.
    """

    def __init__(self, limit: str, allowed: int, waiting: int, retry_after: float) -> None:
        super().__init__(limit, allowed, waiting, retry_after)
        self.limit, self.retry_after = limit, retry_after
        self._counts = allowed, waiting

    def __str__(self) -> str:
        allowed, waiting = self._counts
        return (
            f"the queue is full: `{self.limit}` is {allowed}, and {waiting} is waiting; try again in "
            f"{self.retry_after:.1f} seconds, or raise the limit"
        )


class DeadlineExceeded(TimeoutError):
    """A request's `timeout` passed, or cannot be met, before it had a result.

    Attributes:
        retry_after: seconds after which a request like it is expected to be done within its `timeout`. None:
            the `timeout` has passed, or is too short even for a request that is alone.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceClosed(RuntimeError):
    """The service has not been started, or is closing, or was closed before a request had a result."""


class EngineStalled(RuntimeError):
    """A step of the engine takes longer than `max_step_seconds`."""


class EngineCrashed(RuntimeError):
    """The process of the engine ended while it decoded the request. Another has begun: send it again."""
