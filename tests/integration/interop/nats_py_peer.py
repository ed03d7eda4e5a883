"""nats-py in a thread with asyncio, so that tests on every event loop can talk to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro import add_service
from nats.micro.request import Handler, ServiceError
from nats.micro.service import EndpointConfig, ServiceConfig

from tests.support import BOUND

from .asyncio_thread import AsyncioThread

__all__ = ["Handler", "Msg", "NatsPy", "ServiceError", "nats_py"]


class NatsPy(AsyncioThread):
    """One client of nats-py."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client()
        self.errors: list[Exception] = []

    async def connect(self, address: str) -> None:
        async def failed(error: Exception) -> None:
            self.errors.append(error)

        self.client = await self.run(nats.connect(address, error_cb=failed, reconnect_time_wait=0, max_reconnect_attempts=-1))

    async def close(self) -> None:
        await self.run(self.client.close())
        await self.end()

    async def request(self, subject: str, payload: bytes = b"", **more: Any) -> Msg:
        return await self.run(self.client.request(subject, payload, timeout=BOUND, **more))

    async def publish(self, subject: str, payload: bytes = b"", **more: Any) -> None:
        await self.run(self.client.publish(subject, payload, **more))
        await self.run(self.client.flush())

    async def subscribe(
        self, subject: str, answer: Callable[[Msg], Awaitable[None]] | None = None, queue: str = ""
    ) -> list[Msg]:
        """Subscribe; what comes is in the list that this gives."""
        seen: list[Msg] = []

        async def came(message: Msg) -> None:
            seen.append(message)
            if answer is not None:
                await answer(message)

        await self.run(self.client.subscribe(subject, queue=queue, cb=came))
        await self.run(self.client.flush())
        return seen

    async def serve(self, name: str, **endpoints: Handler) -> None:
        """A service of nats.micro (ADR-32), in the group ``q``; until the connection is closed."""
        service = await self.run(add_service(self.client, ServiceConfig(name=name, version="1.0.0")))
        for subject, handler in endpoints.items():
            await self.run(service.add_endpoint(EndpointConfig(name=subject, subject=f"{name}.{subject}", handler=handler)))
        await self.run(self.client.flush())


@asynccontextmanager
async def nats_py(address: str) -> AsyncIterator[NatsPy]:
    theirs = NatsPy()
    await theirs.connect(address)
    try:
        yield theirs
    finally:
        with anyio.CancelScope(shield=True):
            await theirs.close()
