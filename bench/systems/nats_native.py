"""polybus at both sides of Debian's nats-server, as programs on a NATS network use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polybus import connect as connect_bus

from ._helpers import started_nats
from .ours import connect, make_bus

__all__ = ["connect", "serve"]


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    bus = make_bus(options)
    with started_nats() as address:
        url = f"nats+tcp://{address}"
        async with connect_bus(url, bus=bus, wait=20):
            ready(url)
            await bus.wait_closed()
