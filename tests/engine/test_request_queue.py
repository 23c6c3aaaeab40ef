"""Requests that arrive while others are decoded change when results come, never what they are."""

import random
import threading
import time
from queue import SimpleQueue

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.engine import StreamOptions
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream
from pybeam.engine.workspace import Workspace
from support.laws import (
    ALGORITHMS,
    SOURCES,
    THIRDS,
    CheckedEngine,
    decoded,
    essence,
    some_schedules,
)
from support.search_models import BOS, EOS, random_model

WAIT_SECONDS, PAUSE_SECONDS = 20, 0.05

CPU = torch.device("cpu")


@pytest.fixture
def queue():
    """One that closes after a while, so that a stream that waits in vain fails instead of hanging."""
    queue = pybeam.RequestQueue()
    timer = threading.Timer(WAIT_SECONDS, queue.close)
    timer.start()
    yield queue
    timer.cancel()
    queue.close()


class Scripted(pybeam.RequestQueue):
    """Arrivals without a clock: `gaps[i]` looks into the queue find nothing before request i is there.

    A wait gets the next request at once, as a sleep would.
    """

    def __init__(self, requests, gaps):
        super().__init__()
        self._script = list(zip(requests, gaps, strict=True))
        self._looks = self._num_taken = self.num_done = self.num_waits = 0

    def next(self, may_wait):
        if may_wait:
            assert self._num_taken == self.num_done, "it may sleep while something is decoded"
        if not self._script:
            self.close()
            return super().next(may_wait)
        request, gap = self._script[0]
        if not may_wait and self._looks < gap:
            self._looks += 1
            return None
        self.num_waits += may_wait and self._looks < gap
        self._looks = 0
        self._num_taken += 1
        self._script.pop(0)
        self.put(request)
        return super().next(may_wait)


def results_of(algorithm, schedule, backend, queue, model, **options):
    workspace = Workspace(model, algorithm, backends.load(backend))
    engine = CheckedEngine(workspace, schedule, Stats(), StreamOptions(**options))
    for result in Stream(engine.run(queue), CPU):
        queue.num_done += 1
        yield result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed", "variable"])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("gap", [1, 40])
@pytest.mark.parametrize("third", THIRDS)
def test_results_do_not_depend_on_when_requests_arrive(backend, name, gap, late, third):
    model = random_model(7, eos_bonus=0.5)
    algorithm = ALGORITHMS[name]
    expected = essence(decoded(model, algorithm, pybeam.Batch(1), backend))
    rng = random.Random(gap)
    for schedule in some_schedules(name, third):
        queue = Scripted(SOURCES, [rng.randint(0, gap) for _ in SOURCES])
        results = list(results_of(algorithm, schedule, backend, queue, model, reads_late=late))
        assert essence(sorted(results, key=lambda r: r.index)) == expected, schedule
        assert queue.num_waits > 0 or gap < 40


def test_the_first_request_is_decoded_before_the_second_arrives(backend, queue):
    """The second one only comes when the first one's result has been handed out."""
    queue.put([1])
    decoder = pybeam.Decoder(random_model(1), pybeam.greedy(max_length=9), pybeam.Fifo(4), backend)
    stream = decoder.stream(queue)
    assert next(stream).index == 0
    queue.put([1])
    assert next(stream).index == 1
    queue.close()
    assert next(stream, None) is None


def test_a_request_joins_while_another_is_decoded(backend, queue):
    """Request 0 never ends; 1 arrives when 0 has moved three times, and must be done before it."""
    good = random_model(1)

    def endless_first(prefixes, lengths, source_ids):
        logits = good.fn(prefixes, lengths, source_ids).clone()
        logits[:, EOS] = (source_ids != 0).float() * 200 - 100
        if prefixes.shape[1] == 3:
            queue.put([1])
            queue.close()
        return logits

    model = pybeam.models.FunctionModel(endless_first, good.vocab_size, BOS, EOS)
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=30), pybeam.Fifo(4), backend)
    queue.put([1])
    assert [(r.index, r.steps) for r in decoder.stream(queue)] == [(1, 1), (0, 30)]
    assert decoder.stats.refills == 2


@pytest.mark.parametrize("first", [[], pybeam.Request([1], width=5000)], ids=["empty", "bad"])
def test_a_result_that_needs_no_decoding_does_not_end_the_stream(backend, first, queue):
    queue.put(first)
    decoder = pybeam.Decoder(random_model(1), pybeam.greedy(max_length=5), backend=backend)
    stream = decoder.stream(queue)
    assert next(stream).stop_reason in ("empty_source", "error")
    queue.put([1])
    queue.close()
    assert [(r.index, r.steps) for r in stream] == [(1, 5)]


def test_the_window_sorts_what_has_arrived():
    """Longest first among those that came together, whatever comes later."""
    sources = [[1] * length for length in (2, 4, 3, 9, 1, 5)]
    queue = Scripted(sources, [0, 0, 0, 2, 0, 0])
    fifo = pybeam.Fifo(1)
    results = results_of(pybeam.greedy(max_length=1), fifo, "reference", queue, random_model(3))
    assert [result.index for result in results] == [1, 2, 0, 3, 5, 4]


@pytest.mark.thinned(most=1)
def test_another_thread_puts_and_closes(backend, queue):
    model = random_model(5, eos_bonus=0.3)
    decoder = pybeam.Decoder(model, pybeam.variable_beam(3, max_length=8), pybeam.Fifo(4), backend)
    expected = decoder.decode(SOURCES)
    has_result = threading.Event()

    def serve():
        assert queue.put(SOURCES[0]) == 0
        assert has_result.wait(WAIT_SECONDS)
        for source in SOURCES[1:]:
            queue.put(source)
        queue.close()

    thread = threading.Thread(target=serve)
    thread.start()
    results = []
    for result in decoder.stream(queue):
        has_result.set()
        results.append(result)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert essence(sorted(results, key=lambda r: r.index)) == essence(expected)


def test_put_and_close_wake_a_stream_that_sleeps(backend, queue):
    decoder = pybeam.Decoder(random_model(1), pybeam.greedy(max_length=5), backend=backend)
    results = SimpleQueue()

    def answer():
        for result in decoder.stream(queue):
            results.put(result.index)
        results.put("over")

    thread = threading.Thread(target=answer)
    thread.start()
    for index in range(2):
        time.sleep(PAUSE_SECONDS)  # it is asleep by now; if not, this tests less, but fails never
        assert queue.put([1]) == index
        assert results.get(timeout=WAIT_SECONDS / 2) == index
    time.sleep(PAUSE_SECONDS)
    queue.close()
    queue.close()
    assert results.get(timeout=WAIT_SECONDS / 2) == "over"
    thread.join()
    with pytest.raises(ValueError, match="this queue was closed"):
        queue.put([1])


def test_decode_reads_a_queue_to_its_end(backend):
    queue = pybeam.RequestQueue()
    assert [queue.put([1] * length) for length in (3, 1, 2)] == [0, 1, 2]
    queue.close()
    decoder = pybeam.Decoder(random_model(2), pybeam.greedy(max_length=5), backend=backend)
    assert essence(decoder.decode(queue)) == essence(decoder.decode([[1] * 3, [1], [1] * 2]))


def test_it_says_what_waits():
    queue = pybeam.RequestQueue()
    for _ in range(3):
        queue.put([1])
    queue.next(may_wait=False)
    assert repr(queue) == "RequestQueue(open, 2 of 3 wait)"
    queue.close()
    assert repr(queue) == "RequestQueue(closed, 2 of 3 wait)"


def test_a_queue_has_news_while_a_request_waits():
    queue = pybeam.RequestQueue()
    assert not queue.has_news[0]
    queue.put([3])
    queue.put([4])
    for is_left in (True, False):
        assert queue.has_news[0]
        queue.next(may_wait=False)
        assert queue.has_news[0] == is_left
