"""A service over a model that waits for the test, and what its results say."""

from __future__ import annotations

import time
from functools import cache

import pybeam
from support.gates import WAIT_SECONDS, GatedModel
from support.laws import ALGORITHMS, essence
from support.search_models import random_model

MODEL = random_model(7, 9, eos_bonus=-2)
REQUESTS = [pybeam.Request([1] * (1 + i * 7 % 5), source_id=i) for i in range(17)]


def decoder(name="fixed", schedule=None, model=MODEL, **options):
    """A decoder of one of the algorithms, with four places."""
    return pybeam.Decoder(model, ALGORITHMS[name], schedule or pybeam.Fifo(4), **options)


def told(result):
    """The contents of a result, but for its index."""
    return essence([result])[0][1:]


def expected(name="fixed", requests=REQUESTS, model=MODEL):
    """What `Decoder.decode` says of these requests."""
    if requests is REQUESTS and model is MODEL:
        return list(_expected(name))
    return [told(result) for result in decoder(name, model=model).decode(requests)]


@cache
def _expected(name):
    return [told(result) for result in decoder(name).decode(REQUESTS)]


def answers(futures):
    """The contents of the results of these futures."""
    return [told(future.result(WAIT_SECONDS).result) for future in futures]


def gated(name="fixed", schedule=None, **options):
    """A model behind a gate, and a service that runs it, without warm-up."""
    model = GatedModel(MODEL)
    service = pybeam.Service(decoder(name, schedule, model), **options)
    return model, service.start(warm_up=False)


def wait_for(condition) -> None:
    """Return when the condition holds. Engine threads need a moment to do what they will certainly do."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.001)


def is_alive(pid):
    """Whether a process is there, and not only its exit code."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
