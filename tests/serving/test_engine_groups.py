"""Models come and go while others decode, and a decoder is asked for as long as somebody knows it."""

from __future__ import annotations

import threading

import pytest

import pybeam
from pybeam.serving import ServiceClosed
from support.gates import WAIT_SECONDS, GatedModel
from support.served import MODEL, REQUESTS, answers, decoder, expected, is_alive, wait_for
from support.served import gated as one_gated


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_a_model_comes_and_goes_while_another_decodes(processes):
    with pybeam.Service({"first": decoder()}, processes=processes) as service:
        service.load({"second": decoder("greedy")})
        assert service.models == ("first", "second") == tuple(service.statuses)
        asked = [
            [service.submit(one, model=name) for one in REQUESTS[:4]] for name in service.models
        ]
        group = service._groups["second"]
        service.unload("second")
        assert answers(asked[0]) == expected()[:4]
        assert answers(asked[1]) == expected("greedy")[:4], "they were there before"
        assert service._groups.all == [service._groups["first"]]
        assert not processes or not is_alive(group._server._pid)
        with pytest.raises(ValueError, match="`model` must be one of first, but is 'second'"):
            service.submit(REQUESTS[0], model="second")
        service.load({"second": decoder("greedy")}, warm_up=False)
        assert answers([service.submit(REQUESTS[0], model="second")]) == expected("greedy")[:1]


def test_the_last_model_may_go_and_another_come():
    with pybeam.Service(decoder(), max_step_seconds=WAIT_SECONDS) as service:
        service.unload("default", timeout=0)
        assert service.models == () and service.is_ready
        with pytest.raises(ValueError, match="`model`"):
            service.submit(REQUESTS[0])
        service.load({"other": decoder()}, warm_up=False)
        assert answers([service.submit(REQUESTS[0], timeout=WAIT_SECONDS)]) == expected()[:1]


def test_whoever_knows_a_decoder_asks_for_it_behind_its_name():
    """So a source that was made for one model never meets another, which has its name meanwhile."""
    old, new = decoder(), decoder("greedy")
    with pybeam.Service({"m": old}) as service:
        service.load({"m": new})
        ask = [service.submit(REQUESTS[0], model=one) for one in ("m", new, old)]
        assert answers(ask) == [*expected("greedy")[:1] * 2, *expected()[:1]]
        service.unload(old)
        assert answers([service.submit(REQUESTS[0], model="m")]) == expected("greedy")[:1]
        with pytest.raises(ServiceClosed, match="has been unloaded"):
            service.submit(REQUESTS[0], model=old)


def test_of_models_that_come_together_all_stay_away_if_one_cannot_begin(monkeypatch):
    good, bad, warm_up = decoder(), decoder("greedy"), pybeam.Decoder.warm_up

    def fail(one):
        if one is bad:
            raise MemoryError
        warm_up(one)

    monkeypatch.setattr(pybeam.Decoder, "warm_up", fail)
    with pybeam.Service({"m": decoder()}) as service:
        with pytest.raises(MemoryError):
            service.load({"m": good, "n": bad})
        assert service.models == ("m",) and len(service._groups.all) == 1
        assert answers([service.submit(REQUESTS[0])]) == expected()[:1]


def test_unloading_ends_at_its_time():
    model, service = one_gated()
    model.shut()
    future = service.submit(REQUESTS[0])
    model.until_a_step_waits()
    thread = threading.Thread(target=lambda: service.unload("default", timeout=0.01))
    thread.start()
    with pytest.raises(ServiceClosed, match="was unloaded"):
        future.result(WAIT_SECONDS)
    model.open()
    thread.join(WAIT_SECONDS)
    wait_for(lambda: not service._groups.all)
    service.close()


def test_a_service_that_does_not_run_loads_nothing():
    service = pybeam.Service({"m": decoder(model=GatedModel(MODEL))})
    for act in (lambda: service.unload("m"), lambda: service.load({"n": decoder()}, warm_up=False)):
        with pytest.raises(ServiceClosed, match="is new"):
            act()
    assert service.models == ("m",)
