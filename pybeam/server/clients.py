"""Whom a connection counts for, where each client may have so many of something."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


class Addresses:
    """Tells clients apart by their addresses.

    Args:
        proxies: addresses and networks whose connections are those of many clients.
    """

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._proxies = [ipaddress.ip_network(one, strict=False) for one in proxies]

    def client(self, address: str) -> str | None:
        """Return whom a connection of this address counts for.

        It is an IPv4 address, or a network of IPv6 (/64), which one machine may have. None: nobody, as for a
        proxy's connection or that of a Unix socket.
        """
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return None
        # as a socket of IPv6 names a client of IPv4
        found = getattr(found, "ipv4_mapped", None) or found
        if any(found in one for one in self._proxies):
            return None
        return str(found if found.version == 4 else ipaddress.ip_network((found, 64), False))
