"""Long runs side by side: processes that take turns of seconds, so that noise of the machine is shared."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.tools.data import ROOT

READY = "ready"
TURN_SECONDS = 2.0


@dataclass
class Runner:
    """A process, and the seconds of its turns."""

    process: subprocess.Popen
    seconds: float = 0.0

    def take_turn(self, most: float) -> bool:
        """Let it run for at most so many seconds. Returns whether it has ended."""
        start = time.perf_counter()
        self.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(most)
        self.process.send_signal(signal.SIGSTOP)
        self.seconds += time.perf_counter() - start
        return self.process.poll() is not None


def in_turns(module: str, options: Mapping[str, dict]) -> dict[str, tuple[float, dict]]:
    """Run ``python -m MODULE OPTIONS`` for each of the options, all at once, one at a time.

    A process prints a line `READY` when its work begins. Its last line is JSON. Returns the seconds of work
    of each by name, and what it printed last.

    Raises:
        RuntimeError: one failed.
    """
    runners: dict[str, Runner] = {}
    try:
        for name, option in options.items():
            command = [sys.executable, "-m", module, json.dumps(option)]
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            runners[name] = Runner(process)
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise RuntimeError(f"{name} did not begin")
            process.send_signal(signal.SIGSTOP)
        going = dict(runners)
        while going:
            for name, runner in list(going.items()):
                if runner.take_turn(TURN_SECONDS):
                    del going[name]
        return {
            name: (runner.seconds, _last_line(name, runner)) for name, runner in runners.items()
        }
    finally:
        for runner in runners.values():
            runner.process.kill()
            runner.process.wait()


def _last_line(name: str, runner: Runner) -> dict:
    assert runner.process.stdout is not None
    lines = runner.process.stdout.read().splitlines()
    if runner.process.returncode or not lines:
        raise RuntimeError(f"{name} failed with status {runner.process.returncode}")
    return json.loads(lines[-1])
