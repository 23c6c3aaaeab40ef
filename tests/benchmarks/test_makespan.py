"""The simulated cluster: cases that can be counted by hand."""

import math

import pytest

pytest.importorskip("tabulate")

from benchmarks.tools import makespan
from benchmarks.tools.makespan import PROCESSES, Costs, Simulation


@pytest.fixture(autouse=True)
def no_stragglers(monkeypatch):
    monkeypatch.setattr(makespan, "STRAGGLERS", 0.0)


def costs(**others):
    free = dict(line=1.0, spread=0.0, measured_lines=1, driver_line=0.0, driver_part=0.0, start=0.0)
    return Costs(**{**free, **others})


def seconds(costs, num_nodes, part_lines, num_lines, rate=0.0):
    return Simulation(costs, num_nodes, part_lines, num_lines, rate, 0).run().seconds


def test_whole_rounds_are_ideal_and_a_part_more_is_a_round_more():
    lines = 10 * 2 * PROCESSES * 5
    assert seconds(costs(), 2, 5, lines) == pytest.approx(50)
    assert seconds(costs(), 2, 5, lines + 1) == pytest.approx(55)
    assert seconds(costs(start=7.0), 2, 5, lines) == pytest.approx(57)


def test_the_driver_is_the_limit_when_it_is_slower_than_all_nodes():
    found = seconds(costs(driver_line=1.0), 2, 5, 1000)
    assert found == pytest.approx(1000 + 5)
    assert seconds(costs(driver_part=5.0), 2, 5, 1000) == pytest.approx(1000 + 5)


def test_a_manifest_that_grows_costs_more_with_every_part():
    found = seconds(costs(driver_entry=1.0), 2, 5, 20)
    assert found == pytest.approx(1 + 2 + 3 + 4 + 5)


def test_a_lost_node_takes_its_parts_along_and_comes_back(monkeypatch):
    lifetimes = iter([7.0, math.inf, math.inf])
    monkeypatch.setattr(Simulation, "_lifetime", lambda self: next(lifetimes))
    # two rounds of 5 s on two nodes; the second round of one of them is lost after 2 s
    own = costs(notice=1.0, replacement=100.0)
    run = Simulation(own, 2, 5, 4 * PROCESSES * 5, 1.0, 0)
    found = run.run()
    # noticed at 8, given to the idle processes of the other node at 10, done at 15
    assert found.seconds == pytest.approx(15)
    assert found.num_lost == 1
    # without spare time the replacement helps
    lifetimes = iter([7.0, math.inf, math.inf])
    own = costs(notice=1.0, replacement=3.0)
    found = Simulation(own, 2, 5, 8 * PROCESSES * 5, 1.0, 0).run()
    assert found.seconds == pytest.approx(10 + 5 + 10)


def test_stragglers_keep_the_mean(monkeypatch):
    monkeypatch.setattr(makespan, "STRAGGLERS", 0.5)
    run = Simulation(costs(), 1, 10, 10, 0.0, 0)
    durations = [run._duration() for _ in range(50_000)]
    assert sum(durations) / len(durations) == pytest.approx(10, rel=0.02)
