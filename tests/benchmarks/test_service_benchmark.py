"""Rows of the service under load."""

from __future__ import annotations

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece"):
    pytest.importorskip(module)

from benchmarks import service  # noqa: E402
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
