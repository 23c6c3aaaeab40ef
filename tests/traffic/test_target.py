"""Which URLs name a server, and what is asked of it."""

import asyncio
import shutil
import ssl
import subprocess

import pytest

from pybeam.traffic import SHAPES, Clients, Target
from support.late_server import LateServer, refusal


@pytest.mark.parametrize(
    "url, address, host, prefix",
    [
        ("http://localhost:8000", ("localhost", 8000), "localhost:8000", ""),
        ("http://localhost:8000/v1/", ("localhost", 8000), "localhost:8000", ""),
        ("https://example.org/a b/v1", ("example.org", 443), "example.org", "/a%20b"),
        ("http://[::1]:80/", ("::1", 80), "[::1]:80", ""),
        ("http://bücher.example", ("xn--bcher-kva.example", 80), "xn--bcher-kva.example", ""),
    ],
)
def test_urls(url, address, host, prefix):
    found = Target.parse(url)
    assert (found.address, found.host, found.prefix) == (address, host, prefix)
    assert (found.tls is not None) == url.startswith("https")
    assert found.post("/a", {}, None).startswith(
        f"POST {prefix}/a HTTP/1.1\r\nHost: {host}\r\n".encode()
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://a",
        "http://",
        "http://a?b",
        "http://u:p@a",
        "http://a:x",
        "http://a\r\nb: c/#",
    ],
)
def test_what_is_no_url(url):
    with pytest.raises(ValueError):
        Target.parse(url)


def test_the_first_model():
    body = b'{"data": [{"id": "one"}, {"id": "two"}]}'
    server = LateServer(refusal(200, body))
    assert Target.parse(server.url).first_model("key", 5.0) == "one"
    assert b"GET /v1/models HTTP/1.1" in server.received[0]
    assert b"Authorization: Bearer key" in server.received[0]
    for body in (b"{}", b'{"data": []}', b"<html>", b"[]"):
        with pytest.raises(ValueError, match="names no model"):
            Target.parse(LateServer(refusal(200, body)).url).first_model(None, 5.0)
    with pytest.raises(ValueError, match="names no model"):
        Target.parse(LateServer(b"SSH-2.0\r\n\r\n").url).first_model(None, 5.0)


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_certificates_are_checked(tmp_path, monkeypatch):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    kind = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=test -nodes -days 1".split()
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", "-x509", *kind, *names], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    server = LateServer(refusal(200, b'{"data": [{"id": "one"}]}'), tls=tls)

    async def ask(target: Target):
        async with Clients(target.address, target.tls) as clients:
            return [await clients.ask(target.post("/", {}, None)) for _ in range(2)]

    with pytest.raises(OSError, match="certificate"):
        Target.parse(server.url).first_model(None, 5.0)
    assert "certificate" in asyncio.run(ask(Target.parse(server.url)))[0].problem
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    target, before = Target.parse(server.url), server.num_connections
    assert target.first_model(None, 5.0) == "one"
    assert [one.status for one in asyncio.run(ask(target))] == [200, 200]
    assert server.num_connections == before + 2


def test_bodies():
    fields = {"width": 8, "target": "de"}
    bodies = {name: shape.body("a", fields) for name, shape in SHAPES.items()}
    assert bodies["translations"] == {"text": "a", **fields}
    assert bodies["decode"]["source"] == bodies["completions"]["prompt"] == "a"
    assert bodies["chat"]["messages"] == [{"role": "user", "content": "a"}]
    assert bodies["libretranslate"] == {"q": "a", "source": "auto", **fields}
