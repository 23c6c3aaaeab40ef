"""The clock of the engine's phases: what it adds up, and what a profiler sees of it."""

import time

import pytest
import torch
from torch.autograd import profiler

from pybeam.engine.stats import PHASES, PhaseClock


@pytest.fixture
def seconds() -> dict[str, float]:
    return dict.fromkeys(PHASES, 0.0)


@pytest.fixture
def ticks(monkeypatch) -> list[float]:
    """The times that the clock reads, one after another."""
    times: list[float] = []
    monkeypatch.setattr("pybeam.engine.stats.perf_counter", lambda: times.pop(0))
    return times


def test_phases_sum(seconds, ticks):
    clock = PhaseClock(seconds)
    ticks += [1.0, 3.0, 7.0, 7.5, 20.0, 20.5]
    for phase in ("model", "select", "model", None, "plan", None):
        clock(phase)
    assert seconds == dict.fromkeys(PHASES, 0.0) | {"model": 2.5, "select": 4.0, "plan": 0.5}


def test_a_phase_may_be_ended_twice(seconds, ticks):
    """As behind a step that raised, wherever it stood."""
    clock = PhaseClock(seconds)
    ticks += [1.0, 2.0, 3.0, 5.0]
    for phase in ("plan", None, None, None):
        clock(phase)
    assert seconds["plan"] == 1.0


def test_phases_have_names(seconds):
    with pytest.raises(AssertionError, match="'modle' is none of encode, plan, model"):
        PhaseClock(seconds)("modle")


def test_a_profiler_sees_ranges_only_while_it_is_on(seconds, monkeypatch):
    made = []
    record_function = profiler.record_function
    monkeypatch.setattr(
        profiler, "record_function", lambda name: made.append(name) or record_function(name)
    )
    clock = PhaseClock(seconds)
    clock("plan")
    clock(None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for phase in ("model", "select", None):
            clock(phase)
            time.sleep(0)
    clock("commit")
    assert made == ["pybeam::model", "pybeam::select"]
    assert [event.name for event in recorded.events() if "pybeam::" in event.name] == made
