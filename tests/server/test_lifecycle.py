"""A server that is told to stop finishes what it has taken, and says 503 to the rest."""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from pybeam.server import lifecycle
from pybeam.server.settings import Settings
from support.example_lines import LINES
from support.paths import MODEL
from support.server_process import ServerProcess, gauge, needs_proc, running, wait_until

# a request that keeps an engine busy for a while
LONG = {"text": [" ".join(LINES * 4)] * 64, "width": 32}
RUNNING = "pybeam:num_requests_running"


def test_it_listens_before_it_has_loaded_its_models(server):
    early = server.early
    assert early["/health"].status_code == 200
    assert early["/ready"].json() == {"status": "starting"}
    for path in ("/ready", "/metrics", "/translate", "/v1/models"):
        assert early[path].status_code == 503, path
        assert int(early[path].headers["retry-after"]) > 0
    assert "starting" in early["/translate"].json()["error"]
    assert httpx.get(f"{server.url}/ready").status_code == 200


def test_what_cannot_be_read_again_keeps_nothing_else_from_it():
    """Such as the audit log, whose disk is full, when a key is withdrawn."""
    called = []

    def fail():
        called.append("fail")
        raise OSError("no room")

    server = lifecycle.Server(lambda: None, Settings(), [fail, lambda: called.append("read")])
    server._read_again()
    assert called == ["fail", "read"]


@pytest.mark.slow
def test_it_may_be_stopped_before_it_is_ready():
    with running(models=[MODEL], is_ready=False) as server:
        wait_until(lambda: server.url, seconds=60)
        assert server.stop() == 0


@pytest.mark.slow
def test_it_ends_if_its_models_cannot_be_loaded(tmp_path):
    with running(models=[tmp_path], is_ready=False) as server:
        assert server.wait() == 1
        assert "config.json" in server.lines[-1]


@pytest.fixture(params=[(), ("--processes", "2")], ids=["threads", "processes"])
def own_server(request):
    with running(*request.param, models=[MODEL]) as server:
        yield server


@pytest.mark.slow
def test_sigterm_under_load_loses_no_request(own_server):
    statuses: dict[str, int | None] = {}
    server = own_server

    def ask(client: int) -> None:
        body = {"text": LINES}
        with httpx.Client(base_url=server.url, timeout=60) as http:
            for count in itertools.count():
                name = f"{client}-{count}"
                headers = {"X-Request-Id": name}
                try:
                    response = http.post("/v1/translations", json=body, headers=headers)
                except httpx.TransportError:
                    statuses[name] = None
                    break
                statuses[name] = response.status_code
                if response.status_code != 200:
                    break

    threads = [threading.Thread(target=ask, args=[client]) for client in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) > 4)
    server.begin_to_stop()
    code = server.wait()
    for thread in threads:
        thread.join()
    assert code == 0
    assert {*statuses.values()} <= {200, 503, None}
    answered = {one["request_id"]: one["status"] for one in server.records() if "request_id" in one}
    # a client that came too late for an answer was never heard
    assert answered == {name: status for name, status in statuses.items() if status is not None}
    assert [*answered.values()].count(200) >= 8


@pytest.mark.slow
def test_while_it_stops_it_says_so_and_cancels_what_takes_too_long():
    with running("--shutdown-timeout", "1.5", models=[MODEL]) as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(f"{server.url}/v1/translations", json=LONG, timeout=60))

        thread = threading.Thread(target=ask)
        thread.start()
        with httpx.Client(base_url=server.url) as http:
            time.sleep(0.3)
            server.begin_to_stop()
            wait_until(lambda: http.get("/ready").status_code == 503)
            assert http.get("/health").status_code == 200
            response = httpx.post(f"{server.url}/v1/translations", json={"text": "a"})
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
        start = time.monotonic()
        assert server.wait() == 0
        thread.join()
        assert [answer.status_code for answer in answers] == [503]
        assert time.monotonic() - start < 15
        assert any("cancelling 1" in record["message"] for record in server.records())


@pytest.mark.slow
def test_a_second_signal_hurries():
    with running(models=[MODEL]) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            with http.stream(
                "POST", "/v1/translations", json={**LONG, "text": LONG["text"][0], "stream": True}
            ):
                server.begin_to_stop()
                wait_until(lambda: any("the server stops" in line for line in server.lines))
                server.begin_to_stop()
        assert server.wait() == 0


@pytest.mark.slow
def test_a_port_that_is_taken():
    with running(models=[MODEL]) as server:
        taken = r"address already in use(?s:.*)cannot listen at 127\.0\.0\.1, port \d+; give"
        with pytest.raises(AssertionError, match=taken):
            with running("--port", str(server.address[1]), models=[MODEL]):
                pass
        assert server.stop() == 0


@needs_proc
@pytest.mark.slow
def test_a_killed_engine_costs_its_requests_a_503_and_sigterm_leaves_no_process():
    with running("--processes", "2", models=[MODEL]) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(8) as pool:
            maker, engines = engine_processes(server)
            body = {"text": LONG["text"][0], "width": 32}
            answers = [pool.submit(http.post, "/v1/translations", json=body) for _ in range(8)]
            wait_until(lambda: gauge(http.get("/metrics").text, RUNNING) == len(answers))
            # nobody is done before the signal
            with stopped(engines):
                os.kill(engines[0], signal.SIGKILL)
            found = [one.result() for one in answers]
            # the other engine has its share
            assert {one.status_code for one in found} == {200, 503}
            assert all(one.headers["retry-after"] for one in found if one.status_code == 503)
            assert http.get("/ready").status_code == 200
            assert http.post("/v1/translations", json={"text": LINES}).status_code == 200
            processes = [maker, *children(maker)]
            assert len(processes) == 3 and engines[0] not in processes
        assert server.stop() == 0
        assert not [one for one in processes if Path(f"/proc/{one}").exists()]


@needs_proc
@pytest.mark.slow
def test_no_answer_to_a_deadline_waits_for_an_engine():
    """Whether its request runs or waits: engines stand still until all have their answers."""
    with running("--processes", "2", models=[MODEL]) as server:
        with httpx.Client(base_url=server.url, timeout=30) as http, ThreadPoolExecutor(8) as pool:

            def ask(timeout: float, on_deadline: str) -> Future[httpx.Response]:
                body = {"text": LONG["text"][0], "width": 32, "timeout": timeout}
                body |= {"on_deadline": on_deadline}
                return pool.submit(http.post, "/v1/translations", json=body)

            _, engines = engine_processes(server)
            answers = [ask(4, name) for name in ("raise", "best") * 2]
            wait_until(lambda: gauge(http.get("/metrics").text, RUNNING) == len(answers))
            with stopped(engines):
                answers += [ask(0.1, name) for name in ("raise", "best")]
                assert {one.result().status_code for one in answers} == {504}
            assert http.post("/v1/translations", json={"text": LINES}).status_code == 200
        assert server.stop() == 0


def engine_processes(server: ServerProcess) -> tuple[int, list[int]]:
    """The process that makes a server's engine processes, and these two."""
    [maker] = children(server.process.pid)
    engines = children(maker)
    assert len(engines) == 2
    return maker, engines


@contextlib.contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    """Let processes stand still."""
    for one in processes:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in processes:
            # it may have been killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def children(pid: int) -> list[int]:
    """The processes that a process has begun."""
    return [
        int(one)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for one in path.read_text().split()
    ]
