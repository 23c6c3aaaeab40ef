"""Services whose engines are processes, and a model that waits for the test in whichever process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal

import pybeam
from pybeam.models import FunctionModel
from support.gates import WAIT_SECONDS
from support.served import MODEL, decoder

# sources at which the model fails
KILLS, RAISES, NEVER_ENDS, READS = 100, 101, 102, 103


class Odd(Exception):
    """An error that another process cannot read."""

    def __init__(self, one, two):
        super().__init__("it is odd")


class Door:
    """A model whose steps wait while the door is shut, in whichever process; some sources make it fail."""

    def __init__(self):
        context = multiprocessing.get_context("fork")
        self._door, self._arrived = context.Event(), context.Event()
        self._door.set()
        self.model = FunctionModel(self._call, MODEL.vocab_size, MODEL.start_id, MODEL.eos_id)

    def _call(self, prefixes, lengths, source_ids):
        self._arrived.set()
        assert self._door.wait(WAIT_SECONDS), "nobody has opened the door"
        bad = {int(one) for one, length in zip(source_ids, lengths, strict=True) if length >= 2}
        if KILLS in bad:
            os.kill(os.getpid(), signal.SIGKILL)
        if RAISES in bad:
            raise Odd(1, 2)
        if READS in bad:
            os.stat("/no/such/file")
        if NEVER_ENDS in bad:
            signal.pause()
        return MODEL.fn(prefixes, lengths, source_ids)

    def shut(self):
        self._arrived.clear()
        self._door.clear()

    def until_a_step_waits(self):
        assert self._arrived.wait(WAIT_SECONDS), "no step has begun"

    def open(self):
        self._door.set()


def source(number):
    return pybeam.Request([1, 2], source_id=number)


def started(engines=1, model=MODEL, name="fixed", schedule=None, **options):
    """A service whose engines are processes, without warm-up."""
    one = decoder(name, schedule, model)
    service = pybeam.Service(one, engines=engines, processes=True, **options)
    return contextlib.closing(service.start(warm_up=False))


def burst(service, requests):
    """Submit requests at once, so that idle engines see all of them when they wake."""
    with service._groups["default"].queue.changed:
        return [service.submit(request) for request in requests]


def processes(service):
    return [engine.decoder._pid for engine in service._groups["default"]._engines]
