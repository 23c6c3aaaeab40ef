"""Logs say who asked what and how it ended, and never what the text was."""

import json
import logging

import pytest

from pybeam.server.logs import JSONFormatter, Trace
from support.server_process import wait_until

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def record_of(server, request_id):
    wait_until(lambda: any(request_id in line for line in server.lines))
    [record] = [one for one in server.records() if one.get("request_id") == request_id]
    return record


def test_a_request_and_its_ids(server, http):
    headers = {"X-Request-Id": "mine-1", "traceparent": PARENT}
    response = http.post("/v1/translations", json={"text": "Y el rey"}, headers=headers)
    assert response.headers["x-request-id"] == "mine-1"
    version, trace, span, flags = response.headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", PARENT.split("-")[1], "01")
    assert span != PARENT.split("-")[2]
    record = record_of(server, "mine-1")
    assert record["trace_id"] == trace and record["parent_id"] == PARENT.split("-")[2]
    assert (record["method"], record["path"]) == ("POST", "/v1/translations")
    assert (record["status"], record["model"], record["sources"]) == (200, "bible-es-en", 1)
    assert record["seconds"] >= record["decoding"] > 0


@pytest.mark.parametrize(
    "given",
    ["", "a b", "x" * 65, "\N{LATIN SMALL LETTER E WITH ACUTE}", "00-0-0-01", PARENT.upper()],
)
def test_ids_that_are_malformed_are_replaced(given):
    value = given.encode()
    trace = Trace.of({b"x-request-id": value, b"traceparent": value})
    if given not in ("00-0-0-01", PARENT.upper()):
        assert trace.request_id != given and len(trace.request_id) == 32
    assert trace.parent_id is None
    assert trace.traceparent != Trace.of({}).traceparent


def test_texts_are_never_logged(server, http):
    word = "Nabucodonosor"
    body = {"text": word, "source_lang": "es"}
    http.post("/v1/translations", json=body)
    http.post("/v1/translations", json={**body, "text": [word, 5]})
    http.post(f"/{word}", json=body)
    http.post("/v1/decode", json={"source": word, "processors": [{"name": word}]})
    http.post("/translate", data={"q": word, "source": "es", "target": word})
    http.post(
        "/v1/translations", content=f'{{"text": "{word}', headers={"X-Request-Id": "last-one"}
    )
    record_of(server, "last-one")
    assert word not in "".join(server.lines)


def test_a_record_is_one_line_of_json():
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        record = logging.LogRecord(
            "a", logging.ERROR, "", 1, "%s\n", ("é",), (ValueError, error, error.__traceback__)
        )
    line = JSONFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["message"]) == ("error", "é\n")
    assert "ValueError: a\nb" in found["exception"]
