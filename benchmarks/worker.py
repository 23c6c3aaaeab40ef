"""A process that decodes with one system when it is told to, one request at a time.

Orders and answers are lines of JSON, on its standard input and output. Between two orders it waits for
a line and does nothing else, so idle threads of one system take no core from another.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch

import pybeam
from benchmarks import corpus, peers
from benchmarks.networks import Networks
from benchmarks.plans import chosen
from benchmarks.tools.data import ROOT
from benchmarks.translation import MAX_LENGTH, Decoding, fixed

# by name: our algorithm, and the width of the peer's beam
SEARCHES = {
    "greedy": (pybeam.greedy(max_length=MAX_LENGTH), 1),
    "fixed-5": (fixed(5), 5),
    "variable-5": (chosen(5), 5),
    "variable-50": (chosen(50), 50),
}
# what says how OpenMP's idle threads wait
POLICY = "OMP_WAIT_POLICY"


@dataclass(frozen=True)
class System:
    """A library with weights of a type; `policy` is how OpenMP's threads wait, by default as they do."""

    library: str
    dtype: str
    policy: str | None = None

    def __str__(self) -> str:
        return f"{self.library} {self.dtype}" + (f", {self.policy}" if self.policy else "")


class Worker:
    """The process of one system, from its first order until this object goes.

    Args:
        options: what `Server` takes, beside the system.
    """

    def __init__(self, system: System, options: dict) -> None:
        self._system = system
        self._options = {"library": system.library, "dtype": system.dtype, **options}
        self._process: subprocess.Popen | None = None

    def decode(self, search: str, sources: list[list[int]]) -> dict:
        """What `Server.decode` returns.

        Raises:
            RuntimeError: it raised, or the process ended.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
            weakref.finalize(self, _end, self._process)
        try:
            print(json.dumps([search, sources]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the process ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _start(self) -> subprocess.Popen:
        environment = {name: value for name, value in os.environ.items() if name != POLICY}
        if self._system.policy:
            environment[POLICY] = self._system.policy
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(self._options)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    process.communicate()


class Server:
    """A network in one system, loaded."""

    # as JSON gives them
    def __init__(
        self,
        library: str,
        dtype: str,
        network: str,
        threads: int,
        folder: str,
        widened: dict,
        data: str | None,
    ) -> None:
        torch.set_num_threads(threads)
        networks = Networks(Path(folder), "cpu", "float32", widened)
        self._translate: dict[str, peers.Translate] = {}
        self._model = self._translator = None
        if library == "pybeam":
            self._model = networks.ours(network, dtype)
        else:
            self._pieces = corpus.load(data and Path(data), lines=0).vocabulary
            self._translator = networks.ctranslate2(network, dtype, self._pieces)

    def decode(self, search: str, sources: list[list[int]]) -> dict:
        """Decode one source after the other.

        Returns:
            lists with a place for each source: `seconds`, `outputs`, `steps` (None: not known).
        """
        if search not in self._translate:
            self._translate[search] = self._searching(*SEARCHES[search])
        translate = self._translate[search]
        seconds, outputs, steps = [], [], []
        # the caches and the clock of a core that comes from other work
        translate(sources[:1])
        for source in sources:
            start = time.perf_counter()
            [output] = translate([source])
            seconds.append(time.perf_counter() - start)
            outputs.append(output)
            steps.append(translate.num_steps if isinstance(translate, Decoding) else None)
        return {"seconds": seconds, "outputs": outputs, "steps": steps}

    def _searching(self, algorithm: pybeam.Algorithm, width: int) -> peers.Translate:
        if self._model is not None:
            return Decoding(self._model, algorithm, pybeam.Batch(1))
        return peers.ctranslate2_beam(self._translator, self._pieces, width, 1, MAX_LENGTH)


def main() -> None:
    # Ctrl-C is for the process that gives the orders
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers, sys.stdout = sys.stdout, sys.stderr
    options, server = json.loads(sys.argv[1]), None
    for line in sys.stdin:
        try:
            server = server or Server(**options)
            answer = server.decode(*json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
