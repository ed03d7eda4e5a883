"""Buses of one cluster in one process."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from polybus import Bus

__all__ = ["known", "nodes"]


@asynccontextmanager
async def nodes(*buses: Bus) -> AsyncIterator[None]:
    """All entered, and each knows all others."""
    async with AsyncExitStack() as stack:
        for bus in buses:
            await stack.enter_async_context(bus)
        for bus in buses:
            await known(bus, len(buses))
        yield


async def known(bus: Bus, count: int) -> None:
    """Wait until a bus knows of so many nodes, itself included."""
    with anyio.fail_after(5):
        while len(await bus.nodes()) < count:  # noqa: ASYNC110  # nobody tells when a node has come
            await anyio.sleep(0.01)
