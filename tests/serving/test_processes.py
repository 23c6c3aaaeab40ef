"""Engines in processes. Results, order and cancellation are those of threads; a crash costs little."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import select
import signal
import socket

import pytest
import torch

import pybeam
from pybeam.catalogue import allowed_items
from pybeam.engine.arrivals import Watch
from pybeam.models import FunctionModel
from pybeam.serving import DeadlineExceeded, EngineCrashed, EngineStalled, ServiceClosed
from pybeam.serving.engine_process import (
    Answer,
    RequestUnpickler,
    SentArrivals,
    in_both,
    packed,
    packed_request,
    portable,
    send,
)
from support.engine_processes import (
    KILLS,
    NEVER_ENDS,
    RAISES,
    READS,
    Door,
    burst,
    processes,
    source,
    started,
)
from support.gates import WAIT_SECONDS, Clock
from support.served import MODEL, REQUESTS, answers, decoder, expected, is_alive, told, wait_for


class Decorated(Exception):
    """An error whose text grows when another process reads it."""

    def __init__(self, text):
        super().__init__(f"it says {text}")


class Unreadable(list):
    """Token ids that another process cannot read."""

    def __reduce__(self):
        return os.stat, ("/no/such/file",)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["fixed", "variable", "greedy"])
def test_results_are_those_of_threads(name):
    requests = [
        pybeam.Request(r.source, source_id=r.source_id, id=("own", object)) for r in REQUESTS
    ]
    with started(2, name=name) as service:
        futures = [service.submit(request) for request in requests]
        assert answers(futures) == expected(name)
        assert {future.result().result.id for future in futures} == {("own", object)}
        times = futures[-1].result().times
        assert times.decoding > 0 and times.queued > 0 and times.steps > 0
        wait_for(lambda: not service.status().num_running)
        assert service.status().num_steps > 0 and service.status().cache_use == 0


def test_a_crash_costs_the_requests_of_its_process_alone():
    """Each of two processes has four places; whoever is beside the source that kills one must come again."""
    with started(2, Door().model) as service:
        service.submit(REQUESTS[0]).result(WAIT_SECONDS)
        futures = burst(service, [*REQUESTS[:6], source(KILLS), *REQUESTS[6:]])
        killer = futures.pop(6)
        with pytest.raises(EngineCrashed, match="send it again"):
            killer.result(WAIT_SECONDS)
        lost = [one for one in futures if one.exception(WAIT_SECONDS) is not None]
        assert len(lost) <= 5
        assert {type(one.exception()) for one in lost} <= {EngineCrashed}
        found = [one.exception() or told(one.result().result) for one in futures]
        assert [one for one in found if not isinstance(one, Exception)] == [
            good for one, good in zip(found, expected(), strict=True) if one == good
        ]
        assert service.is_ready
        assert answers([service.submit(request) for request in REQUESTS]) == expected()


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_sleeps_costs_nothing():
    with started() as service:
        num_steps = 0
        for _ in range(3):
            assert answers([service.submit(REQUESTS[0])]) == expected()[:1]
            # counts never fall
            assert num_steps < (num_steps := service.status().num_steps)
            [pid] = processes(service)
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
            # as a watchdog may that has not heard of it
            service._groups["default"]._engines[0].decoder.kill()
        # whatever made the processes may be killed, too
        os.kill(service._groups["default"]._server._pid, signal.SIGKILL)
        assert answers([service.submit(request) for request in REQUESTS]) == expected()


def test_processes_that_end_at_once_are_not_begun_for_ever(monkeypatch):
    monkeypatch.setattr("pybeam.serving.engine_group.serve_streams", lambda *_: None)
    monkeypatch.setattr("pybeam.serving.forked_decoder.FIRST_PAUSE", 0.001)
    with started() as service:
        with pytest.raises(EngineCrashed):
            service.submit(REQUESTS[0]).result(WAIT_SECONDS)


def test_a_step_that_does_not_end_ends_its_process():
    clock = Clock()
    with started(model=Door().model, clock=clock, max_step_seconds=0.2) as service:
        stuck = service.submit(source(NEVER_ENDS))

        def stalls():
            clock.now += 1
            service._look()
            return stuck.done()

        wait_for(stalls)
        with pytest.raises(EngineStalled):
            stuck.result()
        wait_for(lambda: service.is_ready)
        assert answers([service.submit(REQUESTS[0])]) == expected()[:1]


def test_who_goes_leaves_before_the_next_step():
    door = Door()
    with started(2, door.model) as service:
        door.shut()
        futures = burst(service, REQUESTS[:8])
        late = service.submit(REQUESTS[8], timeout=0.05)
        door.until_a_step_waits()
        wait_for(lambda: service.status().num_running >= 4)
        for future in futures[::2]:
            assert future.cancel()
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_SECONDS)
        door.open()
        assert answers(futures[1::2]) == expected()[:8][1::2]
        wait_for(lambda: not service.status().num_running)
        assert service.status().cache_use == 0


def test_the_best_so_far_comes_at_the_deadline():
    door, clock = Door(), Clock()
    with started(model=door.model, clock=clock) as service:
        service.submit(REQUESTS[0]).result(WAIT_SECONDS)
        door.shut()
        # the process goes on until it hears of the deadline
        long = pybeam.Request([1], source_id=1, min_length=399, max_length=400)
        future = service.submit(long, timeout=2, on_deadline="best")
        door.until_a_step_waits()
        clock.now += 2
        # as the timer does
        service._groups["default"].look()
        assert service._groups["default"].queue.must_leave[0]
        door.open()
        served = future.result(WAIT_SECONDS)
        assert served.reason == "deadline" and served.result.stop_reason == "interrupted"


def test_the_order_is_that_of_priorities():
    door, order = Door(), []
    with started(model=door.model, schedule=pybeam.Fifo(1)) as service:
        door.shut()
        first = service.submit(REQUESTS[0])
        door.until_a_step_waits()
        for priority in (0, 2, -1, 1):
            future = service.submit(REQUESTS[1], priority=priority)
            future.add_done_callback(lambda _, priority=priority: order.append(priority))
        door.open()
        first.result(WAIT_SECONDS)
        wait_for(lambda: len(order) == 4)
    assert order == [2, 1, 0, -1]


def test_what_cannot_be_sent_fails_alone():
    door = Door()
    with started(model=door.model) as service:
        door.shut()
        unread = pybeam.Request([1], source_id=1, prefix=Unreadable([4]))
        futures = burst(service, [*REQUESTS[:2], unread, *REQUESTS[2:4]])
        door.open()
        with pytest.raises(FileNotFoundError, match="no/such/file"):
            futures.pop(2).result(WAIT_SECONDS)
        assert answers(futures) == expected()[:4]
        unfit = pybeam.Request([1], source_id=1, max_length=lambda length: 3)
        with pytest.raises(TypeError, match="cannot be sent to the process"):
            service.submit(unfit).result(WAIT_SECONDS)
        with pytest.raises(RuntimeError, match="Odd: it is odd"):
            service.submit(source(RAISES)).result(WAIT_SECONDS)
        with pytest.raises(FileNotFoundError, match="no/such/file"):
            service.submit(source(READS)).result(WAIT_SECONDS)
        with pytest.raises(ValueError, match="`prefix`"):
            service.submit(pybeam.Request([1], prefix=[99])).result(WAIT_SECONDS)
        assert answers([service.submit(REQUESTS[0])]) == expected()[:1]


def test_what_both_processes_have_is_not_sent():
    """A request changes the filter of a catalogue, whose arrays may be large and are compared by identity."""
    catalogue = pybeam.Catalogue.build([[3, i, j] for i in range(3, 60) for j in range(3, 60)])
    algorithm = pybeam.greedy(max_length=5, processors=[allowed_items(catalogue)])
    change = allowed_items(catalogue, catalogue.filter(allow=[1]))
    known = in_both(algorithm)
    sent = packed_request(pybeam.Request([1], processors=[change]), known)
    [found] = RequestUnpickler(io.BytesIO(sent), known).load().processors
    assert found.catalogue is catalogue and found.filter is not change.filter
    assert len(sent) < catalogue.num_bytes / 4


def test_a_part_of_a_batch_is_sent_alone():
    batch = torch.ones(100, 1000)
    sent = packed_request(pybeam.Request(batch[3]), [])
    assert len(sent) < 2 * batch[3].nbytes
    assert torch.equal(RequestUnpickler(io.BytesIO(sent), []).load().source, batch[3])


def test_an_engine_forgets_requests_that_fail_early():
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        arrivals = SentArrivals(theirs, pybeam.Fifo(1), [], ([False], [False], [False]))
        arrivals._tell(waits=True)
        request = packed(pybeam.Request([1]))
        send(ours, Answer({0: DeadlineExceeded("late")}, [(0, request, Watch.NOTHING, False)]))
        assert arrivals.next(may_wait=True)[0] == 0
        arrivals.put(pybeam.Result(0, None, [], "error", error=ValueError("bad")))
        assert not arrivals._watches and not arrivals._leaving


def test_errors_say_the_same_in_the_other_process():
    assert str(portable(Decorated("no"))) == "Decorated: it says no"
    plain = ValueError("no")
    assert portable(plain) is plain


@pytest.mark.slow
def test_a_swap_ends_the_old_processes():
    with started(2) as service:
        assert answers([service.submit(request) for request in REQUESTS]) == expected()
        old = processes(service)
        service.swap("default", decoder("greedy"), warm_up=False)
        assert answers([service.submit(REQUESTS[0])]) == expected("greedy")[:1]
        wait_for(lambda: not any(map(is_alive, old)))
        one = decoder()
    with pytest.raises(ServiceClosed):
        service.swap("default", one)


def test_a_start_that_fails_leaves_no_process(monkeypatch):
    pids = []

    def warm_up(decoder):
        decoder.decode([[1]])
        pids.extend([decoder._pid, decoder._server._pid])
        if not early:
            early.append(service.submit([1]))
        raise MemoryError

    one, other, early = decoder(), decoder(), []
    monkeypatch.setattr(pybeam.Decoder, "warm_up", warm_up)
    service = pybeam.Service(one, processes=True)
    with pytest.raises(MemoryError):
        service.start()
    with pytest.raises(ServiceClosed):
        early[0].result(WAIT_SECONDS)
    with pytest.raises(ServiceClosed):
        service.submit([1])
    with started() as service, pytest.raises(MemoryError):
        service.swap("default", other)
    assert len(pids) == 4 and not any(map(is_alive, pids))


@pytest.mark.slow
def test_a_copy_of_the_program_that_ends_leaves_the_engine_alone():
    with started() as service:
        assert answers([service.submit(REQUESTS[0])]) == expected()[:1]
        [pid] = processes(service)
        copy = os.fork()
        if not copy:
            service._groups["default"]._engines[0].decoder.release()
            os._exit(0)
        os.waitpid(copy, 0)
        assert answers([service.submit(REQUESTS[0])]) == expected()[:1]
        assert processes(service) == [pid]


@pytest.mark.slow
def test_nothing_is_left():
    """Neither processes nor files, and meanwhile the processes hold no connection of a client."""
    gc.collect()
    before = set(os.listdir("/dev/fd"))
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    with started(2, Door().model) as service:
        with pytest.raises(EngineCrashed):
            service.submit(source(KILLS)).result(WAIT_SECONDS)
        assert answers([service.submit(request) for request in REQUESTS]) == expected()
        pids = [*processes(service), service._groups["default"]._server._pid]
        theirs.close()
        ours.settimeout(WAIT_SECONDS)
        assert ours.recv(1) == b"", "a process keeps the other end"
        ours.close()
        os.close(writer)
        assert select.select([reader], [], [], WAIT_SECONDS)[0], "a process keeps a pipe"
        os.close(reader)
    assert not any(map(is_alive, pids))
    assert set(os.listdir("/dev/fd")) == before


def test_threads_of_the_maker_are_not_missed():
    """OpenMP's threads are not in a copy. Whoever computed before with two goes on with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        big = torch.ones(1 << 20)

        def function(prefixes, lengths, source_ids):
            assert float((big + big).sum()) == 2 << 20
            return MODEL.fn(prefixes, lengths, source_ids)

        function(
            torch.zeros(1, 1, dtype=torch.long), torch.ones(1), torch.zeros(1, dtype=torch.long)
        )
        model = FunctionModel(function, MODEL.vocab_size, MODEL.start_id, MODEL.eos_id)
        with started(model=model) as service:
            assert answers([service.submit(REQUESTS[0])]) == expected()[:1]
    finally:
        torch.set_num_threads(before)


def test_a_model_that_cannot_be_copied(monkeypatch):
    one = decoder()
    monkeypatch.setattr(one.model, "device", torch.device("meta"), raising=False)
    with pytest.raises(ValueError, match="needs models on a CPU, but 'default' is on meta"):
        pybeam.Service(one, processes=True)
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ValueError, match="only on Linux can copies"):
        pybeam.Service(decoder(), processes=True)
    with pytest.raises(
        TypeError, match="`processes` must be True or False, but is 4; `engines` says"
    ):
        pybeam.Service(decoder(), processes=4)
