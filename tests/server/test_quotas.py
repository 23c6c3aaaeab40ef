"""The limits of a key: minutes drain, days end, and what is over is paid before the next request begins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pybeam.server import quotas
from pybeam.server.errors import APIError
from pybeam.server.quotas import DAY, Allowance
from pybeam.server.settings import KeyLimits


@pytest.fixture
def clock(monkeypatch):
    """A time that stands still until it is moved; it begins in the middle of a day."""
    found = SimpleNamespace(now=1000.5 * DAY)
    monkeypatch.setattr(quotas, "time", SimpleNamespace(time=lambda: found.now))
    return found


def refusal(allowance: Allowance, unit: str = "tokens") -> APIError | None:
    try:
        allowance.begin(unit)
    except APIError as error:
        return error
    return None


def test_requests_come_at_once_and_then_one_after_the_other(clock):
    allowance = Allowance(KeyLimits(requests_per_minute=6))
    assert [refusal(allowance) for _ in range(6)] == [None] * 6
    error = refusal(allowance)
    assert (error.status, error.code, error.headers["Retry-After"]) == (
        *(429, "rate_limit_exceeded", "10"),
    )
    assert "6 requests in a minute" in error.message
    clock.now += 9.9
    assert refusal(allowance).headers["Retry-After"] == "1"
    clock.now += 0.11
    assert refusal(allowance) is None and refusal(allowance) is not None
    clock.now += 1e6
    assert [refusal(allowance) is None for _ in range(7)] == [True] * 6 + [False]


def test_a_request_may_use_more_than_is_left_and_the_next_waits_for_it(clock):
    allowance = Allowance(KeyLimits(tokens_per_minute=60))
    assert refusal(allowance) is None
    allowance.take("tokens", 150)
    assert refusal(allowance).retry_after == pytest.approx(91)
    # sound is another thing
    assert refusal(allowance, "audio_seconds") is None
    clock.now += 91.1
    assert refusal(allowance) is None


def test_a_day_ends_at_midnight(clock):
    allowance = Allowance(KeyLimits(requests_per_day=2, audio_seconds_per_day=30))
    assert [refusal(allowance) for _ in range(2)] == [None, None]
    assert refusal(allowance).retry_after == DAY / 2
    clock.now += DAY / 2 + 1
    assert refusal(allowance) is None
    allowance.take("audio_seconds", 29.5)
    assert "30 seconds of sound in a day" in refusal(allowance, "audio_seconds").message
    assert refusal(allowance) is None


def test_a_clock_that_is_put_back_gives_nothing(clock):
    allowance = Allowance(KeyLimits(requests_per_minute=1))
    assert refusal(allowance) is None
    clock.now -= 3600
    assert refusal(allowance) is not None
    clock.now += 61
    assert refusal(allowance) is None


def test_headers_say_what_is_left_as_openai_does(clock):
    limits = KeyLimits(requests_per_minute=60, requests_per_day=1000, tokens_per_day=10)
    allowance = Allowance(limits)

    def headers() -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in allowance.headers()}

    assert refusal(allowance) is None
    allowance.take("tokens", 25)
    assert headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "10",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "12h0m0s",
    }
    allowance.take("requests", 59)
    assert headers()["x-ratelimit-reset-requests"] == "1m0s"
    clock.now += 59.5
    assert headers()["x-ratelimit-reset-requests"] == "500ms"
    allowance.take("requests", 950)
    assert headers()["x-ratelimit-limit-requests"] == "60"
    clock.now += 1e4
    assert headers()["x-ratelimit-limit-requests"] == "1000"
    assert Allowance(KeyLimits(max_priority=1)).headers() == []


def test_other_limits_forget_nothing_that_was_used(clock):
    allowance = Allowance(KeyLimits(requests_per_day=3, tokens_per_day=5))
    for _ in range(3):
        assert refusal(allowance) is None
    allowance.change(KeyLimits(requests_per_day=4))
    assert [refusal(allowance) is None for _ in range(2)] == [True, False]
