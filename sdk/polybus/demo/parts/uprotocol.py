"""uProtocol in both formats, over every transport that carries its frames, and over HTTP; the server with an entity."""

from __future__ import annotations

from collections.abc import Sequence

from ..console import STEPS, play_row
from ..plants import AnsweringPlant
from ..play import DemoRow

__all__ = ["PART", "UProtocolPart"]

VARIANTS = {
    "json": "?entity=//plant.example/tanks/1",
    "protobuf": "?entity=//plant.example/tanks/1&format=protobuf",
}
HTTP = {
    "json": "?entity=//plant.example/tanks/1",
    "protobuf": "?entity=//plant.example/tanks/1&format=protobuf&content=binary",
}
ANSWERED = ("requests", "failing handler", "no handler", "deadline", "drain")
"""Steps in which the server begins nothing: over HTTP it cannot."""
TRANSPORTS = ("memory", "tcp", "tls", "unix", "ws", "wss")


class UProtocolPart:
    """JSON and protobuf events."""

    def rows(self) -> Sequence[DemoRow]:
        """Variants times transports."""
        return [
            DemoRow("uprotocol", variant, transport, tuple(STEPS), play_row(transport, f"uprotocol+{{address}}{query}"))
            for transport in TRANSPORTS
            for variant, query in VARIANTS.items()
        ] + [
            DemoRow("uprotocol", variant, "http", ANSWERED, play_row("http", f"uprotocol+{{address}}{query}", AnsweringPlant))
            for variant, query in HTTP.items()
        ]


PART = UProtocolPart()
