"""Models and processors that fail, steps that never end, closing and swapping under load: nobody is lost."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading

import pytest
import torch

import pybeam
from pybeam.models import FunctionModel
from pybeam.serving import EngineStalled, ServiceClosed
from support.gates import WAIT_SECONDS, Clock, GatedModel
from support.served import MODEL, REQUESTS, answers, decoder, expected, gated, told, wait_for

BAD = 4


class Oops(Exception):
    pass


def broken_model(spoil):
    """The same model, but for the logits of the bad source."""

    def function(prefixes, lengths, source_ids):
        logits = MODEL.fn(prefixes, lengths, source_ids)
        return spoil(logits, (source_ids == BAD) & (lengths >= 3))

    return FunctionModel(function, MODEL.vocab_size, MODEL.start_id, MODEL.eos_id)


def raises(logits, is_bad):
    if bool(is_bad.any()):
        raise Oops("it is broken")
    return logits


def gives_nan(logits, is_bad):
    return torch.where(is_bad[:, None], torch.nan, logits)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("spoil, error", [(raises, Oops), (gives_nan, ValueError)])
def test_a_source_that_breaks_the_model_fails_alone(spoil, error):
    with pybeam.Service(decoder(model=broken_model(spoil))) as service:
        for _ in range(2):
            futures = [service.submit(request) for request in REQUESTS]
            bad = futures.pop(BAD)
            with pytest.raises(error):
                bad.result(WAIT_SECONDS)
            assert answers(futures) == [*expected()[:BAD], *expected()[BAD + 1 :]]
    assert service.status().cache_use == 0


def test_a_request_that_is_bad_fails_alone():
    class Picky(FunctionModel):
        def check(self, source):
            if source == "text":
                raise TypeError("`source` must be a list")
            return source

    model = Picky(MODEL.fn, MODEL.vocab_size, MODEL.start_id, MODEL.eos_id)
    with pybeam.Service(decoder(model=model)) as service:
        good = service.submit(REQUESTS[0])
        with pytest.raises(TypeError, match="`source`"):
            service.submit("text").result(WAIT_SECONDS)
        with pytest.raises(ValueError, match="`prefix`"):
            service.submit(pybeam.Request([1], prefix=[99])).result(WAIT_SECONDS)
        assert answers([good]) == expected()[:1]


class Broken(pybeam.Decoder):
    """Its stream raises where no request is to blame, so often, after some results."""

    num_failures = 2

    def stream(self, requests, **options):
        results = super().stream(requests, **options)
        if not self.num_failures:
            return results
        self.num_failures -= 1
        return self._break(results)

    def _break(self, results):
        for n, result in enumerate(results):
            yield result
            if n == 2:
                raise Oops("the engine is broken")


def test_an_engine_that_fails_tells_its_callers_and_starts_anew():
    plain = decoder()
    with pybeam.Service(Broken(plain.model, plain.algorithm, plain.schedule)) as service:
        futures = [service.submit(request) for request in REQUESTS * 2]
        failed = 0
        for i, future in enumerate(futures):
            error = future.exception(WAIT_SECONDS)
            assert error is None or isinstance(error, Oops)
            failed += error is not None
            if error is None:
                assert told(future.result().result) == expected()[i % 17]
        # those that it had taken, and no others
        assert 0 < failed <= 2 * (4 + 1)
        assert service.is_ready
        # counts of streams that have failed are not lost
        [engine] = service._groups["default"]._engines
        assert engine.stats.sources >= len(futures) - failed
        assert answers([service.submit(REQUESTS[0])]) == expected()[:1]


class Hopeless(pybeam.Decoder):
    def stream(self, requests, **options):
        raise Oops("it never begins")


def test_an_engine_that_never_begins_tells_everybody():
    plain = decoder()
    with pybeam.Service(Hopeless(plain.model, plain.algorithm)) as service:
        for request in REQUESTS[:3]:
            with pytest.raises(Oops):
                service.submit(request).result(WAIT_SECONDS)


@pytest.mark.slow
def test_an_engine_that_never_begins_costs_nobody_anything_beside_one_that_works(monkeypatch):
    monkeypatch.setattr("pybeam.serving.engine_thread.RETRY_SECONDS", 0.001)
    plain = decoder()
    hopeless = [Hopeless(copy.copy(MODEL), plain.algorithm, plain.schedule) for _ in range(2)]
    with pybeam.Service([hopeless[0], plain, hopeless[1]]) as service:
        assert answers([service.submit(request) for request in REQUESTS]) == expected()
        # each of them wakes alone, and lets one that works know
        for _ in range(9):
            assert answers([service.submit(REQUESTS[0])]) == expected()[:1]


def test_an_engine_that_waits_after_it_failed_does_not_hang():
    """It sleeps until a request comes, however long that takes, and the watchdog knows that."""
    plain, clock = decoder(), Clock()
    service = pybeam.Service(Hopeless(plain.model, plain.algorithm), clock=clock)
    with contextlib.closing(service.start(warm_up=False)):
        for _ in range(2):
            with pytest.raises(Oops):
                service.submit(REQUESTS[0]).result(WAIT_SECONDS)
            wait_for(lambda: service._groups["default"]._engines[0].is_idle)
            clock.now += 1000
            service._look()
            assert service.is_ready


def test_a_step_that_does_not_end():
    """All callers hear of it; new ones are refused; when it ends after all, it goes on."""
    clock = Clock()
    model, service = gated(max_step_seconds=50, clock=clock)
    model.shut()
    futures = [service.submit(request) for request in REQUESTS]
    model.until_a_step_waits()
    clock.now += 100
    service._look()
    for future in futures:
        with pytest.raises(EngineStalled, match="`max_step_seconds`"):
            future.result(WAIT_SECONDS)
    assert not service.is_ready
    with pytest.raises(EngineStalled):
        service.submit(REQUESTS[0])
    model.open()
    wait_for(lambda: service.is_ready and not service.status().num_running)
    assert answers([service.submit(REQUESTS[0])]) == expected()[:1]
    service.close()
    assert service.status().cache_use == 0


def test_an_engine_that_never_ends_does_not_keep_a_service_from_closing():
    model, service = gated(max_step_seconds=0.05)
    model.shut()
    future = service.submit(REQUESTS[0])
    with pytest.raises(EngineStalled):
        future.result(WAIT_SECONDS)
    service.close(timeout=0)
    model.open()


def test_an_engine_that_sleeps_has_not_stalled():
    # more than a step takes, on a busy machine too
    _, service = gated(max_step_seconds=0.2)
    threading.Event().wait(0.3)
    assert service.is_ready
    assert answers([service.submit(REQUESTS[0])]) == expected()[:1]
    service.close()


def test_closing_finishes_what_there_is():
    model, service = gated()
    model.shut()
    futures = [service.submit(request) for request in REQUESTS]
    model.until_a_step_waits()
    closing = threading.Thread(target=service.close)
    closing.start()
    wait_for(lambda: not service.is_ready)
    with pytest.raises(ServiceClosed):
        service.submit(REQUESTS[0])
    model.open()
    assert answers(futures) == expected()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    service.close()


def test_closing_in_a_hurry_tells_the_rest():
    model, service = gated(max_step_seconds=0.05)
    model.shut()
    futures = [service.submit(request) for request in REQUESTS]
    model.until_a_step_waits()
    service.close(timeout=0)
    for future in futures:
        with pytest.raises((ServiceClosed, EngineStalled)):
            future.result(WAIT_SECONDS)
    model.open()


def test_a_swap_under_load_drops_nothing():
    """Whoever came before gets the old model's result, whoever comes after the new one's."""
    old, new = GatedModel(MODEL), broken_model(lambda logits, is_bad: logits.flip(1))
    service = pybeam.Service({"m": decoder(model=old)}).start(warm_up=False)
    old.shut()
    before = [service.submit(request) for request in REQUESTS]
    old.until_a_step_waits()
    service.swap("m", decoder(model=new))
    after = [service.submit(request) for request in REQUESTS]
    assert answers(after) == expected(model=new) != expected()
    old.open()
    assert answers(before) == expected()
    wait_for(lambda: len(service._groups.all) == 1)
    service.close()


@pytest.mark.slow
def test_swaps_while_many_submit():
    service = pybeam.Service({"m": decoder()}).start()
    futures, is_over = [], threading.Event()

    def ask():
        while not is_over.is_set():
            futures.append((len(futures) % 17, service.submit(REQUESTS[len(futures) % 17])))
            futures[-1][1].result(WAIT_SECONDS)

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(5):
        count = len(futures)
        wait_for(lambda count=count: len(futures) > count + 2)
        service.swap("m", decoder(), warm_up=False)
    is_over.set()
    thread.join(WAIT_SECONDS)
    service.close()
    assert [told(one.result(0).result) for _, one in futures] == [expected()[i] for i, _ in futures]
    with pytest.raises(ValueError, match="`model`"):
        service.swap("n", decoder())
    with pytest.raises(ServiceClosed):
        service.swap("m", decoder(), warm_up=False)


def test_several_models_do_not_wait_for_each_other():
    blocked = GatedModel(MODEL)
    service = pybeam.Service({"a": decoder(model=blocked), "b": decoder("greedy")})
    service.start(warm_up=False)
    blocked.shut()
    waits = service.submit(REQUESTS[0], model="a")
    futures = [service.submit(request, model="b") for request in REQUESTS]
    assert answers(futures) == expected("greedy")
    blocked.open()
    assert answers([waits]) == expected()[:1]
    service.close()


def test_as_a_context_of_tasks():
    async def run():
        async with pybeam.Service(decoder()) as service:
            assert service.is_ready
            return told((await service.decode(REQUESTS[0])).result)

    assert asyncio.run(run()) == expected()[0]
