"""Pages of other sites may not ask, whatever name leads to this machine, unless an option allows it."""

from __future__ import annotations

import json

import pytest

from support.example_lines import LINES
from support.server_app import run

BODY = {"q": LINES[0], "source": "es", "target": "en"}
FORM = "application/x-www-form-urlencoded"


def status(path="/translate", method="POST", content=None, settings=None, **headers) -> int:
    async def ask(client):
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent.setdefault("Content-Type", "application/json")
        body = json.dumps(BODY) if content is None else content
        body = body if method == "POST" else None
        return (await client.request(method, path, content=body, headers=sent)).status_code

    return run(ask, **(settings or {}))


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize(
    ("origin", "settings", "expected"),
    [
        (None, {}, 200),
        ("http://localhost", {}, 200),
        ("https://localhost", {}, 200),  # through a proxy with TLS
        ("http://evil.example", {}, 403),
        ("null", {}, 403),
        ("http://localhost:81", {}, 403),
        ("http://localhost.evil.example", {}, 403),
        ("http://evil.example", {"host": "0.0.0.0"}, 403),
        ("http://a", {"cors_origins": ("http://a",)}, 200),
        ("http://b", {"cors_origins": ("http://a",)}, 403),
        ("http://b", {"cors_origins": ("*",)}, 200),
    ],
)
def test_foreign_origins(origin, settings, expected):
    headers = {} if origin is None else {"Origin": origin}
    assert status(settings=settings, **headers) == expected


@pytest.mark.parametrize(
    "path", ["/translate", "/v1/translations", "/v1/audio/transcriptions", "/detect"]
)
def test_every_path_and_kind_of_body(path):
    for kind in ("text/plain", FORM, "multipart/form-data; boundary=a", "application/json"):
        assert status(path, Origin="http://evil.example", Content_Type=kind) == 403


def test_pages_may_read_what_changes_nothing_if_their_browser_lets_them():
    assert status("/health", "GET", Origin="http://evil.example") == 200


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize(
    ("host", "settings", "expected"),
    [
        ("localhost", {}, 200),
        ("LOCALHOST:8000", {}, 200),
        ("127.0.0.1:8000", {}, 200),
        ("127.9.9.9", {}, 200),
        ("[::1]:8000", {}, 200),
        ("evil.example", {}, 421),
        ("evil.example:8000", {"host": "::1"}, 421),
        ("127.0.0.1.evil.example", {}, 421),
        ("[::1", {}, 421),
        ("any.example", {"host": "0.0.0.0"}, 200),
        ("any.example", {"host": "0.0.0.0", "allowed_hosts": ("own.example",)}, 421),
        ("Own.Example:443", {"host": "0.0.0.0", "allowed_hosts": ("own.example",)}, 200),
        ("own.example", {"allowed_hosts": ("own.example",)}, 200),
        ("localhost", {"allowed_hosts": ("own.example",)}, 200),
    ],
)
def test_names_in_host(host, settings, expected):
    assert status(settings=settings, Host=host) == expected
    assert status("/health", "GET", settings=settings, Host=host) == expected


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("application/json", None, 200),
        ("application/json; charset=utf-8", None, 200),
        ("text/plain", None, 415),
        ("", None, 415),
        (FORM, "q=a&source=es&target=en", 200),
    ],
)
def test_kinds_of_bodies(kind, content, expected):
    assert status(content=content, Content_Type=kind) == expected
