"""A stream decodes what an iterable has given, and never waits for the rest of it."""

from __future__ import annotations

import threading

import pytest

import pybeam
from pybeam.models.function import FunctionSession
from support.laws import ALGORITHMS, SOURCES, THIRDS, decoded, essence, some_schedules
from support.search_models import random_model

WAIT_SECONDS = 20
GREEDY = pybeam.greedy(max_length=5)


def decoder(schedule=None, algorithm=GREEDY, seed=1) -> pybeam.Decoder:
    return pybeam.Decoder(random_model(seed, eos_bonus=0.5), algorithm, schedule)


def test_the_first_result_comes_while_the_generator_still_produces():
    """Each request comes only when the one before has been answered."""
    is_answered = [threading.Event() for _ in range(3)]

    def questions():
        for event in is_answered:
            yield [1]
            assert event.wait(WAIT_SECONDS), "the stream waits for the generator"

    found = []
    for result in decoder().stream(questions()):
        found.append(result.index)
        is_answered[result.index].set()
    assert found == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["variable", "adaptive"])
@pytest.mark.parametrize("third", THIRDS)
def test_results_do_not_depend_on_who_reads(name, third):
    model, algorithm = random_model(7, eos_bonus=0.5), ALGORITHMS[name]
    expected = essence(decoded(model, algorithm, pybeam.Batch(1), "reference"))
    for schedule in some_schedules(name, third):
        own = pybeam.Decoder(model, algorithm, schedule, "reference")
        found = sorted(own.stream(iter(SOURCES)), key=lambda result: result.index)
        assert essence(found) == expected, schedule


@pytest.mark.parametrize(("n", "expected"), [(4, [16, 16, 16, 2]), (20, [20])])
def test_sources_are_encoded_ahead_so_that_batches_are_not_tiny(n, expected, monkeypatch):
    """As many as are missing, and at least sixteen if there are so many."""
    encode, sizes = FunctionSession.encode, []

    def counted(self, sources, indices, slots):
        sizes.append(len(sources))
        encode(self, sources, indices, slots)

    monkeypatch.setattr(FunctionSession, "encode", counted)
    decoder(pybeam.Streaming(n, window=64)).decode([[1]] * sum(expected))
    assert sizes == expected


def test_what_has_a_length_is_read_by_the_stream_itself():
    readers = set()

    class Requests(list):
        def __iter__(self):
            for request in super().__iter__():
                readers.add(threading.current_thread())
                yield request

    assert len(list(decoder().stream(Requests(SOURCES)))) == len(SOURCES)
    assert len(decoder().decode(iter(Requests(SOURCES)))) == len(SOURCES)
    assert readers == {threading.current_thread()}


def test_results_come_before_the_error_of_the_generator():
    def broken():
        yield from SOURCES[:7]
        raise OSError("the connection is gone")

    found, own = [], decoder(pybeam.Fifo(2, window=3))
    with pytest.raises(OSError, match="the connection is gone"):
        for result in own.stream(broken()):
            found.append(result)
    expected = own.decode(SOURCES[:7])
    assert essence(sorted(found, key=lambda result: result.index)) == essence(expected)


def test_a_stream_that_is_given_up_reads_no_further():
    is_dropped, taken = threading.Event(), []

    def endless():
        try:
            while True:
                taken.append(1)
                yield [1]
        finally:
            is_dropped.set()

    stream = decoder(pybeam.Fifo(2, window=4)).stream(endless())
    next(stream)
    stream.close()
    assert is_dropped.wait(WAIT_SECONDS)
    assert len(taken) <= 12


def test_what_is_no_iterable_is_refused_at_once():
    with pytest.raises(TypeError, match="`requests` must be a list or another iterable"):
        decoder().stream(5)
