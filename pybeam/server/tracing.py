"""Spans of OpenTelemetry (extra `otel`): one for each request, with what the log says of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.http_attributes import (
    HTTP_REQUEST_METHOD,
    HTTP_RESPONSE_STATUS_CODE,
    HTTP_ROUTE,
)
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Receive, Scope, Send

from pybeam import __version__
from pybeam.server.gates import OPEN_PATHS
from pybeam.server.logs import OTHER_PATH, Trace

# a method is a word that the client chooses
METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"}
# what the span itself says
OWN_FIELDS = {"trace_id", "span_id", "parent_id", "method", "path", "status", "seconds"}


@contextlib.contextmanager
def exported(endpoint: str) -> Iterator[Tracer]:
    """Give a tracer whose spans are sent to an OpenTelemetry collector; the last ones at the end.

    The library reads the other settings from the environment: `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`,
    `OTEL_EXPORTER_OTLP_HEADERS`, ….

    Args:
        endpoint: the collector's address for OTLP over HTTP, without the path of traces.
    """
    resource = Resource.create({SERVICE_VERSION: __version__})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "pybeam"}))
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider.get_tracer("pybeam.server", __version__)
    finally:
        provider.shutdown()


class Traced:
    """Middleware: gives every request a span, whose ids its log and its answer have.

    Paths that are asked all the time, such as `/health`, have none. No span holds a text.

    Args:
        app: with the `AccessLog`, which says how requests end.
        tracer: begins spans.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        carrier = {name.decode("latin-1"): one.decode("latin-1") for name, one in headers.items()}
        span = self._tracer.start_span("HTTP", self._propagator.extract(carrier), SpanKind.SERVER)
        context = span.get_span_context()
        state = scope.setdefault("state", {})
        state["trace"] = dataclasses.replace(
            Trace.of(headers),
            trace_id=format_trace_id(context.trace_id),
            span_id=format_span_id(context.span_id),
            flags=f"{context.trace_flags:02x}",
        )
        try:
            await self._app(scope, receive, send)
        finally:
            _end(span, state["record"])


def _end(span: Span, record: Mapping[str, Any]) -> None:
    """End a span with what the log says of its request."""
    method = record["method"] if record["method"] in METHODS else "_OTHER"
    path, status = record["path"], record["status"]
    span.set_attribute(HTTP_REQUEST_METHOD, method)
    span.set_attribute(HTTP_RESPONSE_STATUS_CODE, status)
    if path != OTHER_PATH:
        span.update_name(f"{method} {path}")
        span.set_attribute(HTTP_ROUTE, path)
    if status >= 500:
        span.set_status(StatusCode.ERROR)
        span.set_attribute(ERROR_TYPE, str(status))
    for name, value in record.items():
        if name not in OWN_FIELDS:
            span.set_attribute(f"pybeam.{name}", value)
    span.end()
