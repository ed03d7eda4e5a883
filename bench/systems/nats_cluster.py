"""polybus as two nodes of a cluster, with Debian's nats-server between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from polybus import Bus, Cluster

from ._base import Client
from ._helpers import started_nats
from .ours import LIMITS, BusClient, make_bus

__all__ = ["connect", "serve"]


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    with started_nats() as address:
        url = f"nats+tcp://{address}/bench"
        async with make_bus(options, Cluster(url, wait=20)) as bus:
            ready(url)
            await bus.wait_closed()


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    async with Bus(cluster=url, limits=LIMITS) as bus:
        yield BusClient(bus, size, raw=options["body"] == "bytes")
