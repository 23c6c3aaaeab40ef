"""Runs of a corpus, in processes of their own that begin at once, and what they leave."""

from __future__ import annotations

import gzip
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from pybeam.cli import main
from support.example_lines import LINES
from support.paths import MODEL

# twice each, so that a cache has something to do; one line is empty, and one is not UTF-8
CORPUS = [*LINES, "", *LINES, "Jesús lloró.", "Estad siempre gozosos."] * 2
BROKEN = 7


def corpus_bytes() -> bytes:
    lines = [line.encode() for line in CORPUS]
    lines[BROKEN] = b"Padr\xe9 nuestro"
    return b"\n".join(lines) + b"\n"


def write_corpus(folder: Path) -> Path:
    """Write the corpus as gzip."""
    path = folder / "corpus.es.gz"
    path.write_bytes(gzip.compress(corpus_bytes(), mtime=0))
    return path


def command(source: Path, output: Path, *options: str) -> list[str]:
    """A quick run of `pybeam translate`."""
    names = ["--model", str(MODEL), "--input", str(source), "--output-dir", str(output)]
    quick = ["--algorithm", "greedy", "--part-lines", "3", "--threads", "1", "--quiet"]
    return ["translate", *names, *quick, *options]


def contents(folder: Path) -> dict[str, bytes]:
    """All files but manifests and locks."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if not path.name.startswith(("manifest", ".lock"))
    }


class Forked:
    """A copy of this process, which has all modules, runs a function and leaves."""

    def __init__(self, work: Callable[[], int], log: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.setsid()
                fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(fd, 1)
                os.dup2(fd, 2)
                sys.stdout = sys.stderr = open(fd, "w", closefd=False)
                code = work()
                sys.stderr.flush()
            finally:
                os._exit(code)
        self.log = log

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill this process, not those that it has started."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code; that of a signal is negative."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        self.kill()
        os.waitpid(self.pid, 0)
        raise TimeoutError(self.log.read_text("utf-8", errors="replace"))


def run(arguments: list[str], log: Path) -> tuple[int, str]:
    """The exit code, and what was said, of a command line in a process of its own."""
    if log.exists():
        log.unlink()
    code = Forked(lambda: main(arguments), log).wait()
    return code, log.read_text("utf-8")
