"""Results leave a stream one by one, and torch is in inference mode within it alone."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from pybeam.engine import streaming
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream

CPU = torch.device("cpu")


def test_lists_come_out_one_by_one():
    modes, closed = [], []

    def lists(*given):
        try:
            for some in given:
                modes.append(torch.is_inference_mode_enabled())
                yield some
        finally:
            closed.append(torch.is_inference_mode_enabled())

    stream = Stream(lists([1, 2], [], [3]), CPU)
    assert next(stream) == 1 and not torch.is_inference_mode_enabled()
    assert modes == [True] and not closed
    assert list(stream) == [2, 3]
    assert modes == [True] * 3 and closed == [True]
    stream = Stream(lists([4, 5]), CPU)
    assert next(stream) == 4
    stream.close()
    assert closed == [True] * 2 and list(stream) == []


def test_a_program_that_ends_closes_its_streams():
    """Also if another thread reads one of them."""
    closed = []

    def lists(name):
        try:
            yield [1, 2]
            if name == "read":
                streaming._close_all()
            yield [3]
        finally:
            closed.append((name, torch.is_inference_mode_enabled()))

    streams = [Stream(lists(name), CPU) for name in ("left", "read")]
    assert [next(stream) for stream in streams] == [1, 1]
    assert list(streams[1]) == [2, 3]
    assert closed == [("left", True), ("read", True)] and list(streams[0]) == []


def test_streams_may_begin_while_another_waits():
    """Also at any instruction of the one that begins to wait."""
    interval, stop = sys.getswitchinterval(), threading.Event()

    def begin():
        while not stop.is_set():
            _ = [Stream((line for line in [[1]]), CPU) for _ in range(9)]

    others = [threading.Thread(target=begin) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for other in others:
            other.start()
        for _ in range(3000):
            with streaming.at_rest(True):
                pass
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for other in others:
            other.join()


def test_a_stream_is_closed_once(monkeypatch):
    """Python ends the generators around a stream when it has already forgotten the module's names."""
    closed = []

    def lists():
        try:
            yield [1, 2]
        finally:
            closed.append(True)

    stream = Stream(lists(), CPU)
    assert next(stream) == 1
    streaming._close_all()
    monkeypatch.setattr(streaming, "contextlib", None)
    stream.close()
    assert closed == [True]


def test_seconds_are_those_of_the_work(monkeypatch):
    """A caller may take its time."""
    now, stats = [100.0], Stats()
    monkeypatch.setattr(streaming.time, "perf_counter", lambda: now[0])

    def lists():
        for seconds in (2.0, 0.5):
            now[0] += seconds
            yield [1]

    for _ in Stream(lists(), CPU, stats):
        now[0] += 40
    assert stats.seconds == 2.5


def test_an_error_leaves_the_mode():
    def fails():
        yield [1]
        raise RuntimeError("within")

    stream = Stream(fails(), CPU)
    assert next(stream) == 1
    with pytest.raises(RuntimeError, match="within"):
        next(stream)
    assert not torch.is_inference_mode_enabled()
