"""CSB between two of our own buses: direct over every transport, and through a broker that is a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ..console import STEPS, play_row
from ..plants import BrokeredPlant
from ..play import DemoRow

__all__ = ["PART", "CsbPart"]

TRANSPORTS = ("memory", "tcp", "tls", "unix", "ws", "wss")
BROKERED = ("tcp", "ws")
"""Between the clients and the broker; the back end is always connected to it by TCP."""


class CsbPart:
    """Direct, and behind a broker with two sockets."""

    def rows(self) -> Sequence[DemoRow]:
        """One for each transport, and those with a broker."""
        steps = tuple(STEPS)
        direct = [DemoRow("csb", "direct", name, steps, play_row(name, "csb+{address}")) for name in TRANSPORTS]
        behind = [DemoRow("csb", "broker", name, steps, play_row(name, "csb+{address}", BrokeredPlant)) for name in BROKERED]
        return [*direct, *behind]


PART = CsbPart()
