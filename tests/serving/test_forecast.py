"""A request is refused as hopeless only if it is: on simulated engines, arrivals and clocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pybeam.serving.forecast import FEWEST_STEPS, NUM_STEPS, STEPS_LAST, Forecast

WIDTH, PLACES = 5, 32
# of the requests that are called hopeless, one in so many is decoded all the same, to see what becomes of it
AUDIT = 8


@dataclass
class Sent:
    """A request of a simulation."""

    at: float
    tokens: int
    steps: int
    timeout: float
    began: float = 0.0
    ended: float = 0.0
    step_seconds: float | None = None
    is_refused: bool = False
    done: int = 0


@dataclass
class Simulation:
    """One engine that refills its places in order; a step takes a fixed time and one for each row.

    Attributes:
        slow_from: when all steps begin to take three times as long.
    """

    seed: int
    slow_from: float = float("inf")
    forecast: Forecast = field(default_factory=Forecast)
    met: int = 0
    missed: int = 0
    refused: int = 0
    audited: int = 0
    wrong: int = 0

    def run(self, requests: list[Sent]) -> Simulation:
        chance = random.Random(self.seed)
        line, running, now = sorted(requests, key=lambda one: one.at), [], 0.0
        while line or running:
            if not running:
                now = max(now, line[0].at)
            began, rows = now, sum(WIDTH if one.done else 1 for one in running)
            while line and line[0].at <= now and len(running) < PLACES:
                one = line.pop(0)
                if now >= one.at + one.timeout:
                    self.missed += 1
                    continue
                rows += 1
                if self._is_hopeless(one, rows, now, alone=not running):
                    self.refused += 1
                    if chance.randrange(AUDIT):
                        rows -= 1
                        continue
                    self.audited += 1
                    one.is_refused = True
                one.began = now
                running.append(one)
            now += (
                chance.uniform(0.9, 1.3)
                * (3 if now > self.slow_from else 1)
                * (0.002 + 0.00005 * rows)
            )
            self.forecast.stepped(rows, now - began, now)
            running = [one for one in running if not self._is_over(one, now)]
        return self

    def _is_hopeless(self, one: Sent, rows: int, now: float, alone: bool) -> bool:
        one.step_seconds = self.forecast.step_seconds(rows, now)
        least = self.forecast.least_seconds(one.tokens, one.step_seconds, float("inf"))
        return not alone and now + least > one.at + one.timeout

    def _is_over(self, one: Sent, now: float) -> bool:
        one.done, one.ended = one.done + 1, now
        is_late = now > one.at + one.timeout
        if one.done < one.steps and not is_late:
            return False
        if one.is_refused:
            self.wrong += not is_late
        else:
            self.met, self.missed = self.met + (not is_late), self.missed + is_late
        if not is_late:
            self.forecast.finished(one.tokens, one.step_seconds, now - one.began)
        return True

    @property
    def falsely_refused(self) -> float:
        """The share of all requests that were refused and would have been done, by the audit."""
        number = self.met + self.missed + self.refused
        return AUDIT * self.wrong / number


def sent(chance: random.Random, at: float, timeout: float) -> Sent:
    """A request like a sentence: outputs are about as long as sources, some much longer or shorter."""
    tokens = min(120, max(2, round(chance.lognormvariate(3.2, 0.5))))
    return Sent(at, tokens, max(2, round(tokens * chance.lognormvariate(0.0, 0.35))), timeout)


def poisson(seed: int, rate: float, seconds: float, timeout: float) -> list[Sent]:
    chance, now, found = random.Random(seed), 0.0, []
    while now < seconds:
        now += chance.expovariate(rate)
        found.append(sent(chance, now, timeout))
    return found


def lonely(seed: int, number: int) -> list[Sent]:
    """Requests each of which has the engine for itself."""
    chance = random.Random(seed)
    return [sent(chance, 10.0 * i, 60.0) for i in range(number)]


def burst(seed: int, number: int, at: float, timeout: float) -> list[Sent]:
    chance = random.Random(seed)
    return [sent(chance, at, timeout) for _ in range(number)]


# the engine's capacity is about 100 requests a second
@pytest.mark.parametrize("timeout", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("rate", [50, 100, 200])
def test_hardly_any_request_is_refused_that_would_have_been_done(rate, timeout):
    found = Simulation(1).run(poisson(2, rate, 20.0, timeout))
    assert found.falsely_refused <= 0.01, found
    # who asks less than the engine can do is refused nothing that matters
    if rate == 50 and timeout >= 1:
        assert found.refused <= 0.01 * found.met


def test_what_is_hopeless_is_refused_under_overload():
    found = Simulation(1).run(poisson(3, 200, 20.0, 0.5))
    assert found.refused > 0.3 * found.met, found
    assert found.wrong <= 0.05 * found.audited, found


@pytest.mark.parametrize("number", [32, 128, 512])
@pytest.mark.parametrize("share", [1.05, 1.5])
def test_a_burst_after_lonely_requests(number, share):
    """All have the time that the whole burst takes, and a little more: hardly one is refused."""
    before = lonely(4, 40)
    whole = Simulation(5)
    whole.forecast.least_seconds = lambda *_: 0.0
    requests = burst(6, number, 400.0, 1e6)
    whole.run([*before, *requests])
    longest = max(one.ended for one in requests) - 400.0
    found = Simulation(5).run([*lonely(4, 40), *burst(6, number, 400.0, share * longest)])
    assert found.refused + found.missed <= 0.002 * number, found


def test_all_steps_become_slower_or_faster():
    for slow_from in (20.0, -1.0):
        requests = poisson(7, 40, 40.0, 1.0)
        found = Simulation(8, slow_from).run(requests)
        assert found.falsely_refused <= 0.01, found


def taught(rows: int, seconds: float, number: int = NUM_STEPS, now: float = 0.0) -> Forecast:
    found = Forecast()
    for _ in range(number):
        found.stepped(rows, seconds, now)
    return found


def test_a_crowd_that_was_never_seen_says_nothing():
    found = taught(4, 0.01)
    assert found.step_seconds(4, 0.0) == pytest.approx(0.01)
    # a few more rows take at least as long, many more or fewer are another matter
    assert found.step_seconds(7, 0.0) == pytest.approx(0.01)
    assert found.step_seconds(64, 0.0) is None
    assert found.step_seconds(1, 0.0) is None
    found.finished(10, None, 5.0)
    assert found.least_seconds(10, None, 100) == 0.0
    assert found.least_seconds(10, 0.01, 100) == 0.0, "no request was forecast yet"


def test_few_steps_and_old_steps_say_nothing():
    assert taught(4, 0.01, FEWEST_STEPS - 1).step_seconds(4, 0.0) is None
    assert taught(4, 0.01, FEWEST_STEPS).step_seconds(4, STEPS_LAST) is not None
    assert taught(4, 0.01, FEWEST_STEPS).step_seconds(4, STEPS_LAST + 1) is None


def test_one_long_step_changes_nothing():
    found = taught(4, 0.01)
    found.stepped(4, 100.0, 0.0)
    assert found.step_seconds(4, 0.0) == pytest.approx(0.01)


def test_a_bound_is_lower_the_less_is_known_and_never_above_the_most_steps():
    found = taught(4, 0.01)
    found.finished(10, 0.01, 0.2)  # two steps for a token
    first = found.least_seconds(100, 0.01, 10_000)
    for _ in range(99):
        found.finished(10, 0.01, 0.2)
    assert first < 0.3 < 1.8 < found.least_seconds(100, 0.01, 10_000) < 2.0
    assert found.least_seconds(100, 0.01, 3) == pytest.approx(0.03)
