"""A server in trouble answers what it can, and keeps nothing of what it cannot."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from support.example_lines import LINES, translations
from support.faulty_server import FAULTS
from support.paths import MODEL, ROOT
from support.server_process import gauge, memory, needs_proc, running, wait_until

MEGA = 1 << 20
PYTHONPATH = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))


def descriptors(server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def check_it_still_works(http: httpx.Client) -> None:
    response = http.post("/v1/translations", json={"text": LINES})
    assert [one["text"] for one in response.json()["translations"]] == translations()
    metrics = http.get("/metrics").text
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert gauge(metrics, f"pybeam:{name}") == 0, name


@pytest.fixture(scope="module")
def faulty():
    with running(models=[MODEL], module="support.faulty_server", PYTHONPATH=PYTHONPATH) as process:
        yield process
        assert process.stop() == 0


@pytest.mark.slow
@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_fails_for_one_source(faulty, fault):
    with httpx.Client(base_url=faulty.url, timeout=60) as http:
        answers = {}

        def ask(name: str, source: list[int]) -> None:
            answers[name] = http.post("/v1/decode", json={"source": source})

        good = [5, 6, 7, 2]
        alone = http.post("/v1/decode", json={"source": good}).json()["hypotheses"]
        sources = {"bad": [*FAULTS[fault], 2], **{f"good {i}": good for i in range(6)}}
        threads = [threading.Thread(target=ask, args=one) for one in sources.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        error = answers.pop("bad")
        assert error.status_code == 500
        assert "log" in error.json()["error"]["message"]
        for one in answers.values():
            assert one.status_code == 200
            assert one.json()["hypotheses"] == alone
        body = {"source": [*FAULTS[fault], 2], "stream": True}
        streamed = http.post("/v1/decode", json=body)
        assert streamed.status_code == 500 or "event: error" in streamed.text
        check_it_still_works(http)


@pytest.mark.slow
def test_the_wall_clock_jumps(faulty):
    times = [record["time"][:13] for record in faulty.records()]
    assert len({*times}) > 1
    with httpx.Client(base_url=faulty.url, timeout=60) as http:
        for _ in range(4):
            response = http.post("/v1/translations", json={"text": LINES[2], "timeout": 30})
            times = response.json()["translations"][0]["times"]
            assert 0 <= times["queued"] + times["encoding"] + times["decoding"] < 30


@needs_proc
def test_bodies_of_10_mb_are_not_kept(server, http):
    before = memory(server)
    head = b"POST /v1/translations HTTP/1.1\r\nHost: localhost\r\n"
    for _ in range(12):
        with socket.create_connection(server.address, timeout=20) as connection:
            # of no declared length, so that the server has to count
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(10):
                    connection.sendall(b"%x\r\n%s\r\n" % (MEGA, b"a" * MEGA))
                assert b" 413 " in connection.recv(1000)
        with socket.create_connection(server.address, timeout=20) as connection:
            connection.sendall(head + b"Content-Length: 10000000\r\n\r\n")
            assert b" 413 " in connection.recv(1000)
    check_it_still_works(http)
    assert memory(server) < before + 20 * MEGA


@needs_proc
def test_connections_of_clients_that_went_are_closed(server, http):
    check_it_still_works(http)
    before = descriptors(server)
    body = json.dumps({"text": " ".join(LINES), "stream": True, "best_so_far": True}).encode()
    head = (
        b"POST /v1/translations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    content = b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
    connections = [socket.create_connection(server.address) for _ in range(48)]
    for i, connection in enumerate(connections):
        # whole requests, halves of bodies, halves of heads, nothing
        connection.sendall(content[: (len(content), -9, 30, 0)[i % 4]])
    for connection in connections[::4]:
        assert b" 200 " in connection.recv(100)
    for connection in connections:
        connection.close()
    wait_until(lambda: descriptors(server) <= before)
    wait_until(lambda: gauge(http.get("/metrics").text, "pybeam:num_requests_running") == 0)
    check_it_still_works(http)


@pytest.mark.slow
@needs_proc
def test_ten_thousand_open_connections():
    with running("--body-timeout", "300", models=[MODEL]) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            check_it_still_works(http)
            before = descriptors(server)
            connections = []
            try:
                for _ in range(10_000):
                    connections.append(socket.create_connection(server.address, timeout=20))
            except OSError as error:
                pytest.skip(f"this system has not so many: {error}")
            wait_until(lambda: descriptors(server) >= before + 10_000, seconds=60)
            check_it_still_works(http)
            for connection in connections:
                connection.close()
            wait_until(lambda: descriptors(server) <= before, seconds=60)
            check_it_still_works(http)
        assert server.stop() == 0


def steady_load(server, http: httpx.Client, seconds: float) -> None:
    """Let clients come, go, fail and change their minds, and see that nothing piles up."""

    async def whole() -> None:
        end = asyncio.get_running_loop().time() + seconds

        async def client(number: int) -> None:
            count = 0
            while asyncio.get_running_loop().time() < end:
                async with httpx.AsyncClient(base_url=server.url, timeout=60) as own:
                    for _ in range(8):
                        await one(own, number, count := count + 1)

        await asyncio.gather(*(client(number) for number in range(6)))

    async def one(own: httpx.AsyncClient, number: int, count: int) -> None:
        line = LINES[(number + count) % len(LINES)]
        match count % 8:
            case 0:
                async with own.stream(
                    "POST", "/v1/translations", json={"text": line, "stream": True}
                ) as response:
                    await anext(response.aiter_bytes())
            case 1:
                with contextlib.suppress(httpx.TimeoutException):
                    await own.post("/v1/translations", json={"text": line}, timeout=0.01)
            case 2:
                response = await own.post("/v1/translations", json={"text": line, "width": 99})
                assert response.status_code == 400
            case 3:
                response = await own.post("/v1/translations", json={"text": line, "timeout": 0.02})
                assert response.status_code in (200, 503, 504)
            case _:
                response = await own.post("/v1/translations", json={"text": line})
                assert response.status_code == 200
                [found] = response.json()["translations"]
                assert found["text"] == translations()[LINES.index(line)]

    asyncio.run(whole())


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("seconds", [0.8, pytest.param(60, marks=pytest.mark.slow)])
def test_steady_load_leaves_nothing_behind(server, http, seconds):
    # allocators keep what the first load needed
    steady_load(server, http, seconds / 5)
    check_it_still_works(http)
    before = descriptors(server), memory(server)
    steady_load(server, http, seconds)
    wait_until(lambda: descriptors(server) <= before[0])
    check_it_still_works(http)
    assert memory(server) < before[1] + 16 * MEGA


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_logs():
    port = free_port()
    command = [sys.executable, "-m", "pybeam", "serve", "--model", str(MODEL), "--port", str(port)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command, stderr=full, cwd=ROOT, env=environment)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

            def is_ready() -> bool:
                with contextlib.suppress(httpx.ConnectError):
                    return http.get("/ready").status_code == 200
                assert process.poll() is None
                return False

            wait_until(is_ready, seconds=120)
            check_it_still_works(http)
            assert http.post("/v1/translations", json={}).status_code == 400
            check_it_still_works(http)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_server_that_is_killed_starts_again_at_once():
    port = str(free_port())
    errors: list[Exception] = []
    with running("--port", port, models=[MODEL]) as server:

        def ask() -> None:
            body = {"text": [" ".join(LINES * 4)] * 32, "width": 20}
            try:
                httpx.post(f"{server.url}/v1/translations", json=body, timeout=60)
            except httpx.TransportError as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            wait_until(lambda: gauge(http.get("/metrics").text, "pybeam:num_requests_running") > 8)
        server.process.kill()
        server.wait()
        for thread in threads:
            thread.join()
        # nobody waits for an answer that cannot come
        assert len(errors) == 8
    with running("--port", port, models=[MODEL]) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            check_it_still_works(http)
        assert server.stop() == 0
