"""J.REP between two of our own buses: both kinds of values, both handshakes, and over HTTP each way back to the client."""

from __future__ import annotations

from collections.abc import Sequence

from ..console import STEPS, play_row
from ..play import DemoRow

__all__ = ["PART", "JrepPart"]

VARIANTS = {"errai": "", "plain": "?values=plain&dialect=legacy"}
TRANSPORTS = ("memory", "tcp", "tls", "unix", "ws", "wss")
CHANNELS = ("websocket", "events", "poll")


class JrepPart:
    """Errai's values with Errai's handshake, and the document's with the document's."""

    def rows(self) -> Sequence[DemoRow]:
        """Variants times transports, and the channels of HTTP."""
        return [
            *(
                DemoRow("jrep", variant, transport, tuple(STEPS), play_row(transport, f"jrep+{{address}}{query}"))
                for transport in TRANSPORTS
                for variant, query in VARIANTS.items()
            ),
            *(
                DemoRow("jrep", channel, "http", tuple(STEPS), play_row("http", f"jrep+{{address}}?channel={channel}"))
                for channel in CHANNELS
            ),
        ]


PART = JrepPart()
