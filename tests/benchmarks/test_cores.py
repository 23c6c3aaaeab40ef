"""Servers of many cores, in a simulation."""

from __future__ import annotations

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece"):
    pytest.importorskip(module)

from benchmarks import cores  # noqa: E402
from benchmarks.simulated_service import Costs, Lines  # noqa: E402
from support.verse_lengths import LENGTHS  # noqa: E402


def test_a_request_passes_the_front_twice():
    [one] = requests = [Lines(LENGTHS).one(1.0, 60.0)]
    costs = Costs(step=1e-3, row=0.0, source=0.0)
    alone = cores.FrontedSimulation(costs, 3, seed=1)
    alone.run(requests)
    expected = one.answered
    fronted = cores.FrontedSimulation(costs, 3, seed=1, front=0.5)
    fronted.run(requests)
    assert one.answered == pytest.approx(expected + 0.5)
    assert fronted.front_seconds == 0.5 and one.end == "made"


def test_a_front_holds_no_more_than_it_has_time_for():
    few, many = (cores.row(number, 0.8, 0.02, 3.0, LENGTHS) for number in (3, 9))
    assert few["req/s"] == many["req/s"] == 40
    for one in (few, many):
        assert 60 < one["front busy %"] < 100 and not one["not answered"]
        # a request waits for itself, and for others
        assert one["p50_ms"] > 20
    alone = cores.row(9, 0.8, 0.0, 0.5, LENGTHS)
    assert alone["req/s"] > 10 * many["req/s"] and alone["p50_ms"] < many["p50_ms"]
