"""Rows of the service under load."""

from __future__ import annotations

import os
import threading
import time

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece"):
    pytest.importorskip(module)

from benchmarks import named_threads, service, sizes  # noqa: E402
from benchmarks.__main__ import BENCHMARKS, IDENTITY  # noqa: E402
from benchmarks.journal import Journal  # noqa: E402
from benchmarks.peers import PEER  # noqa: E402
from benchmarks.servers import PLAIN, Computed, Servers  # noqa: E402
from benchmarks.setup import Setup  # noqa: E402
from pybeam.traffic import Answer, open_loop, post  # noqa: E402
from support.late_server import LateServer, stream  # noqa: E402


def test_answers_come_in_the_order_of_their_requests():
    server = LateServer(*stream(b"event: certain"))
    due = [0.03, 0.0]
    answers = service.answers_of(server.address, open_loop, [post("/", {})] * 2, due)
    assert {one.status for one in answers} == {200} and all(one.first for one in answers)
    # the one that is due first comes behind the other in the list, so it is sent that much later
    assert answers[0].lag >= answers[1].lag + due[0]


def test_rows():
    answers = [Answer(0.1, 200, 0.05), Answer(0.4, 200, 0.1), Answer(0.9, 200), Answer(0.2, 429)]
    row = service._facts(answers, seconds=2.0)
    assert row["requests"] == 4 and row["answered/s"] == 1.5
    assert (row["good/s, 200 ms"], row["good/s, 500 ms"]) == (0.5, 1.0)
    assert row["p50_ms"] == pytest.approx(400) and row["latest_ms"] == pytest.approx(900)
    assert row["first, share of the whole"] == pytest.approx((0.5 + 0.25) / 2)
    assert row["status 429"] == 1 and "status 0" not in row


def test_load_that_a_server_holds():
    rows = [{"req/s": rate, "p99_ms": p99} for rate, p99 in ((10, 50), (20, 100), (40, 10000))]
    assert service._held(rows, 10) == 0
    assert service._held(rows, 1000) == pytest.approx(30)
    assert service._held(rows[:2], 1000) == 20
    # who refuses does not hold
    assert service._held([rows[0], {**rows[1], "status 429": 3}], 1000) == 10


@pytest.fixture
def bench(tmp_path):
    """Nothing is measured: the layout of two batches answers twice as much as that of one."""
    identity = (*IDENTITY, *BENCHMARKS["service"][2])
    setup = Setup("cpu", sizes.CPU, 2, tmp_path, Journal(tmp_path, "service-cpu", identity))
    bench = service.Bench(setup, Servers(setup), 1)
    bench._closed = lambda system, clients: {"answered/s": system.side_by_side, "cpu_ms": clients}
    return bench


def test_rows_of_different_numbers_of_clients_stay(bench):
    journal, system = bench.setup.journal, bench.systems[0]
    for clients in (1, 16, 16):
        [task] = bench.tasks("front-1", [system], bench.closed, clients=clients)
        journal.attempt(task.row, task.measure)
    assert [row["clients"] for row in journal.rows] == [1, 16]


def test_the_better_layout_is_measured_wherever_a_run_begins(bench):
    """Without rows of `peer-K`, too."""
    names = [(one.library, one.dtype) for one in bench.systems]
    assert names[:3] == [(PEER, "float32"), (PEER, "int8"), (PLAIN, "int8")]
    measured = []
    for task in bench.tasks("closed-1", bench.systems, lambda one: measured.append(one) or {}):
        task.measure()
    assert [one.side_by_side for one in measured[:3]] == [2, 2, 2]
    assert measured[3:] == bench.systems[3:]


def test_cpu_is_told_apart_by_thread(monkeypatch):
    kind = threading.Thread
    monkeypatch.setattr(kind, "_set_native_id", kind._set_native_id)
    named_threads.name_threads()
    found, before = [], Computed.of(os.getpid())

    def compute():
        while time.thread_time() < 0.01:
            pass
        found.append(Computed.of(os.getpid()))

    for name in ("pybeam deadlines", "pybeam model", "another"):
        thread = kind(target=compute, name=name)
        thread.start()
        thread.join()
    deadlines, engines, rest = (one.per_request(before, 1) for one in found)
    assert deadlines["deadlines_ms"] >= 10 > deadlines["engines_ms"]
    assert engines["engines_ms"] >= 10 > engines["deadlines_ms"]
    assert max(rest["engines_ms"], rest["deadlines_ms"]) < 10
