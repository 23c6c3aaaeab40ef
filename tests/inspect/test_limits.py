"""The rates of a CPU, where its product of narrow numbers is slower than that of floats."""

from __future__ import annotations

from itertools import count

import pytest

from pybeam.inspect import limits


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize(("narrow", "least"), [(0.3, 0.003), (0.001, 0.001)])
def test_narrow_numbers_are_multiplied_as_fast_as_floats_at_least(
    monkeypatch, dtype, narrow, least
):
    seconds = iter([narrow, 0.003])
    monkeypatch.setattr(limits, "_least", lambda run: next(seconds))
    assert limits.multiply_rate(dtype) == limits.SIDE**3 / least


@pytest.mark.parametrize(("seconds", "calls"), [(0.001, limits.REPEATS), (0.125, 3), (5.0, 1)])
def test_a_slow_call_is_repeated_seldom(monkeypatch, seconds, calls):
    clock, number = count(0.0, seconds), count()
    monkeypatch.setattr(limits.time, "perf_counter", lambda: next(clock))
    assert limits._least(lambda: next(number)) == pytest.approx(seconds)
    assert next(number) == calls
