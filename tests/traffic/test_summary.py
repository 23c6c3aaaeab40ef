"""The numbers that many answers make."""

import json

import numpy
import pytest

from pybeam.traffic import Answer, Summary, Window, as_text
from pybeam.traffic.summary import percentile


def summary_of(*answers: tuple[float, Answer], warm_up: float = 0.0) -> Summary:
    summary = Summary(Window(warm_up))
    for moment, answer in answers:
        summary.add(moment, answer)
    return summary


def test_percentiles_are_numpys():
    values = sorted(numpy.random.default_rng(0).random(101).tolist())
    for number in (1, 2, 5, 100, 101):
        for percent in (0, 37, 50, 99, 100):
            expected = numpy.percentile(values[:number], percent)
            assert percentile(values[:number], percent) == pytest.approx(expected, abs=1e-15)
    assert numpy.isnan(percentile([], 50))


def test_numbers():
    found = summary_of(
        (0.5, Answer(9.0, 200)),
        (1.0, Answer(0.25, 200, 0.125, lag=0.001)),
        (2.0, Answer(0.75, 201)),
        (2.0, Answer(1.0, 429, problem="full")),
        (2.5, Answer(60.0, 0, problem="no answer in time")),
        warm_up=1.0,
    ).numbers(deadline=0.5)
    assert json.loads(json.dumps(found)) == found
    assert found["requests"] == 4 and found["seconds"] == 2.0
    assert (found["answers_per_second"], found["goodput_per_second"]) == (1.0, 0.5)
    assert found["latency_ms"]["p50"] == 500 and found["latency_ms"]["max"] == 750
    assert found["first_text_ms"]["p99"] == 125 and found["client_lag_ms"]["max"] == 1
    assert found["statuses"] == {"0": 1, "200": 1, "201": 1, "429": 1}
    text = as_text(found)
    for line in ("4 requests in 2.0 s", "status 429               1   full", "no answer in time"):
        assert line in text
    assert text.count("750.0") == 1 and "first text" in text


def test_nothing_was_measured():
    found = summary_of().numbers(0.5)
    assert found["requests"] == found["goodput_per_second"] == 0 and found["latency_ms"] is None
    assert "latency" not in as_text(found) and not summary_of().slowness(0.1)


def test_whoever_waits_in_vain_makes_the_time_no_longer():
    assert summary_of((1.0, Answer(0.5, 200)), (2.0, Answer(60.0, 0))).seconds == 2.0


def test_a_client_that_is_slow_itself():
    def said(lag, latency, share):
        return summary_of(*[(0.0, Answer(latency, 200, lag=lag))] * 9).slowness(share)

    assert said(0.001, 0.002, 0.1) is None is said(0.1, 9.0, 0.1)
    assert "100.0 ms late" in said(0.1, 0.2, 0.1) and "90%" in said(0.0, 0.2, 0.9)
    assert "late" in summary_of((0.0, Answer(1.0, 0, lag=1.0))).slowness(0.1)
