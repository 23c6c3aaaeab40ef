"""How a process ends, and how another one begins, while a decoder is in use."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys

import pytest

import pybeam
from support.laws import ALGORITHMS, essence, schedules
from support.paths import ROOT
from support.search_models import random_model

SEARCH = pybeam.fixed_beam(3, n_best=2, max_length=8)
PROGRAM = """
import pybeam
from support.search_models import random_model
decoder = pybeam.Decoder(random_model(7), pybeam.fixed_beam(3, max_length=8))
"""
# each leaves something alive
ENDINGS = {
    "a live stream": "stream = decoder.stream([[1]] * 20); next(stream)",
    "a stream that waits for a queue": """
import threading
queue = pybeam.RequestQueue()
threading.Thread(target=lambda: list(decoder.stream(queue)), daemon=True).start()
queue.put([1])
""",
    "a stream at work": """
import threading
threading.Thread(target=lambda: list(decoder.stream([1] for _ in iter(int, 1))), daemon=True).start()
next(decoder.stream([[1]]))
""",
    "a service at work": """
service = pybeam.Service(decoder); service.start()
for _ in range(50): service.submit([1])
""",
    "a stream that waits for an iterable": """
import threading
def requests():
    yield [1]
    threading.Event().wait()
stream = decoder.stream(requests()); next(stream)
""",
    "a copy beside a stream at work": """
import os, sys, threading, time
from pybeam.engine import streaming
threading.Thread(target=lambda: list(decoder.stream([1] for _ in iter(int, 1))), daemon=True).start()
while not streaming._working: time.sleep(0.01)
if not (copy := os.fork()):
    streaming.MOST_SECONDS_AT_EXIT = 1000.0
    sys.exit()
os.waitpid(copy, 0)
""",
    "an exit in a stream": "for _ in decoder.stream([[1]] * 20): raise SystemExit(0)",
}


def found_in_a_child(requests: list[pybeam.Request]) -> list:
    """As `spawn` starts it: a fresh process that imports this file."""
    return essence(pybeam.Decoder(random_model(7), SEARCH).decode(requests))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_whatever_is_alive(ending):
    program = [sys.executable, "-c", PROGRAM + ENDINGS[ending]]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(program, env=paths, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_handlers_of_the_end_may_decode_and_close_a_service():
    """Those that were registered first come last."""
    first = """
import atexit
atexit.register(lambda: print(len(decoder.decode([[1]])), service.close()))
"""
    program = [sys.executable, "-c", f"{first}{PROGRAM}{ENDINGS['a service at work']}"]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(program, env=paths, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1 None\n", "")


@pytest.mark.slow
def test_processes_that_are_spawned_after_use_find_the_same():
    requests = [pybeam.Request([1] * n, source_id=n) for n in (1, 3, 2)]
    expected = essence(pybeam.Decoder(random_model(7), SEARCH).decode(requests))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(found_in_a_child, [requests] * 2) == [expected] * 2


def test_what_is_asked_and_answered_can_be_pickled():
    """Requests, algorithms, schedules and results travel between processes."""
    request = pybeam.Request([1], [3], id="a", width=2, scoring=pybeam.scoring.power(0.7))
    again = pickle.loads(pickle.dumps(request))
    assert vars(again) == vars(request)
    for given in (*ALGORITHMS.values(), *schedules(5).values()):
        assert pickle.loads(pickle.dumps(given)) == given
    results = pybeam.Decoder(random_model(7), SEARCH).decode([[1], [1, 2]])
    assert pickle.loads(pickle.dumps(results)) == results
