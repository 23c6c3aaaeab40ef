"""The audit log has a line for each request: who, from where, what, how long; and no text."""

from __future__ import annotations

import json
import logging
import os

import httpx
import pytest

from pybeam.server.audit import FIELDS, AuditLog
from pybeam.server.lifecycle import Server
from pybeam.server.settings import Settings
from support.example_lines import LINES
from support.paths import ROOT
from support.server_app import run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_request_and_no_text(path):
    word = "Nabucodonosor"

    async def test(http):
        key = {"Authorization": "Bearer good", "X-Request-Id": "mine"}
        body = {"text": [word, LINES[0]]}
        answer = await http.post("/v1/translations", json=body, headers=key)
        await http.post(f"/v1/{word}", json=body)
        await http.post("/translate", json={"q": word, "api_key": "good"})
        for operators in ("/health", "/ready", "/metrics", "/version"):
            await http.get(operators)
        return answer

    answer = run(test, keys=("good",), audit=AuditLog(str(path)))
    first, second, third = lines(path)
    assert [*first] == [*second] == list(FIELDS)
    assert word not in path.read_text() and "good" not in path.read_text()
    assert (path.stat().st_mode & 0o777) == 0o600
    expected = {"request_id": "mine", "key": "key-0", "address": "127.0.0.1", "method": "POST"}
    expected |= {"path": "/v1/translations", "status": 200, "model": "es-en", "sources": 2}
    assert first.items() >= expected.items()
    assert first["request_bytes"] == len(answer.request.content)
    assert first["response_bytes"] == len(answer.content)
    assert first["seconds"] >= first["decoding"] > 0 and first["time"].endswith("Z")
    assert (second["key"], second["status"], second["path"]) == (None, 401, "other")
    assert (third["key"], third["status"], third["decoding"]) == ("key-0", 400, None)


def test_the_page_says_the_fields_in_their_order():
    text = (ROOT / "docs" / "howto" / "deploy.md").read_text("utf-8")
    table = text[text.index("## The audit log") :].split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [name for cell in cells for name in cell.split("`")[1::2]] == list(FIELDS)


def test_a_file_that_is_renamed_stays_until_it_is_opened_anew(path):
    log = AuditLog(str(path))
    log.write({"status": 1})
    path.rename(path.with_suffix(".1"))
    log.write({"status": 2})
    log.reopen()
    log.write({"status": 3})
    log.close()
    found = [[one["status"] for one in lines(each)] for each in (path.with_suffix(".1"), path)]
    assert found == [[1, 2], [3]]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_said_once_and_costs_no_request(caplog):
    log = AuditLog("/dev/full")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            log.write({"status": 200})
    assert len(caplog.records) == 1 and "misses lines" in caplog.text
    log.close()


@pytest.mark.parametrize(
    ("trusted", "sent", "expected"),
    [
        ("127.0.0.0/8", "1.2.3.4, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.0/8", "203.0.113.9, 127.0.0.5", "203.0.113.9"),
        ("10.0.0.0/8", "203.0.113.9", "127.0.0.1"),
    ],
)
def test_the_address_of_the_client_behind_a_proxy(path, trusted, sent, expected):
    """The last address that no proxy has: those before it are what the client says itself."""

    async def test(http):
        server = Server(lambda: http.app, Settings(forwarded_allow_ips=(trusted,)))
        server._front.app = http.app
        server.config.load()
        transport = httpx.ASGITransport(server.config.loaded_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as proxy:
            await proxy.get("/v1/models", headers={"X-Forwarded-For": sent})

    run(test, audit=AuditLog(str(path)))
    assert [one["address"] for one in lines(path)] == [expected]
