"""Signals and exceptions in the middle of a decode: they come through, and the decoder is as before."""

from __future__ import annotations

import gc
import signal
import weakref

import pytest
import torch

import pybeam
from pybeam.engine.workspace import Workspace
from support.laws import essence
from support.tiny_rnn import save_tiny_rnn

SEARCH = pybeam.fixed_beam(3, n_best=2, max_length=8)
CONTENTS = [[5, 6, 2], [7, 2], [8, 9, 10, 11, 2], [12, 2]] * 3


class Alarm(KeyboardInterrupt):
    """Raised by the handler of a signal, as if somebody had pressed Ctrl-C."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pybeam.Model:
    directory = tmp_path_factory.mktemp("rnn")
    save_tiny_rnn(directory)
    return pybeam.load_model(directory)


@pytest.fixture
def decoder(model) -> pybeam.Decoder:
    return pybeam.Decoder(model, SEARCH, pybeam.Fifo(2))


@pytest.fixture
def alarm():
    """Signals raise `Alarm` in the main thread, at whatever it executes."""

    def raises(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, raises)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_signal_at_any_moment(decoder, alarm, count):
    """Also while kernels run: Python raises when they return."""
    expected = essence(decoder.decode(CONTENTS))
    raised = 0
    for i in range(count):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0011 * i % 0.012)
            decoder.decode(CONTENTS)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            raised += 1
        # training goes on after Ctrl-C
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert essence(decoder.decode(CONTENTS)) == expected
    assert raised


def test_a_stream_that_is_closed_early_keeps_nothing(decoder):
    expected = essence(decoder.decode(CONTENTS))
    for num in range(4):
        stream = decoder.stream(CONTENTS)
        for _ in range(num):
            next(stream)
        stream.close()
        assert list(stream) == []
    assert essence(decoder.decode(CONTENTS)) == expected


def test_a_stream_that_is_forgotten_keeps_nothing(model, monkeypatch):
    made = []
    init = Workspace.__init__

    def remembered(self, *args, **options):
        init(self, *args, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Workspace, "__init__", remembered)
    decoder = pybeam.Decoder(model, SEARCH)
    stream = decoder.stream(CONTENTS)
    next(stream)
    del stream
    gc.collect()
    assert [ref() for ref in made] == [None]


def test_a_decoder_is_freed_with_its_last_reference(model):
    """Without the garbage collector: nothing refers to itself."""
    decoder = pybeam.Decoder(model, SEARCH)
    decoder.decode(CONTENTS)
    workspace = weakref.ref(decoder._idle[0])
    own = weakref.ref(decoder)
    gc.disable()
    try:
        del decoder
        assert own() is None and workspace() is None
    finally:
        gc.enable()


def test_release_frees_the_workspace(decoder):
    expected = essence(decoder.decode(CONTENTS))
    workspace = weakref.ref(decoder._idle[0])
    decoder.release()
    assert workspace() is None
    assert essence(decoder.decode(CONTENTS)) == expected


@pytest.mark.slow
def test_ten_thousand_decoders(model):
    expected = essence(pybeam.Decoder(model, SEARCH).decode(CONTENTS[:2]))
    alive = weakref.WeakSet()
    for i in range(10_000):
        decoder = pybeam.Decoder(model, SEARCH, pybeam.Fifo(1 + i % 5))
        alive.add(decoder)
        if i % 100 == 0:
            assert essence(decoder.decode(CONTENTS[:2])) == expected
    del decoder
    assert len(alive) == 0
