"""`Together`: what `/ready` and `/metrics` say of all replicas of a service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from pybeam.server.errors import RETRY_SECONDS, APIError
from ray import serve

# in which every replica answers that can
SECONDS = 5.0
LABEL = "replica"
UNHEARD = (TimeoutError, RayServeException)


class Report(NamedTuple):
    """A replica's knowledge of itself.

    Attributes:
        name: Ray's, of the replica.
        is_ready: whether it takes requests.
        metrics: of it alone.
    """

    name: str
    is_ready: bool
    metrics: Sequence[Metric]


class Together:
    """Asks all replicas that run, whichever of them a client has asked, and one question at a time.

    Args:
        num_least: replicas that the service has at least.
    """

    def __init__(self, num_least: int) -> None:
        self._num_least = num_least
        self._question: asyncio.Future[list[Report | BaseException]] | None = None

    async def is_ready(self) -> bool:
        """Whether each replica that runs takes requests, and enough of them run."""
        try:
            found = await self._heard()
        except UNHEARD:
            return False
        are_ready = [isinstance(one, Report) and one.is_ready for one in found]
        return all(are_ready) and len(are_ready) >= self._num_least

    async def metrics(self) -> bytes:
        """Return the metrics of each replica, labelled with its name, in Prometheus' format.

        A sum of counters would sink when a replica leaves, and Prometheus would count it twice.

        Raises:
            APIError: a replica does not answer.
        """
        try:
            found = await self._heard()
        except UNHEARD as error:
            problem = f"not all replicas answer within {SECONDS:g} seconds"
            raise APIError(503, problem, retry_after=RETRY_SECONDS) from error
        return generate_latest(_Labelled([one for one in found if isinstance(one, Report)]))

    async def _heard(self) -> list[Report | BaseException]:
        """Return what replicas say; clients who ask meanwhile hear the same, as they need no key for it."""
        if self._question is None or self._question.done():
            self._question = asyncio.ensure_future(_reports())
        # a client that goes takes the answer from nobody
        return await asyncio.shield(self._question)


@cache
def _replicas() -> DeploymentHandle:
    """Return those of this replica's service; Ray keeps the list of them."""
    return serve.get_app_handle(serve.get_replica_context().app_name)


async def _reports() -> list[Report | BaseException]:
    """Return what replicas say, and errors in place of those that are lost.

    Raises:
        TimeoutError, RayServeException: one takes too long, or none is known.
    """
    asked = _replicas().broadcast("report")
    found: list[Report | BaseException] = await asked.results_async(
        timeout_s=SECONDS, return_exceptions=True
    )
    return found


class _Labelled(Collector):
    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for report in self._reports:
            for one in report.metrics:
                family = found.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                family.samples += [
                    sample._replace(labels={**sample.labels, LABEL: report.name})
                    for sample in one.samples
                ]
        yield from found.values()
