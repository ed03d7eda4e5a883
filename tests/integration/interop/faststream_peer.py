"""FastStream in a thread with asyncio, so that tests on every event loop can talk to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from faststream.nats import NatsBroker, NatsMessage

from tests.support import BOUND

from .asyncio_thread import AsyncioThread

__all__ = ["FastStream", "NatsBroker", "NatsMessage", "faststream"]


class FastStream(AsyncioThread):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.broker = NatsBroker(address, logger=None, reconnect_time_wait=0, max_reconnect_attempts=-1)

    async def start(self) -> None:
        """Begin, with the subscribers that there are, and return when the server knows them."""
        self._client = await self.run(self.broker.connect())
        await self.run(self.broker.start())
        await self.flush()

    async def flush(self) -> None:
        await self.run(self._client.flush())

    async def close(self) -> None:
        await self.run(self.broker.stop())
        await self.end()

    async def request(self, body: Any, subject: str, **more: Any) -> NatsMessage:
        return await self.run(self.broker.request(body, subject, timeout=BOUND, **more))

    async def publish(self, body: Any, subject: str, **more: Any) -> None:
        await self.run(self.broker.publish(body, subject, **more))
        await self.flush()


@asynccontextmanager
async def faststream(address: str, declare: Callable[[NatsBroker], None] = lambda broker: None) -> AsyncIterator[FastStream]:
    theirs = FastStream(address)
    declare(theirs.broker)
    await theirs.start()
    try:
        yield theirs
    finally:
        with anyio.CancelScope(shield=True):
            await theirs.close()
