"""Run the cases of a target in a process with limits, and go on behind those that end it."""

from __future__ import annotations

import faulthandler
import itertools
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

TESTS = Path(__file__).parents[1]
TARGETS = ("files", "programs", "operators", "searches")
# what one case may take: of time, and of memory beyond what the process has at its start
CASE_SECONDS = 60
CASE_BYTES = 3 << 30
# a target with so many failures is not attacked any longer
ENOUGH = 10
CASE = "case "  # how the line of a worker begins that says which case comes next


def run_cases(
    case: Callable[[int], None], seed: int, seconds: float, num_cases: int | None = None
) -> int:
    """Run the cases from this seed on, in this process. Returns 1 if one failed.

    Each is told on stdout before it begins, so that a parent knows which one ended the process.
    """
    _limit_memory()
    end, failures = time.monotonic() + seconds, 0
    seeds = itertools.count(seed) if num_cases is None else range(seed, seed + num_cases)
    for number in seeds:
        print(f"{CASE}{number}", flush=True)
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        try:
            case(number)
        except Exception:
            failures += 1
            traceback.print_exc()
            print(f"seed {number} failed; the traceback stands above", file=sys.stderr, flush=True)
        faulthandler.cancel_dump_traceback_later()
        if failures == ENOUGH or time.monotonic() > end:
            break
    return int(failures > 0)


def attack(target: str, seed: int, seconds: float, num_cases: int | None = None) -> bool:
    """Run the cases of a target from this seed on. Returns whether all of them passed."""
    end, first, is_clean, num_run = time.monotonic() + seconds, seed, True, 0
    print(f"{target}: seeds from {seed} on", flush=True)
    with tqdm(total=round(seconds), desc=target, unit="s", mininterval=1) as bar:
        for _ in range(ENOUGH):
            left = None if num_cases is None else num_cases - num_run
            begun, code = _watched(target, seed, end - time.monotonic(), left, bar)
            num_run += len(begun)
            is_clean &= code == 0
            # it went through all its cases, whether or not they passed
            if code in (0, 1) or not begun:
                break
            seed = begun[-1] + 1
            print(
                f"seed {begun[-1]} ended the process with status {code}: {_repeat(target, begun[-1])}"
            )
            if time.monotonic() > end or (num_cases is not None and num_run >= num_cases):
                break
    verdict = "clean" if is_clean else f"FAILED; repeat a seed with {_repeat(target, 'SEED')}"
    print(f"{target}: {num_run} cases from seed {first} on, {verdict}", flush=True)
    return is_clean


def _repeat(target: str, seed: object) -> str:
    return f"`make fuzz TARGETS={target} SEED={seed} CASES=1`"


def _watched(
    target: str, seed: int, seconds: float, num_cases: int | None, bar: tqdm
) -> tuple[list[int], int]:
    """Run a worker; returns the seeds that it began, and its exit status."""
    command = [sys.executable, "-m", "fuzz", target, "--worker", f"--seed={seed}"]
    command += [f"--minutes={seconds / 60}"]
    command += [] if num_cases is None else [f"--cases={num_cases}"]
    begun = []
    # whoever calls this may have found these folders in another way
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        start, shown = time.monotonic(), 0
        for line in worker.stdout:
            if line.startswith(CASE):
                begun.append(int(line.removeprefix(CASE)))
            passed = round(time.monotonic() - start)
            bar.set_postfix_str(f"seed {begun[-1] if begun else seed}", refresh=False)
            bar.update(passed - shown)
            shown = passed
    return begun, worker.returncode


def _limit_memory() -> None:
    # a sanitizer maps terabytes that it never uses
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + CASE_BYTES, resource.RLIM_INFINITY))
