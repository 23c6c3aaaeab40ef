"""A forecast learns, and a queue chooses and refuses by it: on simulated engines, arrivals and clocks."""

from __future__ import annotations

import random

import pytest

from benchmarks.simulated_service import Costs, Counts, Lines, Sent, Simulation, capacity
from pybeam.serving.forecast import FEWEST_STEPS, NUM_STEPS, SHRINKS, STEPS_LAST, Forecast
from support.verse_lengths import LENGTHS

COSTS = Costs.measured()
CAPACITY = capacity(COSTS, LENGTHS)


def simulated(pattern: str, load: float, seconds: float, timeout: float, **options) -> Counts:
    """The counts of requests that come in this way, at a share of what the engines can do."""
    simulation = Simulation(COSTS, **options)
    rate = load * simulation.engines * CAPACITY
    return simulation.run(getattr(Lines(LENGTHS, 1), pattern)(rate, seconds, timeout))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "load", "engines"),
    [
        ("poisson", 2.0, 1),
        pytest.param("bursts", 1.2, 1, marks=pytest.mark.slow),
        pytest.param("days", 2.5, 2, marks=pytest.mark.slow),
    ],
)
def test_what_is_refused_would_be_late_and_what_is_not_is_in_time(pattern, load, engines):
    found = simulated(pattern, load, 6.0, 0.4, engines=engines)
    assert found.audited >= 30
    assert found.false_refusals <= 0.01, found
    assert found.late_ones <= 0.05, found


def test_who_asks_less_than_the_engines_can_do_is_refused_nothing():
    found = simulated("poisson", 0.6, 5.0, 1.0)
    assert found.made >= 0.998 * found.number, found


@pytest.mark.parametrize("share", [1.1, 1.5])
def test_a_burst_after_lonely_requests(share):
    """All have the time that the whole burst takes, and a little more: hardly one is refused."""

    def ended(timeout: float) -> tuple[list[Sent], list[Sent]]:
        lines = Lines(LENGTHS, 4)
        before = [lines.one(10.0 * i, 60.0) for i in range(40)]
        requests = [lines.one(400.0, timeout) for _ in range(256)]
        Simulation(COSTS).run([*before, *requests])
        return before, requests

    before, requests = ended(1e6)
    assert {one.end for one in before} == {"made"}
    longest = max(one.answered for one in requests) - 400.0
    _, requests = ended(share * longest)
    assert sum(one.end != "made" for one in requests) <= 1


def test_all_steps_become_slower():
    requests = Lines(LENGTHS, 7).poisson(0.5 * CAPACITY, 6.0, 1.0)
    found = Simulation(COSTS, slow_from=3.0).run(requests)
    assert found.false_refusals <= 0.02 and found.late_ones <= 0.05, found


def test_who_comes_again_when_told_to_is_done_in_time():
    """After a burst nobody else comes; but most of these come again at nearly the same time."""
    lines = Lines(LENGTHS, 3)
    before = lines.poisson(0.8 * CAPACITY, 4.0, 5.0)
    burst = [lines.one(10.0, 0.6) for _ in range(400)]
    simulation = Simulation(COSTS, retries=True)
    simulation.run([*before, *burst])
    assert sum(one.end == "refused" for one in burst) >= 50
    again = Counts.of(simulation.again)
    assert again.made >= 0.7 * again.number, again


def taught(rows: int, seconds: float, number: int = NUM_STEPS, now: float = 0.0) -> Forecast:
    found = Forecast()
    for _ in range(number):
        found.stepped(rows, seconds, now)
    return found


def step(forecast: Forecast, rows: int, now: float = 0.0) -> float:
    return forecast.outlook(10, 100, rows, now).step


def test_a_crowd_that_was_never_seen_says_nothing():
    found = taught(4, 0.01)
    assert step(found, 4) == pytest.approx(0.01)
    # a few more rows take at least as long, many more or fewer are another matter
    assert step(found, 7) == pytest.approx(0.01)
    assert step(found, 64) == step(found, 1) == 0.0
    assert found.outlook(10, 100, 4, 0.0).least == 0.0, "no request was done yet"
    found.finished(10, 12)
    assert found.outlook(10, 100, 64, 0.0).least == found.outlook(10, 100, 64, 0.0).likely == 0.0
    assert 0.0 < found.outlook(10, 100, 4, 0.0).least < 0.12 < found.outlook(10, 100, 4, 0.0).likely


def test_few_steps_and_old_steps_say_nothing():
    assert step(taught(4, 0.01, FEWEST_STEPS - 1), 4) == 0.0
    assert step(taught(4, 0.01, FEWEST_STEPS), 4, STEPS_LAST) > 0.0
    assert step(taught(4, 0.01, FEWEST_STEPS), 4, STEPS_LAST + 1) == 0.0


def test_one_long_step_changes_nothing():
    found = taught(4, 0.01)
    found.stepped(4, 100.0, 0.0)
    assert step(found, 4) == found.longest_step(4, 0.0) == pytest.approx(0.01)
    found.stepped(4, 0.05, 0.0)
    assert found.longest_step(4, 0.0) == pytest.approx(0.05)
    assert found.longest_step(64, 0.0) == 0.0


def test_bounds_are_tighter_the_more_is_known_and_never_above_the_most_steps():
    found = taught(4, 0.01)
    found.finished(100, 200)
    first = found.outlook(100, 10_000, 4, 0.0)
    for _ in range(99):
        found.finished(100, 200)
    last = found.outlook(100, 10_000, 4, 0.0)
    assert first.least < 0.3 * SHRINKS < 1.8 * SHRINKS < last.least < 2.0 * SHRINKS
    assert 2.0 < last.likely < 2.2 < 10 < first.likely
    short = found.outlook(100, 3, 4, 0.0)
    assert short.least == pytest.approx(0.03 * SHRINKS)
    assert short.steps == 3 and short.likely == pytest.approx(0.03)


def test_lengths_are_learnt_apart():
    """Short sources have more steps for each token. One of a length that was never seen may have few or many.

    Nobody is refused by what is known of other lengths: nothing would ever be learnt of that one.
    """
    found, rng = taught(4, 0.01), random.Random(2)
    for _ in range(100):
        for tokens in (3, 40):
            found.finished(tokens, round((10 + tokens) * rng.uniform(0.9, 1.1)))
    for tokens in (3, 40):
        own = found.outlook(tokens, 10_000, 4, 0.0)
        assert 0.8 < own.least / SHRINKS / (0.01 * (10 + tokens)) < 0.95
        assert 1.0 < own.likely / (0.01 * (10 + tokens)) < 1.3
    other = found.outlook(300, 10_000, 4, 0.0)
    assert other.least == 0.0 and other.likely > 300 * 0.01 * 13 / 3


def test_those_that_left_early_would_have_needed_more():
    """They count for as much as the others that had gone on as long, and for no less than they had."""
    found = taught(4, 0.01)
    for i in range(100):
        found.finished(10, 10 + i % 10 if i < 95 else 30, is_whole=i < 95)
    assert found.outlook(10, 1e4, 4, 0.0).likely == pytest.approx(0.3 * 1.08)
    plain, both = taught(4, 0.01), taught(4, 0.01)
    for i in range(60):
        plain.finished(10, 10 + i % 10)
        both.finished(10, 10 + i % 10)
        # one leaves at once, which says nothing
        both.finished(10, 1, is_whole=False)
    assert both.outlook(10, 1e4, 4, 0.0).least == pytest.approx(
        plain.outlook(10, 1e4, 4, 0.0).least, rel=0.1
    )


def test_rows_are_those_that_beams_have():
    found = Forecast()
    assert found.rows(50) == 50
    for _ in range(200):
        found.had_rows(50, 3.0)
    assert found.rows(50) == pytest.approx(3.0, rel=0.01)
    assert found.rows(5) == 1.0, "no beam has less than a row"
