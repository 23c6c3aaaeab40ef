"""A decoder works on its own GPU, whichever is the current one of the caller."""

import contextlib

import pytest
import torch

from pybeam.engine.streaming import Stream

SECOND = torch.device("cuda:1")


@pytest.fixture
def current(monkeypatch):
    """The current GPU as a list of one, without one."""
    now = [0]

    @contextlib.contextmanager
    def device(which):
        now[0], before = which.index, now[0]
        try:
            yield
        finally:
            now[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    return now


def stream(seen, current, error=None):
    try:
        for i in range(1, 4):
            seen.append(current[0])
            yield [i]
        if error is not None:
            raise error
    finally:
        seen.append(current[0])


def test_it_is_current_while_the_stream_works(current):
    seen = []
    for item in Stream(stream(seen, current), SECOND):
        assert current == [0] and item == len(seen)
    assert seen == [1, 1, 1, 1]


def test_closing_early(current):
    seen = []
    items = Stream(stream(seen, current), SECOND)
    assert next(items) == 1
    items.close()
    assert seen == [1, 1] and current == [0]


def test_errors_pass(current):
    seen = []
    with pytest.raises(ValueError, match="oops"):
        list(Stream(stream(seen, current, ValueError("oops")), SECOND))
    assert set(seen) == {1} and current == [0]


def test_a_cpu_asks_for_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", None)
    assert list(Stream(stream([], [0]), torch.device("cpu"))) == [1, 2, 3]
