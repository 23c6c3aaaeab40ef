"""The server that is asked: where it is, and what it says of itself."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from pybeam.traffic.clients import Address, post

PORTS = {"http": 80, "https": 443}
# of paths; servers of OpenAI's shape are often named with it
VERSION = "/v1"


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes:
        address: host and port.
        host: the same, as a header has it.
        prefix: of all paths.
        tls: how the server proves who it is; None: connections to it are not encrypted.
    """

    address: Address
    host: str
    prefix: str
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str) -> Target:
        """Read a URL, with or without the `/v1` at its end. Raises ValueError if it is none of HTTP."""
        parts = urlsplit(url)
        more = parts.query or parts.fragment or parts.username or parts.password
        if parts.scheme not in PORTS or not parts.hostname or more:
            raise ValueError(f"must be a URL such as http://localhost:8000, but is {url!r}")
        # names of other alphabets
        name = parts.hostname.encode("idna").decode()
        port = PORTS[parts.scheme] if parts.port is None else parts.port
        shown = f"[{name}]" if ":" in name else name
        host = shown if parts.port is None else f"{shown}:{port}"
        prefix = quote(parts.path.rstrip("/").removesuffix(VERSION), safe="/%")
        # certificates are those of the system, or of SSL_CERT_FILE
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return cls((name, port), host, prefix, tls)

    def post(self, path: str, body: dict[str, Any], key: str | None) -> bytes:
        """Return the bytes of a request with this body."""
        return post(self.prefix + path, body, self.host, key)

    def first_model(self, key: str | None, timeout: float) -> str:
        """Ask for the models, and return the name of the first.

        Raises:
            OSError: the server does not answer.
            ValueError: its answer names none.
        """
        if self.tls is None:
            connection = HTTPConnection(*self.address, timeout=timeout)
        else:
            connection = HTTPSConnection(*self.address, timeout=timeout, context=self.tls)
        path = f"{self.prefix}{VERSION}/models"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            connection.request("GET", path, headers={"Host": self.host, **headers})
            answer = connection.getresponse()
            return str(json.loads(answer.read())["data"][0]["id"])
        # a certificate that is wrong is a ValueError, too
        except OSError:
            raise
        except (HTTPException, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"GET {path} names no model") from error
        finally:
            connection.close()
