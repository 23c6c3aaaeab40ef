"""Threads that share a decoder or a model: each gets the bits that it would get alone.

`make sanitize` runs these with kernels that look for races.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import pybeam
from support.laws import essence
from support.paths import MODEL, ROOT
from support.tiny_rnn import save_tiny_rnn

NUM_THREADS = 4
REPEATS = 2
CONTENTS = [[5, 6, 2], [7, 2], [8, 9, 10, 11, 2], [12, 2], [5, 5, 5, 2], [31, 2]]
SEARCHES = {
    "fixed": pybeam.fixed_beam(3, n_best=2, max_length=8),
    "variable": pybeam.variable_beam(5, threshold=2.0, max_length=8),
    "sampled": pybeam.stochastic_beam(3, seed=4, max_length=6),
}


@pytest.fixture(scope="module", params=["rnn", pytest.param("transformer", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, tmp_path_factory) -> pybeam.Model:
    if request.param == "transformer":
        return pybeam.load_model(MODEL)
    directory = tmp_path_factory.mktemp("rnn")
    save_tiny_rnn(directory)
    return pybeam.load_model(directory)


def at_once(calls: list[Callable[[], list]]) -> list[list]:
    """Start these calls together, each in a thread of its own; returns their results."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], list]) -> list:
        barrier.wait()
        return [call() for _ in range(REPEATS)]

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_one_decoder_works_in_several_threads(model, num_threads):
    decoder = pybeam.Decoder(model, SEARCHES["fixed"], pybeam.Fifo(3))
    expected = essence(decoder.decode(CONTENTS))
    found = at_once([lambda: essence(decoder.decode(CONTENTS))] * NUM_THREADS)
    assert found == [[expected] * REPEATS] * NUM_THREADS


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_several_decoders_share_a_model(model, num_threads):
    schedules = [pybeam.Fifo(2), pybeam.Batch(4), pybeam.Streaming(3), pybeam.Fifo(5)]
    decoders = [
        pybeam.Decoder(model, search, schedule)
        for search in SEARCHES.values()
        for schedule in schedules[:2]
    ]
    expected = [[essence(decoder.decode(CONTENTS))] * REPEATS for decoder in decoders]
    calls = [lambda decoder=one: essence(decoder.decode(CONTENTS)) for one in decoders]
    assert at_once(calls) == expected


def test_a_stream_goes_on_in_another_thread(model):
    decoder = pybeam.Decoder(model, SEARCHES["fixed"], pybeam.Fifo(2))
    expected = essence(decoder.decode(CONTENTS))
    stream = decoder.stream(CONTENTS)
    found = [next(stream)]
    with ThreadPoolExecutor(1) as pool:
        found += pool.submit(list, stream).result()
    assert essence(sorted(found, key=lambda result: result.index)) == expected


def test_a_stream_is_read_by_one_thread_at_a_time(model):
    """Python itself refuses the second one; the first goes on."""
    decoder = pybeam.Decoder(model, SEARCHES["fixed"], pybeam.Fifo(2))
    expected = essence(decoder.decode(CONTENTS))
    queue = pybeam.RequestQueue()
    stream = decoder.stream(queue)
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(list, stream)
        # it sleeps in the queue now, or will
        while not stream._lists.gi_running:
            pass
        with pytest.raises(ValueError, match="generator already executing"):
            next(stream)
        for content in CONTENTS:
            queue.put(content)
        queue.close()
        found = sorted(whole.result(), key=lambda result: result.index)
    assert essence(found) == expected


def test_the_number_of_threads_may_change_while_others_decode(model):
    decoder = pybeam.Decoder(model, SEARCHES["variable"], pybeam.Fifo(3))
    expected = essence(decoder.decode(CONTENTS))

    def changes() -> list:
        for num_threads in (1, 2, 3, 1):
            torch.set_num_threads(num_threads)
        return essence(decoder.decode(CONTENTS))

    calls = [changes, lambda: essence(decoder.decode(CONTENTS))]
    assert at_once(calls) == [[expected] * REPEATS] * 2


RACY = """
import sys
import torch
import pybeam
from support.tiny_rnn import save_tiny_rnn
torch.set_num_threads(2)
model = pybeam.load_model(sys.argv[1], device="cpu")
decoder = pybeam.Decoder(model, pybeam.fixed_beam(64, max_length=8))
for _ in range(10):
    decoder.decode([[5, 6, 2], [7, 2]])
"""


@pytest.mark.skipif("tsan" not in os.environ.get("LD_PRELOAD", ""), reason="for make sanitize")
@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_race_would_be_found(is_seeded, tmp_path):
    """ThreadSanitizer sees the threads on which kernels run, with all that its options leave out."""
    save_tiny_rnn(tmp_path)
    asked = {"PYBEAM_SEED_RACE": "1"} if is_seeded else {}
    ended = subprocess.run(
        [sys.executable, "-c", RACY, tmp_path],
        env=os.environ | asked,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ("data race" in ended.stderr) == is_seeded, ended.stderr[-2000:]
    assert (ended.returncode == 0) == (not is_seeded)
