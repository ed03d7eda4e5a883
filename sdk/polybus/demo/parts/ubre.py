"""UBRE in all its forms, over every transport that carries its frames."""

from __future__ import annotations

from collections.abc import Sequence

from ..console import STEPS, play_row
from ..play import DemoRow

__all__ = ["PART", "UbrePart"]

VARIANTS = {"json": "", "spec": "?dialect=spec", "binary": "?format=binary"}
TRANSPORTS = ("memory", "tcp", "tls", "unix", "ws", "wss")


class UbrePart:
    """JSON in both dialects, and binary."""

    def rows(self) -> Sequence[DemoRow]:
        """Variants times transports; and one in an application."""
        rows = [
            DemoRow("ubre", variant, transport, tuple(STEPS), play_row(transport, f"ubre+{{address}}{query}"))
            for transport in TRANSPORTS
            for variant, query in VARIANTS.items()
        ]
        return [*rows, DemoRow("ubre", "json", "fastapi", tuple(STEPS), play_row("fastapi", "ubre+{address}"))]


PART = UbrePart()
