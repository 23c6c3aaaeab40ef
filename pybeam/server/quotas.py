"""Quotas: what a key may ask for in a minute and in a day, and what of it is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import ClassVar

from pybeam.server.errors import APIError
from pybeam.server.settings import KeyLimits
from pybeam.text.counts import counted

MINUTE, DAY = 60.0, 86400.0
UNITS = ("requests", "tokens", "audio_seconds")
# the headers of OpenAI's API, which has none for sound
HEADERS = {
    unit: [
        f"x-ratelimit-{word}-{unit}".replace("_", "-") for word in ("limit", "remaining", "reset")
    ]
    for unit in UNITS
}
RATE_HEADERS = [name for names in HEADERS.values() for name in names]
NO_LIMITS = KeyLimits()


@dataclass
class Meter:
    """The use that a key has made of something.

    Attributes:
        most: that it may use in a period.
        used: of this; it may be more.
        at: the time of which this is said, in seconds since 1970.
    """

    most: int
    used: float = 0.0
    at: float = 0.0
    period: ClassVar[str] = ""

    @property
    def left(self) -> float:
        return self.most - self.used


class TokenBucket(Meter):
    """Use drains away evenly, in a minute as much as the bucket holds."""

    period = "minute"

    def settle(self, now: float) -> None:
        """Drain until this time. A clock that was put back drains nothing."""
        self.used = max(0.0, self.used - max(0.0, now - self.at) * self.most / MINUTE)
        self.at = now

    def seconds(self, used: float) -> float:
        """Return in how many seconds no more than this is used."""
        return max(0.0, (self.used - used) * MINUTE / self.most)


class DailyQuota(Meter):
    """Use counts until midnight, UTC."""

    period = "day"

    def settle(self, now: float) -> None:
        """Forget what was used on another day."""
        if now // DAY != self.at // DAY:
            self.used = 0.0
        self.at = now

    def seconds(self, used: float) -> float:
        """Return in how many seconds no more than this is used."""
        return DAY - self.at % DAY if self.used > used else 0.0


class Allowance:
    """The rest of what a key may use.

    A request begins while something is left, and what it uses is taken when that is known. So a request may
    use more than is left; those behind it then wait for longer.

    Args:
        limits: of the key.
    """

    def __init__(self, limits: KeyLimits = NO_LIMITS) -> None:
        self._meters: dict[tuple[str, str], TokenBucket | DailyQuota] = {}
        self.change(limits)

    def change(self, limits: KeyLimits) -> None:
        """Take other limits; all that the key has used of them, or still uses, stays used."""
        used, self._meters = self._meters, {}
        for one in fields(limits):
            unit, is_quota, period = one.name.partition("_per_")
            most = getattr(limits, one.name)
            if is_quota and most is not None:
                kind = TokenBucket if period == TokenBucket.period else DailyQuota
                meter = used.get((unit, period), kind(most))
                meter.most = most
                self._meters[unit, period] = meter

    def begin(self, *units: str) -> None:
        """Take a request that will use `units`: tokens or audio_seconds, or none that is not paid yet.

        Raises:
            APIError: 429, nothing is left. Nothing is taken then.
        """
        self.check("requests", *units)
        self.take("requests", 1)

    def check(self, *units: str) -> None:
        """Raise APIError, 429, if nothing is left of one of these units."""
        waits = [
            (meter.seconds(meter.most - 1), name, meter)
            for name, meter in self._settled(*units)
            if meter.left < 1
        ]
        if waits:
            seconds, name, meter = max(waits, key=itemgetter(0))
            unit = name.removeprefix("audio_").removesuffix("s")
            most = counted(meter.most, unit) + (" of sound" if name == "audio_seconds" else "")
            raise APIError(
                429,
                f"this key may use {most} in a {meter.period}, and has used them",
                code="rate_limit_exceeded",
                retry_after=seconds,
            )

    def take(self, unit: str, amount: float) -> None:
        """Take an amount of requests, tokens or audio_seconds."""
        for _, meter in self._settled(unit):
            meter.used += amount

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what is left, in the headers of OpenAI's API; of minute and day whichever has less left."""
        least: dict[str, TokenBucket | DailyQuota] = {}
        for unit, meter in self._settled(*UNITS):
            if unit not in least or meter.left < least[unit].left:
                least[unit] = meter
        return [
            (name.encode(), value.encode())
            for unit, meter in least.items()
            for name, value in zip(
                HEADERS[unit],
                (str(meter.most), str(max(0, int(meter.left))), _duration(meter.seconds(0))),
                strict=True,
            )
        ]

    def _settled(self, *units: str) -> Iterator[tuple[str, TokenBucket | DailyQuota]]:
        now = time.time()
        for (unit, _), meter in self._meters.items():
            if unit in units:
                meter.settle(now)
                yield unit, meter


def _duration(seconds: float) -> str:
    """Write a time as OpenAI's API does: 120ms, 1s, 6m0s, 23h59m58s."""
    if seconds < 1:
        return f"{round(1000 * seconds)}ms"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{left}s"
