"""Clients of `pybeam serve`, for programs that have neither torch nor pybeam.

from pybeam_client import Client
with Client("http://localhost:8000") as client:
    print(client.translate("Jesús lloró."))
"""

from pybeam_client.clients import AsyncClient, Client
from pybeam_client.protocol import ServerError

__all__ = ["AsyncClient", "Client", "ServerError"]
