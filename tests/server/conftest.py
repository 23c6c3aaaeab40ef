"""One server process for all tests that need sockets and do not stop it."""

import httpx
import pytest

from support.server_process import running, wait_until


@pytest.fixture(scope="session")
def server():
    limits = ("--max-body", "20000", "--body-timeout", "0.5", "--max-connections-per-client", "3")
    with running(*limits, is_ready=False) as process:
        wait_until(lambda: process.url, seconds=60)
        # what it says while it starts
        paths = ("/health", "/ready", "/metrics", "/translate", "/v1/models")
        process.early = {path: httpx.get(process.url + path, timeout=60) for path in paths}
        process.until_ready()
        yield process
        assert process.process.poll() is None, "".join(process.lines)[-5000:]
        assert process.stop() == 0


@pytest.fixture(scope="session")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
