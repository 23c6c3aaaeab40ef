"""`pybeam bench-serve`: what it sends, prints and refuses."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pybeam.cli import main
from support.late_server import OK, LateServer, refusal, stream
from support.paths import ROOT

QUICK = ("--warm-up", "0", "--requests", "4")


@pytest.fixture
def texts(tmp_path) -> str:
    path = tmp_path / "texts"
    path.write_text("uno\n\n dos\n", "utf-8")
    return str(path)


def run(server: LateServer, texts: str, *options: str) -> int:
    return main(["bench-serve", server.url, "--input", texts, *options])


def bodies(server: LateServer) -> list[dict]:
    return [json.loads(one.partition(b"\r\n\r\n")[2]) for one in server.received]


def interrupted(server: LateServer, end) -> threading.Thread:
    """A thread that calls `end` when an answer counts, and the one client waits for another."""

    def wait() -> None:
        while len(server.received) < 3:
            time.sleep(0.005)
        end()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("load", [("--rate", "200"), ("--clients", "2")])
def test_numbers(capsys, texts, load):
    server = LateServer(OK, pause=0.01)
    assert run(server, texts, *load, *QUICK, "--json", "--deadline", "5") == 0
    shown, warnings = capsys.readouterr()
    found = json.loads(shown)
    assert (found["url"], found["shape"], found["requests"]) == (server.url, "translations", 4)
    assert (found["rate"], found["clients"]) == (
        (200.0, None) if load[0] == "--rate" else (None, 2)
    )
    assert found["statuses"] == {"200": 4} and found["goodput_per_second"] == 0
    assert found["answers_per_second"] > 0 and 0 <= found["client_busy_share"] <= 1
    assert 10 <= found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    assert not warnings or "this client may be slower" in warnings
    # the first one tries whether there is a server; others may overtake each other
    texts_asked = [body["text"] for body in bodies(server)]
    assert texts_asked[0] == "uno" and sorted(texts_asked[1:]) == [" dos", " dos", "uno", "uno"]
    assert b"POST /v1/translations HTTP/1.1\r\nHost: 127.0.0.1:" in server.received[0]


def test_streams_keys_and_fields(capsys, texts, monkeypatch):
    monkeypatch.setenv("PYBEAM_KEY", "secret")
    server = LateServer(*stream(b'data: {"choices": [{"text": "a"}]}'))
    fields = ("--field", "model=a/b", "--field", 'stop=["."]', "--field", "max_tokens=3")
    shape = ("--shape", "completions", "--stream")
    assert run(server, texts, "--clients", "1", *QUICK, *shape, *fields) == 0
    shown = capsys.readouterr().out
    assert (
        "4 requests" in shown
        and "first text, ms" in shown
        and "status 200               4" in shown
    )
    expected = {"model": "a/b", "stop": ["."], "max_tokens": 3, "stream": True, "prompt": "uno"}
    assert bodies(server)[0] == expected
    assert b"\r\nAuthorization: Bearer secret\r\n" in server.received[0]


def test_libretranslate_and_stdin():
    server = LateServer(OK)
    python = [sys.executable, "-X", "importtime", "-m", "pybeam"]
    command = [*python, "bench-serve", server.url, "--clients", "1", *QUICK]
    more = ["--shape", "libretranslate", "--field", "target=de", "--key", "k"]
    done = subprocess.run(
        [*command, *more], input="uno\n", capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "4 requests" in done.stdout
    # it begins at once, and takes no memory of the server's machine
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "asyncio" in loaded and not {"torch", "numpy"} & loaded
    assert bodies(server)[-1] == {"q": "uno", "source": "auto", "target": "de", "api_key": "k"}


def test_a_full_server_is_measured_and_one_that_refuses_is_not(capsys, texts):
    full = LateServer(refusal(503, b'{"error": "full"}'))
    assert run(full, texts, "--clients", "1", *QUICK) == 0
    assert "status 503               4   full" in capsys.readouterr().out
    closed = LateServer(refusal(401, b'{"error": {"message": "no key"}}'))
    assert run(closed, texts, "--clients", "1", *QUICK) == 1
    assert "/v1/translations: 401: no key" in capsys.readouterr().err
    assert len(closed.received) == 1
    assert run(LateServer(), texts, "--clients", "1", "--shape", "chat") == 1
    assert run(LateServer(OK), texts, "--clients", "1", "--shape", "chat") == 1
    assert "give --field model=NAME" in capsys.readouterr().err


def test_ctrl_c_prints_what_is_measured(capsys, texts):
    server = LateServer(OK, pause=0.01)
    # tests in the background ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = interrupted(server, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert run(server, texts, "--clients", "1", "--warm-up", "0") == 130
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert "status 200" in capsys.readouterr().out


def test_the_end_of_a_process_prints_what_is_measured(texts):
    server = LateServer(OK, pause=0.01)
    command = [sys.executable, "-m", "pybeam", "bench-serve", server.url, "--input", texts]
    options = ["--clients", "1", "--warm-up", "0"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        thread = interrupted(server, process.terminate)
        shown, errors = process.communicate(timeout=60)
        thread.join()
    assert process.returncode == 143 and "status 200" in shown and "Traceback" not in errors


@pytest.mark.parametrize(
    "options, message",
    [
        ((), "give either --rate or --clients"),
        (("--rate", "1", "--clients", "1"), "give either --rate or --clients"),
        (("--rate", "1", "--seconds", "1", "--requests", "1"), "--seconds or --requests"),
        (("--rate", "0"), "--rate"),
        (("--clients", "1", "--field", "a"), "must be NAME=VALUE"),
        (("--clients", "1", "--key", "a\r\nb: c"), "must be printable ASCII"),
        (("--clients", "1", "--shape", "libretranslate", "--stream"), "has no streams"),
    ],
)
def test_wrong_options(capsys, texts, options, message):
    assert run(LateServer(OK), texts, *options) == 2
    assert message in capsys.readouterr().err


def test_wrong_files_and_urls(capsys, tmp_path, texts):
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n \n")
    binary.write_bytes(b"\xff\n")
    for path, message in ((empty, "not empty"), (binary, "must be UTF-8"), (tmp_path, "Is a dir")):
        assert run(LateServer(OK), str(path), "--clients", "1") == 1
        assert message in capsys.readouterr().err
    assert main(["bench-serve", "localhost", "--input", texts, "--clients", "1"]) == 2
    assert "must be a URL such as" in capsys.readouterr().err
