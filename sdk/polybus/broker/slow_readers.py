"""Clients that do not read what is sent to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .participants import Client

SLOW: Final = "too slow: it does not read what is sent to it"


class SlowReaders:
    """Clients for which something waits: `most` bytes for each, or it has to go, and `most_for_all` for all together, or those
    go for which most waits. `too_slow` sends one away.
    """

    def __init__(self, most: int, most_for_all: int, too_slow: Callable[[Client], None]) -> None:
        self._most = most
        self._most_for_all = most_for_all
        self._too_slow = too_slow
        self._slow: dict[Client, None] = {}
        """Clients that are paused, also of those that are leaving."""
        self.waiting: int = 0
        """The sum of what waits for them."""

    def paused(self, client: Client) -> None:
        """It reads too slowly."""
        client.paused = True
        self._slow[client] = None
        self.check(client)

    def resumed(self, client: Client) -> None:
        """It takes more."""
        client.paused = False
        if client in self._slow:
            del self._slow[client]
            self.waiting -= client.waiting
            client.waiting = 0

    def check(self, client: Client) -> None:
        """A client that does not read must not cost its server, nor the others, more than this; nor must many of them."""
        if self._count_waiting(client) > self._most:
            self._too_slow(client)
        elif self.waiting > self._most_for_all:
            for other in self._slow:  # some may have read meanwhile
                self._count_waiting(other)
            if self.waiting > self._most_for_all:
                greediest = max(self._slow, key=lambda other: other.waiting)
                self._too_slow(greediest)
                greediest.end.cut(1013, SLOW)  # what waits for it is to be free now
                self.resumed(greediest)

    def _count_waiting(self, client: Client) -> int:
        waiting = client.end.backlog()
        self.waiting += waiting - client.waiting
        client.waiting = waiting
        return waiting
