"""`pybeam serve`, the same shell around CTranslate2 and a plain one, each in a process of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pybeam
from benchmarks import corpus
from benchmarks.meter import resident_bytes
from benchmarks.peers import PEER
from benchmarks.plans import CHOSEN, chosen
from benchmarks.setup import Setup
from benchmarks.tools.data import ROOT
from benchmarks.translation import MAX_LENGTH, fixed
from pybeam.traffic import Address

TYPES = ("float32", "int8")
PLAIN = f"{PEER} in plain FastAPI"
START_SECONDS = 120.0
# threads that spin take the cores from the shell; `pybeam serve` sets this by itself
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}


@dataclass(frozen=True)
class System:
    """A server: an engine, the type of its weights, and its search.

    `search` is "greedy", "fixed" or "variable"; CTranslate2 has one search for every width. It translates
    `side_by_side` batches at the same time, which share the threads. Ours may have `processes` that decode.
    """

    library: str
    dtype: str
    width: int
    search: str = "fixed"
    side_by_side: int = 1
    processes: int = 0

    def __str__(self) -> str:
        has_choice = not self.is_peer and self.width > 1
        name = f"{self.library} {self.dtype}" + (f", {self.search}" if has_choice else "")
        return name + (f", {self.processes} processes" if self.processes else "")

    @property
    def is_peer(self) -> bool:
        """Whether CTranslate2 decodes."""
        return self.library in (PEER, PLAIN)

    @property
    def layout(self) -> str:
        """The same, with what the peer's threads do."""
        return f"{self}, {self.side_by_side} side by side"

    @property
    def algorithm(self) -> pybeam.Algorithm:
        """The search of ours."""
        if self.width == 1:
            return pybeam.greedy(max_length=MAX_LENGTH)
        return chosen(self.width) if self.search == "variable" else fixed(self.width)

    def command(self, setup: Setup) -> list[str]:
        """How its server is started."""
        if self.is_peer:
            vocabulary = corpus.vocabulary(corpus.processor())
            options = {
                "directory": str(setup.networks.ctranslate2_directory("example", vocabulary)),
                "compute_type": self.dtype,
                "width": self.width,
                "threads": setup.threads,
                "side_by_side": self.side_by_side,
            }
            module = "peer_server" if self.library == PEER else "plain_server"
            return ["-m", f"benchmarks.{module}", json.dumps(options)]
        search = {"--algorithm": "greedy"}
        if self.width > 1:
            search = {"--algorithm": self.search, "--width": self.width}
        if self.width > 1 and self.search == "variable":
            threshold, candidates = CHOSEN[self.width]
            search |= {"--threshold": threshold, "--max-candidates": candidates}
        options = {
            "--model": corpus.MODEL,
            "--port": 0,
            "--dtype": self.dtype,
            "--threads": setup.threads,
            "--max-length": MAX_LENGTH,
            **({"--processes": self.processes} if self.processes else {}),
            **search,
        }
        command = ["-m", "benchmarks.named_threads", "serve"]
        return [*command, *(str(part) for pair in options.items() for part in pair)]


def ours(width: int) -> list[System]:
    searches = ("greedy",) if width == 1 else ("fixed", "variable")
    return [System("pybeam", dtype, width, search) for search in searches for dtype in TYPES]


def peers(width: int, threads: int) -> list[System]:
    """Every layout, of which the best of each name is measured further; the plain shell has one."""
    layouts = [n for n in (1, threads) if threads % n == 0]
    return [
        *(
            System(PEER, dtype, width, side_by_side=n)
            for dtype in TYPES
            for n in dict.fromkeys(layouts)
        ),
        System(PLAIN, "int8", width, side_by_side=threads),
    ]


def offline(setup: Setup, system: System, lines: int) -> dict[str, float]:
    """The return value of `offline.decode`, from a process like the server's.

    Raises:
        RuntimeError: the process failed.
    """
    options = {
        "dtype": system.dtype,
        "width": system.width,
        "search": system.search,
        "threads": setup.threads,
        "lines": lines,
        "data": str(setup.data) if setup.data else None,
    }
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.offline", json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise RuntimeError(run.stderr[-1000:])
    return json.loads(run.stdout)


class Computed(NamedTuple):
    """Seconds of CPU; processes that decode for a server do not count.

    Attributes:
        all_threads: of a server's process.
        front: of the one thread that speaks HTTP.
        engines: of those that decode, or speak with a process that does.
        deadlines: of the one that waits for deadlines.
    """

    all_threads: float = 0.0
    front: float = 0.0
    engines: float = 0.0
    deadlines: float = 0.0

    @classmethod
    def of(cls, pid: int) -> Computed:
        """Read the seconds of a process so far; NaN where there is no /proc."""
        process = Path(f"/proc/{pid}")
        if not process.exists():
            return cls(*[math.nan] * len(cls._fields))
        # the name of the process, in parentheses, may have spaces
        user, kernel = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
        seconds = dict.fromkeys(cls._fields, 0.0)
        seconds["all_threads"] = (int(user) + int(kernel)) / os.sysconf("SC_CLK_TCK")
        for thread in (process / "task").iterdir():
            # it may have ended
            with suppress(OSError):
                field = cls._field(thread.name == str(pid), (thread / "comm").read_text())
                spent = int((thread / "schedstat").read_text().split()[0]) / 1e9
                if field is not None:
                    seconds[field] += spent
        return cls(**seconds)

    @staticmethod
    def _field(is_first: bool, name: str) -> str | None:
        """The field that has a thread of this name, see `named_threads`; None: only `all_threads` does."""
        if is_first:
            return "front"
        if name.startswith("pybeam deadline"):
            return "deadlines"
        is_engine = name.startswith("pybeam ") and not name.startswith(
            ("pybeam start", "pybeam load")
        )
        return "engines" if is_engine else None

    def per_request(self, before: Computed, number: int) -> dict[str, float]:
        """Columns of a row: the milliseconds of one of so many requests that were answered since."""
        names = ("cpu_ms", "front_ms", "engines_ms", "deadlines_ms")
        spent = (1e3 * (now - then) / number for now, then in zip(self, before, strict=True))
        return dict(zip(names, spent, strict=True))


@dataclass
class Servers:
    """The processes, by system; each is started when it is first asked, and sleeps while others work."""

    setup: Setup
    _processes: dict[System, subprocess.Popen] = field(default_factory=dict)
    _addresses: dict[System, Address] = field(default_factory=dict)

    def address(self, system: System) -> Address:
        """Where it listens.

        Raises:
            RuntimeError: its process ended, or does not listen in time.
        """
        if system in self._processes and self._processes[system].poll() is not None:
            raise RuntimeError(f"the server ended with status {self._processes[system].returncode}")
        if system not in self._processes:
            self._start(system)
        return self._addresses[system]

    def computed(self, system: System) -> Computed:
        """The seconds that its process has computed so far."""
        return Computed.of(self._processes[system].pid)

    def held(self, system: System) -> dict[str, int]:
        """Its memory and open files; empty where there is no /proc."""
        process = Path(f"/proc/{self._processes[system].pid}")
        if not process.exists():
            return {}
        memory = resident_bytes(status=process / "status")
        return {"resident_bytes": memory, "descriptors": len(os.listdir(process / "fd"))}

    def _start(self, system: System) -> None:
        # its log goes to a file, so that nobody has to read it meanwhile
        log = self.setup.folder / f"server-{len(self._addresses)}.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, *system.command(self.setup)],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stderr=stderr,
            )
        self._processes[system] = process
        self._addresses[system] = _listening(process, log)

    def close(self) -> None:
        """End all of them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()


def _listening(process: subprocess.Popen, log: Path) -> Address:
    """Wait until a server is ready. Returns where it listens."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        messages = [json.loads(line).get("message") for line in log.read_text().splitlines()]
        if "ready" in messages:
            [url] = [one for one in messages if one.startswith("listening on")]
            host, port = url.rsplit("/", 1)[1].split(":")
            return host, int(port)
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"no server: {log.read_text()[-1000:]}")
