"""A client that goes takes its work with it."""

import json
import socket

import httpx

from support.example_lines import LINES
from support.server_process import gauge, wait_until

LONG = " ".join(LINES * 4)


def send(server, body: dict) -> socket.socket:
    connection = socket.create_connection(server.address)
    content = json.dumps(body).encode()
    head = "POST /v1/translations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
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
            b"POST /v1/translations HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(1000)
