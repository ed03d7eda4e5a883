"""Connections that come in, counted against `Limits`: handshakes under way, all connections, and those of one address."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...errors import TooManyRequests

if TYPE_CHECKING:
    from ...limits import Limits


class Admissions:
    """Counts the connections of one gate, from their handshake to their end."""

    __slots__ = ("_limits", "handshakes", "hosts")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.handshakes: int = 0
        self.hosts: Counter[str] = Counter()

    def knock(self, address: str, connections: int) -> TooManyRequests | None:
        """Count a new connection beside so many open ones, or give the reason of its refusal."""
        limits, host = self._limits, _host(address)
        if self.handshakes >= limits.handshakes:
            return TooManyRequests(f"{self.handshakes} handshakes are under way (Limits.handshakes)", reason="handshakes")
        if connections >= limits.peers:
            return TooManyRequests(f"{limits.peers} connections are open (Limits.peers)")
        if self.hosts[host] >= limits.peers_per_address:
            return TooManyRequests(f"{limits.peers_per_address} connections from {host} (Limits.peers_per_address)")
        self.handshakes += 1
        self.hosts[host] += 1
        return None

    def left(self, address: str) -> None:
        """Take note of a connection that ended before it was accepted."""
        self.handshakes -= 1
        self.gone(address)

    def opened(self) -> None:
        """Take note of a handshake that has ended well."""
        self.handshakes -= 1

    def gone(self, address: str) -> None:
        """Take note of the end of an accepted connection."""
        host = _host(address)
        self.hosts[host] -= 1
        if self.hosts[host] <= 0:
            del self.hosts[host]


def _host(address: str) -> str:
    """The address without its port."""
    return address.rpartition(":")[0] or address
