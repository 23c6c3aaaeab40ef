"""Two processes are one service: one line of turns, one count of all, one copy of the weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pybeam
from pybeam.models import FunctionModel
from pybeam.server.metrics import Metrics
from pybeam.serving.waiting import WaitingLine
from support.engine_processes import Door, burst, processes, started
from support.gates import WAIT_SECONDS
from support.served import MODEL, REQUESTS, answers, expected, wait_for
from support.server_process import gauge, needs_proc


@pytest.mark.slow
def test_clients_take_turns(monkeypatch):
    door, taken, begin = Door(), [], WaitingLine.begin

    def noted(line, ticket):
        taken.append(ticket.client)
        begin(line, ticket)

    with started(2, door.model, schedule=pybeam.Fifo(1)) as service:
        door.shut()
        first = burst(service, REQUESTS[:2])
        wait_for(lambda: service.status().num_running == 2)
        monkeypatch.setattr(WaitingLine, "begin", noted)
        clients = ["many"] * 5 + ["few"] * 2
        with service._groups["default"].queue.changed:
            more = [service.submit(REQUESTS[0], client=client) for client in clients]
        door.open()
        assert answers(first + more) == expected()[:2] + expected()[:1] * len(more)
    assert taken == ["many", "few", "many", "few", "many", "many", "many"]


@pytest.mark.slow
def test_counts_are_those_of_both():
    metrics, door = Metrics(), Door()
    with started(2, door.model, listener=metrics) as service:
        metrics.watch(service, SimpleNamespace(all=[], budget=None))
        engines = service._groups["default"]._engines
        door.shut()
        futures = burst(service, REQUESTS)
        wait_for(lambda: all(engine.tickets() for engine in engines))
        door.open()
        found = [one.result(WAIT_SECONDS).result for one in futures]
        wait_for(lambda: not service.status().num_running)
        steps = [engine.stats.steps for engine in engines]
        assert min(steps) > 0
        text = metrics.text().decode()
    assert gauge(text, "pybeam:engine_steps_total") == sum(steps)
    assert gauge(text, "pybeam:request_success_total") == len(REQUESTS)
    assert gauge(text, "pybeam:e2e_request_latency_seconds_count") == len(REQUESTS)
    assert gauge(text, "pybeam:expansions_total") == sum(one.expansions for one in found)
    num_tokens = sum(len(one.hypotheses[0].tokens) for one in found)
    assert gauge(text, "pybeam:generation_tokens_total") == num_tokens


@needs_proc
def test_weights_are_there_once():
    """Each process reads all of them, and has none of its own."""
    # much more than what else a process has for itself
    weights = torch.ones(1 << 25)

    def reads(*rows):
        assert float(weights.sum()) == weights.numel()
        return MODEL.fn(*rows)

    model = FunctionModel(reads, MODEL.vocab_size, MODEL.start_id, MODEL.eos_id)
    with started(2, model) as service:
        assert answers(burst(service, REQUESTS[:4])) == expected()[:4]
        for pid in processes(service):
            held = memory_of(pid)
            assert held["Rss"] > weights.nbytes
            assert held["Private_Clean"] + held["Private_Dirty"] < weights.nbytes / 2
            assert held["Pss"] < held["Rss"] / 2


def memory_of(pid: int) -> dict[str, int]:
    """The bytes of a process, by kind."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: 1024 * int(size.split()[0]) for name, size in (one.split(":") for one in lines)}


@pytest.fixture(autouse=True)
def one_thread():
    """Copies have no threads of their maker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
