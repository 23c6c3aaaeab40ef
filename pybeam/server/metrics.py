"""Metrics for Prometheus. They have the names that dashboards know from vLLM, behind `pybeam:`."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pybeam.server.model_manager import ModelManager
from pybeam.serving import Cost, Listener, Service, Times
from pybeam.serving.answers import Reason

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 4096)
MODEL = ("model_name",)
# what is counted together
MOST_LATER = 64
# what a model does now: the metric, the field of `ServiceStatus`, the help
GAUGES = (
    ("num_requests_running", "num_running", "Requests that are being decoded."),
    ("num_requests_waiting", "num_waiting", "Requests that wait for their turn."),
    ("waiting_work", "waiting_work", "Source tokens times width, summed over those that wait."),
    ("live_rows", "num_rows", "Hypotheses that the last step sent through the model."),
    ("kv_cache_usage_perc", "cache_use", "Share of the allocated pages that is in use; 1 is all."),
    ("kv_cache_pages", "num_pages", "Allocated pages of keys and values."),
)


class Metrics(Listener):
    """Counts what the service says and what the server answers."""

    def __init__(self) -> None:
        # the time at which each series began would double the page
        prometheus_client.disable_created_metrics()
        self._registry = CollectorRegistry()
        self._backlog: collections.deque[tuple[Callable[..., None], tuple[Any, ...]]]
        self._backlog = collections.deque()
        self._answers = self._counter("http_answers", "Answers.", ("path", "status"))
        self._finished = self._counter(
            "request_success",
            "Requests that left the service: finished, deadline, cancelled, error.",
            (*MODEL, "finished_reason"),
        )
        self._rejected = self._counter(
            "requests_rejected", "Requests refused by a full queue.", (*MODEL, "limit")
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Source tokens, or frames.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens of the best outputs.")
        self._expansions = self._counter("expansions", "Rows sent through the model.")
        self._latency = self._histogram("e2e_request_latency_seconds", "Whole time in the service.")
        self._queued = self._histogram("request_queue_time_seconds", "Time in the queue.")
        self._encoding = self._histogram("request_prefill_time_seconds", "Time of the encoder.")
        self._decoding = self._histogram("request_decode_time_seconds", "Time in the beam.")
        self._first = self._histogram(
            "time_to_first_token_seconds", "Time to the first certain token of a stream."
        )
        self._width = self._histogram("request_rows", "Mean rows of a request in a step.", ROWS)

    # the series of each value of the labels is looked up once
    def _counter(
        self, name: str, text: str, labels: Sequence[str] = MODEL
    ) -> Callable[..., Counter]:
        return cache(Counter(f"pybeam:{name}", text, labels, registry=self._registry).labels)

    def _histogram(
        self, name: str, text: str, buckets: Sequence[float] = SECONDS
    ) -> Callable[..., Histogram]:
        registry = self._registry
        return cache(
            Histogram(f"pybeam:{name}", text, MODEL, registry=registry, buckets=buckets).labels
        )

    def watch(self, service: Service, manager: ModelManager) -> None:
        """Ask for what models do and take, whenever the metrics are read."""
        self._registry.register(_Status(service, manager))

    def text(self) -> bytes:
        """Return the metrics in Prometheus' format."""
        self._catch_up()
        return generate_latest(self._registry)

    def families(self) -> list[Metric]:
        """Return the metrics, which another process may read."""
        self._catch_up()
        return list(self._registry.collect())

    def answered(self, path: str, status: int) -> None:
        """Count an answer."""
        self._answers(path, status).inc()

    def on_rejected(self, model: str, limit: str) -> None:
        """Count a request that a full queue refused."""
        self._rejected(model, limit).inc()

    def on_started(self, model: str, cost: Cost, queued: float) -> None:
        """Count a request that the engine has taken."""
        self._later(self._count_started, model, cost, queued)

    def _count_started(self, model: str, cost: Cost, queued: float) -> None:
        self._queued(model).observe(queued)
        self._prompt_tokens(model).inc(cost.source_tokens)

    def began_to_stream(self, model: str, seconds: float) -> None:
        """Count the time to the first event of a stream."""
        self._first(model).observe(seconds)

    def on_finished(
        self, model: str, reason: Reason, cost: Cost, times: Times, num_tokens: int
    ) -> None:
        """Count a request that has left."""
        self._later(self._count_finished, model, reason, cost, times, num_tokens)

    def _later(self, count: Callable[..., None], *facts: Any) -> None:
        """Count this when somebody asks, or with others: engines wait while it is counted."""
        self._backlog.append((count, facts))
        if len(self._backlog) >= MOST_LATER:
            self._catch_up()

    def _catch_up(self) -> None:
        # other threads may do so at the same time
        with contextlib.suppress(IndexError):
            while True:
                count, facts = self._backlog.popleft()
                count(*facts)

    def _count_finished(
        self, model: str, reason: Reason, cost: Cost, times: Times, num_tokens: int
    ) -> None:
        self._finished(model, reason).inc()
        self._expansions(model).inc(times.expansions)
        self._generation_tokens(model).inc(num_tokens)
        if reason == "finished":
            self._latency(model).observe(times.total)
            self._encoding(model).observe(times.encoding)
            self._decoding(model).observe(times.decoding)
            self._width(model).observe(times.rows)


class Alone:
    """What `/ready` and `/metrics` say of one server; servers of a cluster have another in its place."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service, self._metrics = service, metrics

    async def is_ready(self) -> bool:
        """Whether all that serves takes requests."""
        return self._service.is_ready

    async def metrics(self) -> bytes:
        """Return the metrics of all that serves, in Prometheus' format."""
        return self._metrics.text()


class _Status(Collector):
    def __init__(self, service: Service, manager: ModelManager) -> None:
        self._service, self._manager = service, manager

    def collect(self) -> Iterator[Metric]:
        found = self._service.statuses
        for name, field, text in GAUGES:
            gauge = GaugeMetricFamily(f"pybeam:{name}", text, labels=MODEL)
            for model, status in found.items():
                gauge.add_metric([model], getattr(status, field))
            yield gauge
        steps = CounterMetricFamily("pybeam:engine_steps", "Steps of the engine.", labels=MODEL)
        phases = CounterMetricFamily(
            "pybeam:phase_seconds", "Seconds of each phase of a step.", labels=(*MODEL, "phase")
        )
        for model, status in found.items():
            steps.add_metric([model], status.num_steps)
            for phase, seconds in status.phase_seconds.items():
                phases.add_metric([model, phase], seconds)
        yield steps
        yield phases
        yield from self._memory()

    def _memory(self) -> Iterator[Metric]:
        weights = GaugeMetricFamily(
            "pybeam:model_weight_bytes", "Memory of its weights.", labels=MODEL
        )
        states = GaugeMetricFamily(
            "pybeam:model_state", "1 for the state that it has.", labels=(*MODEL, "state")
        )
        sizes: collections.Counter[str] = collections.Counter()
        for one in self._manager.all:
            sizes[one.name] += one.num_bytes
            states.add_metric([one.name, one.state], 1)
        for name, size in sizes.items():
            weights.add_metric([name], size)
        yield weights
        yield states
        if self._manager.budget is not None:
            budget = GaugeMetricFamily(
                "pybeam:memory_budget_bytes", "Memory that the weights of all models may take."
            )
            budget.add_metric([], self._manager.budget)
            yield budget
