"""Several engines of one model share its queue. Results, cancellation, failures are those of one engine."""

from __future__ import annotations

import copy
import threading

import pytest

import pybeam
from pybeam.models import FunctionModel
from pybeam.serving import DeadlineExceeded, EngineStalled, Listener
from pybeam.serving.forecast import Forecast, Outlook
from support.gates import WAIT_SECONDS, Clock, GatedModel
from support.search_models import random_model
from support.served import MODEL, REQUESTS, answers, decoder, expected, told, wait_for


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("name", ["fixed", "variable"])
def test_results_do_not_depend_on_the_number_of_devices(name, engines):
    replicas = [decoder(name, model=like(MODEL.fn)) for _ in range(3)]
    with pybeam.Service(replicas, engines=engines) as service:
        futures = [service.submit(request) for request in REQUESTS * 3]
        assert answers(futures) == expected(name) * 3


def test_each_device_has_its_own_model():
    """A step of each waits for a step of the other, so one alone would fail."""
    barrier, met = threading.Barrier(2, timeout=WAIT_SECONDS), set()

    def on(device):
        def meets(*rows):
            if device not in met:
                met.add(device)
                barrier.wait()
            return MODEL.fn(*rows)

        return decoder(model=like(meets))

    service = pybeam.Service({"two": [on("first"), on("second")]}).start(warm_up=False)
    assert answers([service.submit(one) for one in REQUESTS[:6]]) == expected()[:6]
    assert met == {"first", "second"}
    service.swap("two", [decoder()], warm_up=False)
    assert answers([service.submit(REQUESTS[0])]) == expected()[:1]
    service.close()


def test_decoders_that_do_not_go_together():
    one = decoder()
    for given, message in (
        ([], "must hold a Decoder for 'default', but is empty there"),
        ([one, one], "different objects, but one is there twice"),
        ([one, decoder("variable")], "must agree in `algorithm`"),
        ([one, decoder(model=random_model(7, 10))], "must agree in `vocab_size`, but it is 9 for"),
        ({}, "must hold at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            pybeam.Service(given)
    for given in ([one, 1], {"a": one.model}, {"a": [one.model]}, None):
        with pytest.raises(TypeError, match="must hold Decoders or lists of them, but"):
            pybeam.Service(given)


def test_engines_compute_at_the_same_time():
    """A step waits until three engines are in theirs, so one engine alone would fail."""
    barrier = threading.Barrier(3, timeout=WAIT_SECONDS)

    def meets(*rows):
        if barrier.n_waiting or not met:
            barrier.wait()
            met.append(True)
        return MODEL.fn(*rows)

    met: list[bool] = []
    service = pybeam.Service(decoder(model=like(meets)), engines=3).start(warm_up=False)
    assert answers([service.submit(one) for one in REQUESTS[:3]]) == expected()[:3]
    service.close()


def like(fn):
    """A model with another function."""
    return FunctionModel(fn, MODEL.vocab_size, MODEL.start_id, MODEL.eos_id)


def started(engines, **options):
    model = GatedModel(MODEL)
    service = pybeam.Service(decoder(model=model), engines=engines, **options)
    return model, service.start(warm_up=False)


def burst(service, requests):
    """Submit requests at once, so that idle engines see all of them when they wake."""
    with service._groups["default"].queue.changed:
        return [service.submit(request) for request in requests]


def test_a_burst_is_shared():
    model, service = started(2)
    model.shut()
    futures = burst(service, REQUESTS[:4])
    engines = service._groups["default"]._engines
    # each has four places, and none takes them all
    wait_for(lambda: all(engine.tickets() for engine in engines))
    model.open()
    assert answers(futures) == expected()[:4]
    service.close()


def test_cancelled_requests_leave_the_engine_that_has_them():
    model, service = started(2)
    model.shut()
    futures = burst(service, REQUESTS[:8])
    wait_for(lambda: service.status().num_running >= 4)
    for future in futures[::2]:
        assert future.cancel()
    model.open()
    assert answers(futures[1::2]) == expected()[:8][1::2]
    wait_for(lambda: not service.status().num_running)
    assert service.status().cache_use == 0
    service.close()


def test_a_lonely_hopeless_request_ends_no_engine(monkeypatch):
    """An idle engine that finds nothing but a request that is expected to be late goes on waiting."""
    monkeypatch.setattr(Forecast, "outlook", lambda *_: Outlook(50.0, 1.0, 50.0))
    model, service = started(2)
    model.shut()
    slow = service.submit(REQUESTS[0])
    wait_for(lambda: service.status().num_running == 1)
    with pytest.raises(DeadlineExceeded, match="expected"):
        service.submit(REQUESTS[1], timeout=1.0).result(WAIT_SECONDS)
    more = [service.submit(request) for request in REQUESTS[:5]]
    # the other engine is there, and takes some of them
    wait_for(lambda: service.status().num_running >= 2)
    model.open()
    assert answers([slow, *more]) == [expected()[0], *expected()[:5]]
    service.close()


def test_one_engine_stalls_and_the_other_goes_on():
    go, clock, has_begun = threading.Event(), Clock(), threading.Semaphore(0)

    def never_ends(prefixes, lengths, source_ids):
        if (source_ids == 13).any():
            has_begun.release()
            go.wait(WAIT_SECONDS)
        return MODEL.fn(prefixes, lengths, source_ids)

    def stall():
        """Let one more step take too long."""
        future = service.submit(pybeam.Request([1], source_id=13))
        assert has_begun.acquire(timeout=WAIT_SECONDS)
        clock.now += 100
        service._look()
        with pytest.raises(EngineStalled):
            future.result(WAIT_SECONDS)

    one = decoder(model=like(never_ends))
    service = pybeam.Service(one, engines=2, max_step_seconds=50, clock=clock)
    service.start(warm_up=False)
    engines = service._groups["default"]._engines
    wait_for(lambda: all(engine.is_idle for engine in engines))
    stall()
    assert service.is_ready
    assert service.submit(pybeam.Request([1], source_id=1)).result(WAIT_SECONDS).result.hypotheses
    wait_for(lambda: any(engine.is_idle for engine in engines))
    stall()
    assert not service.is_ready
    go.set()
    wait_for(lambda: service.is_ready)
    service.close()


def test_a_swap_waits_for_all_engines():
    model, service = started(3)
    model.shut()
    futures = burst(service, REQUESTS)
    wait_for(lambda: service.status().num_running >= 3)
    service.swap("default", decoder("greedy"))
    assert answers([service.submit(REQUESTS[0])]) == expected("greedy")[:1]
    model.open()
    assert answers(futures) == expected()
    service.close()


def test_hooks_hear_of_every_request_once():
    class Ear(Listener):
        def __init__(self):
            self.ends = []

        def on_finished(self, model, reason, *facts):
            self.ends.append(reason)

    ear = Ear()
    with pybeam.Service(decoder(), engines=3, listener=ear) as service:
        answers([service.submit(request) for request in REQUESTS])
    assert ear.ends == ["finished"] * len(REQUESTS)


@pytest.mark.parametrize("engines", [0, -1, 1.5, True])
def test_a_wrong_number(engines):
    with pytest.raises((TypeError, ValueError), match="`engines`"):
        pybeam.Service(decoder(), engines=engines)


def test_a_copy_of_a_decoder_shares_nothing_but_the_model():
    first = decoder()
    second = copy.copy(first)
    requests = REQUESTS[:4]
    kept = [told(one) for one in first.decode(requests)]
    assert second.stats.steps == 0 and second.model is first.model
    assert [told(one) for one in second.decode(requests)] == kept
    assert first._idle[0] is not second._idle[0]
