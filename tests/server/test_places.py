"""Places of recordings and live sessions, of which one client leaves some to others."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from starlette.requests import HTTPConnection

from pybeam.server.errors import APIError
from pybeam.server.limits import Places
from pybeam.server.settings import Settings


def asking(address: str | None, key: str | None = None) -> HTTPConnection:
    client = None if address is None else (address, 1)
    state = {} if key is None else {"caller": SimpleNamespace(name=key)}
    return HTTPConnection({"type": "http", "headers": [], "client": client, "state": state})


def taken(places: Places, stack: contextlib.ExitStack, http: HTTPConnection) -> int:
    """Take all places that there are for this client. Returns how many there were."""
    for number in range(100):
        try:
            stack.enter_context(places.one(http))
        except APIError as error:
            assert error.status == 429 and error.retry_after
            return number
    raise AssertionError("there is no bound")


@pytest.mark.parametrize(
    ("most", "each", "expected"), [(5, None, 3), (1, None, 1), (5, 2, 2), (2, 9, 2)]
)
def test_one_client_leaves_places_to_others(most, each, expected):
    places = Places(Settings(max_recordings=most, max_recordings_per_client=each))
    with contextlib.ExitStack() as stack:
        assert taken(places, stack, asking("9.9.9.9")) == expected
        assert taken(places, stack, asking("8.8.8.8")) == min(expected, most - expected)
    # all are free again
    with contextlib.ExitStack() as stack:
        assert taken(places, stack, asking("9.9.9.9")) == expected


def test_who_is_one_client():
    places = Places(Settings(max_recordings=100, max_recordings_per_client=1))
    clients = [
        asking("9.9.9.9"),
        asking("2001:db8::1"),
        asking("2001:db8:0:1::1"),
        # a key is one client wherever it is used, and others may be at its address
        asking("9.9.9.9", key="alice"),
    ]
    with contextlib.ExitStack() as stack:
        assert [taken(places, stack, one) for one in clients] == [1] * 4
        same = [
            asking("2001:db8::2"),
            asking("7.7.7.7", key="alice"),
            asking("::ffff:9.9.9.9"),
        ]
        assert [taken(places, stack, one) for one in same] == [0, 0, 0]
        # a socket of IPv6 names clients of IPv4 so
        assert taken(places, stack, asking("::ffff:8.8.8.8")) == 1
    # a proxy asks for many, and so does whoever comes by a socket of this machine
    for many in (asking("127.0.0.1"), asking("::ffff:127.0.0.1"), asking(None)):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(places.one(many))
