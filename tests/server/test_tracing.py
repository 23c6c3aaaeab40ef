"""Spans have the client's as parent, say where the time went, and never what the text was."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip(
    "opentelemetry.sdk", reason="the package opentelemetry-sdk is in the extra `otel`"
)

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pybeam.cli import main
from pybeam.server.tracing import exported
from support.example_lines import LINES
from support.paths import MODEL
from support.server_app import run

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
WORD = "Nabucodonosor"


def spans(test, **options):
    """The spans of the requests of a test, and what the test returns."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    returned = run(test, tracer=provider.get_tracer("test"), **options)
    return exporter.get_finished_spans(), returned


@pytest.mark.parametrize("stream", [False, True])
def test_the_parent_and_where_the_time_went(stream):
    async def test(client):
        headers = {"traceparent": PARENT, "tracestate": "a=b", "X-Request-Id": "mine"}
        body = {"text": LINES[0] if stream else LINES, "stream": stream}
        return await client.post("/v1/translations", json=body, headers=headers)

    [span], response = spans(test)
    version, trace, parent, flags = PARENT.split("-")
    assert f"{span.parent.span_id:016x}" == parent and span.parent.is_remote
    assert span.context.trace_state["a"] == "b"
    answered = f"{version}-{span.context.trace_id:032x}-{span.context.span_id:016x}-{flags}"
    assert response.headers["traceparent"] == answered and answered.split("-")[1] == trace
    assert (span.name, span.kind) == ("POST /v1/translations", SpanKind.SERVER)
    assert span.status.status_code == StatusCode.UNSET
    found = dict(span.attributes)
    seconds = [found.pop(f"pybeam.{name}") for name in ("queued", "encoding", "decoding")]
    # with several texts each is that of the slowest, so only one text has a sum within the whole
    most = sum(seconds) if stream else max(seconds)
    assert min(seconds) >= 0 and 0 < most * 1e9 < span.end_time - span.start_time
    steps, rows = found.pop("pybeam.steps"), found.pop("pybeam.rows")
    expansions = found.pop("pybeam.expansions")
    assert steps > 1 and 1 < rows <= 5 and expansions >= steps
    assert found == {
        "http.request.method": "POST",
        "http.route": "/v1/translations",
        "http.response.status_code": 200,
        "pybeam.request_id": "mine",
        "pybeam.model": "es-en",
        "pybeam.sources": 1 if stream else len(LINES),
        "pybeam.reason": "finished",
    }
    if stream:
        assert rows == pytest.approx(expansions / steps, abs=1e-3)


def test_a_trace_begins_here_without_a_parent():
    async def test(client):
        return [
            await client.get("/v1/models", headers=headers)
            for headers in ({}, {"traceparent": "00-0-0-01"}, {"traceparent": PARENT[:-1] + "0"})
        ]

    found, responses = spans(test)
    # the third client says that its trace is not kept
    assert [span.parent for span in found] == [None, None]
    for span, response in zip(found, responses, strict=False):
        assert f"{span.context.trace_id:032x}" == response.headers["traceparent"].split("-")[1]
    assert responses[2].headers["traceparent"].startswith(PARENT[:36])


def test_requests_that_fail():
    async def test(client):
        body = {"text": LINES, "width": 20, "timeout": 0.001}
        await client.post("/v1/translations", json=body)
        await client.post("/v1/translations", json={**body, "on_deadline": "maybe"})
        client.app.state.calls = None
        await client.get("/v1/models")

    (late, wrong, broken), _ = spans(test)
    assert late.attributes["http.response.status_code"] == 504
    assert late.attributes["error.type"] == "504"
    assert late.attributes["pybeam.model"] == "es-en" and "pybeam.reason" not in late.attributes
    assert wrong.attributes["http.response.status_code"] == 400
    assert broken.attributes["http.response.status_code"] == 500
    failed = [span.status.status_code == StatusCode.ERROR for span in (late, wrong, broken)]
    assert failed == [True, False, True]


def test_no_span_holds_a_text():
    async def test(client):
        body = {"text": WORD, "source_lang": "es", "n_best": 2}
        await client.post("/v1/translations", json=body)
        await client.post("/v1/translations", json={**body, "stream": True, "n_best": 1})
        await client.post("/v1/translations", json={**body, "text": [WORD, 5]})
        await client.post("/v1/decode", json={"source": WORD, "processors": [{"name": WORD}]})
        await client.get(f"/v1/models/{WORD}", params={"q": WORD})
        await client.request(WORD, f"/{WORD}", headers={"User-Agent": WORD, "baggage": WORD})

    found, _ = spans(test)
    assert len(found) == 6
    assert WORD not in "".join(span.to_json() for span in found)
    assert found[-1].name == "HTTP" and found[-1].attributes["http.request.method"] == "_OTHER"


def test_paths_that_are_asked_all_the_time_have_no_span():
    async def test(client):
        answers = [await client.get(path) for path in ("/health", "/ready", "/metrics", "/version")]
        assert [one.status_code for one in answers] == [200] * 4
        assert all("traceparent" in one.headers for one in answers)

    assert spans(test)[0] == ()


def test_spans_are_sent_to_the_collector(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b")
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(content)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    async def test(client):
        await client.get("/v1/models")

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        with exported(f"http://127.0.0.1:{collector.server_port}/") as tracer:
            run(test, tracer=tracer)
        collector.shutdown()
    [(path, request)] = received
    [spans_of] = request.resource_spans
    told = {one.key: one.value.string_value for one in spans_of.resource.attributes}
    assert path == "/v1/traces" and (told["service.name"], told["a"]) == ("pybeam", "b")
    assert [one.name for one in spans_of.scope_spans[0].spans] == ["GET /v1/models"]


def test_the_name_of_the_service_is_the_operators(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with exported("http://127.0.0.1:9") as tracer:
        assert tracer.resource.attributes["service.name"] == "mine"


def test_without_the_extra(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "pybeam.server.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert main(["serve", "--model", str(MODEL), "--otlp-endpoint", "http://127.0.0.1:9"]) == 1
    assert "pybeam-search[otel]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_without_spans_does_not_import_the_library():
    """The small package of names alone may be there: newer versions of FastAPI import it."""
    program = (
        "import sys; from support.server_app import run; "
        "run(lambda client: client.get('/v1/models')); "
        "names = ('opentelemetry.sdk', 'opentelemetry.exporter', 'pybeam.server.tracing'); "
        "print([name for name in names if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
