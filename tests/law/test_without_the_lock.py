"""In a Python without its lock, engines in threads find what one engine finds alone, to the last bit."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from law import axes
from law.array import CoveringArray
from law.case import Case
from law.laws import assert_same, tolerance
from pybeam.request import Result

HAS_LOCK = getattr(sys, "_is_gil_enabled", lambda: True)()
NUM_ENGINES = 3
NUM_TIMES = 3
LOADS = """
import sys
from pybeam import backends
backends.load("native")
print(sys._is_gil_enabled())
"""

pytestmark = pytest.mark.skipif(HAS_LOCK, reason="this Python has its lock")


def every_two_values() -> list[Case]:
    """Those that `make test` decodes in one thread."""
    array = CoveringArray(axes.AXES, 2, axes.LATE)
    return [Case(row) for row in array.rows[: array.num_early]]


def decoded_at_once(case: Case) -> list[list[Result]]:
    """The results of engines that begin together, each with the requests in another order."""
    start = threading.Barrier(NUM_ENGINES)

    def decode(turn: int) -> list[list[Result]]:
        decoder = case.decoder()
        requests = [*case.requests[turn:], *case.requests[:turn]]
        start.wait()
        times = [decoder.decode(requests) for _ in range(NUM_TIMES)]
        return [[*found[-turn:], *found[:-turn]] if turn else found for found in times]

    with ThreadPoolExecutor(NUM_ENGINES) as pool:
        return [found for times in pool.map(decode, range(NUM_ENGINES)) for found in times]


@pytest.mark.parametrize("case", [] if HAS_LOCK else every_two_values(), ids=str)
def test_engines_in_threads_have_the_bits_of_one_alone(case):
    alone = case.decoder(alone=True)
    expected = [alone.decode([request])[0] for request in case.requests]
    for found in decoded_at_once(case):
        for result, one in zip(found, expected, strict=True):
            assert_same(result, one, tolerance(case))


def test_the_extension_leaves_the_lock_off():
    """Python takes it again, and warns, when it imports one that does not say that it can do without."""
    said = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", LOADS], capture_output=True, text=True
    )
    assert said.stdout == "False\n", said.stderr
