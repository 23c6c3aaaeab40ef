"""The peers of the benchmark `service` start, and answer as `pybeam serve` does."""

from __future__ import annotations

import pytest

for module in (
    "ctranslate2",
    "fastapi",
    "httpx",
    "tabulate",
    "sacrebleu",
    "sentencepiece",
    "transformers",
):
    pytest.importorskip(module)

import httpx  # noqa: E402

from benchmarks import sizes  # noqa: E402
from benchmarks.journal import Journal  # noqa: E402
from benchmarks.peers import PEER  # noqa: E402
from benchmarks.servers import PLAIN, Servers, System  # noqa: E402
from benchmarks.setup import Setup  # noqa: E402
from support.example_lines import LINES  # noqa: E402


@pytest.mark.slow
def test_both_peers_start_and_say_the_same(tmp_path):
    setup = Setup("cpu", sizes.CPU, 1, tmp_path, Journal(tmp_path, "x", {}))
    servers, texts = Servers(setup), []
    try:
        for library in (PEER, PLAIN):
            host, port = servers.address(System(library, "int8", 5))
            with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as client:
                answer = client.post("/v1/translations", json={"text": LINES[0]})
                assert answer.status_code == 200, answer.text
                texts.append(answer.json()["translations"][0]["text"])
                if library == PEER:
                    assert "pybeam:num_requests_waiting" in client.get("/metrics").text
    finally:
        servers.close()
    assert texts[0] and texts[0] == texts[1]
