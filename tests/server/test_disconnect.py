"""A client that goes takes its work with it."""

import json
import socket

import httpx
import pytest

from support.example_lines import LINES, translations
from support.server_process import gauge, wait_until

LONG = " ".join(LINES * 4)


def send(server, body: dict) -> socket.socket:
    connection = socket.create_connection(server.address)
    content = json.dumps(body).encode()
    head = "POST /v1/translations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def running(http: httpx.Client) -> float:
    text = http.get("/metrics").text
    return gauge(text, "pybeam:num_requests_running") + gauge(text, "pybeam:num_requests_waiting")


def cancelled(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("pybeam:http_answers_total") and 'status="499"' in line
    )


def test_clients_that_leave_while_they_wait(server, http):
    before = cancelled(http)
    body = {"text": LONG, "width": 32}
    connections = [send(server, body) for _ in range(20)]
    wait_until(lambda: running(http) >= 20)
    for connection in connections:
        connection.close()
    wait_until(lambda: running(http) == 0, seconds=5)
    wait_until(lambda: cancelled(http) == before + 20)
    metrics = http.get("/metrics").text
    for name in ("waiting_work", "live_rows", "kv_cache_usage_perc"):
        assert gauge(metrics, f"pybeam:{name}") == 0, name


def test_clients_that_leave_in_the_middle_of_a_stream(server, http):
    before = cancelled(http)
    connections = [
        send(server, {"text": LONG, "width": 1, "stream": True, "max_length": 250})
        for _ in range(10)
    ]
    for connection in connections:
        assert b"200 OK" in connection.recv(100)
        connection.close()
    wait_until(lambda: running(http) == 0, seconds=5)
    wait_until(lambda: cancelled(http) > before)


def test_others_get_what_they_would_get_alone(server, http):
    body = {"text": LINES[3], "width": 8, "n_best": 3}
    alone = http.post("/v1/translations", json=body).json()["translations"]
    connections = [send(server, {"text": LONG, "width": 20}) for _ in range(8)]
    wait_until(lambda: running(http) >= 4)
    for connection in connections[::2]:
        connection.close()
    beside = http.post("/v1/translations", json=body).json()["translations"]
    for connection in connections:
        connection.close()
    for one in (*alone, *beside):
        one.pop("times")
    assert beside == alone
    wait_until(lambda: running(http) == 0, seconds=5)


def test_a_body_that_stops_in_the_middle(server):
    connection = socket.create_connection(server.address, timeout=20)
    with connection:
        connection.sendall(
            b"POST /v1/translations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(1000)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "head", [b"", b"POST /v1/trans", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
def test_a_connection_that_says_nothing_more_is_closed(server, head):
    with socket.create_connection(server.address, timeout=20) as connection:
        connection.sendall(head)
        while connection.recv(1000):
            pass


def test_open_connections_are_in_nobody_s_way(server, http):
    connections = [socket.create_connection(server.address) for _ in range(300)]
    assert http.post("/v1/translations", json={"text": LINES[0]}).status_code == 200
    for connection in connections:
        connection.close()


@pytest.mark.slow
def test_a_thousand_clients_that_vanish(server, http):
    body = {"text": LONG, "width": 4, "stream": True, "max_length": 250}
    for _ in range(50):
        connections = [send(server, body) for _ in range(20)]
        connections[0].recv(100)
        for connection in connections:
            connection.close()
    wait_until(lambda: running(http) == 0, seconds=20)
    response = http.post("/v1/translations", json={"text": LINES[0]})
    assert response.json()["translations"][0]["text"] == translations()[0]
    metrics = http.get("/metrics").text
    assert gauge(metrics, "pybeam:kv_cache_usage_perc") == 0


def test_slow_readers_get_everything(server):
    with send(server, {"text": LINES[3], "width": 1, "stream": True}) as connection:
        found = b""
        while b"0\r\n\r\n" not in found:
            found += connection.recv(7)
    assert b"event: result" in found
