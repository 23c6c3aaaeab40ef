"""A real `pybeam serve` in a process of its own, and an application of the same models without sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import MODEL, ROOT

SPEECH_MODEL = ROOT / "examples" / "models" / "spoken-numbers-en"
START_SECONDS = 120
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


class ServerProcess:
    """Runs until `stop`. Its log is read as it comes, so that the process never waits for a reader."""

    def __init__(
        self,
        *options: str,
        models=(MODEL, SPEECH_MODEL),
        module: str = "pybeam",
        is_ready: bool = True,
        **environment: str,
    ) -> None:
        named = [part for model in models for part in ("--model", str(model))]
        command = [sys.executable, "-m", module, "serve", *named, "--port", "0", *options]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "OMP_WAIT_POLICY": "passive", **environment},
        )
        self.lines: list[str] = []
        self.url = ""
        self.early: dict = {}
        self._is_ready, self._answers = threading.Event(), False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if is_ready:
            self.until_ready()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode())
            if "listening on" in self.lines[-1]:
                self.url = json.loads(line)["message"].split()[-1]
            elif '"message": "ready"' in self.lines[-1]:
                self._answers = True
                self._is_ready.set()
        # or it has ended
        self._is_ready.set()

    def until_ready(self) -> None:
        """Return when it answers requests."""
        if not self._is_ready.wait(START_SECONDS) or not self._answers:
            self.process.kill()
            self.wait()
            raise AssertionError("".join(self.lines))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.lines]

    def begin_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 60) -> int:
        """Return the exit status."""
        code = self.process.wait(seconds)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def stop(self) -> int:
        self.begin_to_stop()
        return self.wait()


@contextlib.contextmanager
def running(*options: str, **settings) -> Iterator[ServerProcess]:
    """Start a server; it is gone afterwards, whatever happens."""
    server = ServerProcess(*options, **settings)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()


def wait_until(holds, seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it has not come true in time"
        time.sleep(0.02)


def memory(server: ServerProcess) -> int:
    """Return the resident bytes of a server."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def gauge(metrics: str, name: str) -> float:
    """Return the sum of a metric over its labels."""
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith((f"{name}{{", f"{name} "))
    ]
    assert values, f"there is no metric {name}"
    return sum(values)
