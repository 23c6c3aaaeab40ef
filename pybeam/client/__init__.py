"""Clients of `pybeam serve`, for programs without torch (package httpx, extra `serve`).

from pybeam.client import Client
with Client("http://localhost:8000") as client:
    print(client.translate("Jesús lloró."))
"""

from pybeam.client.clients import AsyncClient, Client
from pybeam.client.protocol import ServerError

__all__ = ["AsyncClient", "Client", "ServerError"]
