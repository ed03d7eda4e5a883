"""pyzmq on asyncio: DEALER and ROUTER for requests, PUSH and PULL one way; opaque bytes, or JSON at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import zmq
import zmq.asyncio

from ._answers import Answers
from ._base import Client, Publisher, json_text
from .ours import Counter

__all__ = ["connect", "serve"]

_SHORT = 32


def _context() -> zmq.asyncio.Context:
    """One that ends without waiting for what nobody reads any more."""
    context = zmq.asyncio.Context()
    context.linger = 0
    return context


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    as_json, counter = options["body"] == "json", Counter()
    with _context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.PULL) as pull:
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (router, pull)]

        async def answer() -> None:
            while True:
                identity, body = await router.recv_multipart()
                if len(body) < _SHORT:
                    await router.send_multipart([identity, b"%d" % await counter.wait(int(body))])
                else:
                    await router.send_multipart([identity, msgspec.json.encode(msgspec.json.decode(body)) if as_json else body])

        async def count() -> None:
            while True:
                body = await pull.recv()
                if as_json:
                    msgspec.json.decode(body)
                counter.add()

        async with anyio.create_task_group() as group:
            group.start_soon(answer)
            group.start_soon(count)
            ready(" ".join(f"tcp://127.0.0.1:{port}" for port in ports))


class ZmqClient(Publisher):
    """One task reads; answers come in the order of the requests."""

    def __init__(self, dealer: Any, push: Any, size: int, *, as_json: bool) -> None:
        super().__init__(size)
        self.dealer = dealer
        self.push = push
        self.body = json_text(size)
        self.value = msgspec.json.decode(self.body)
        self.as_json = as_json
        self.answers = Answers()

    async def read(self) -> None:
        receive, arrived, as_json = self.dealer.recv, self.answers.arrived, self.as_json
        while True:
            data = await receive()
            arrived(msgspec.json.decode(data) if as_json else data)

    async def request(self) -> object:
        answer = self.answers.next()
        await self.dealer.send(msgspec.json.encode(self.value) if self.as_json else self.body)
        return await answer

    async def publish(self) -> None:
        await self.push.send(msgspec.json.encode(self.value) if self.as_json else self.body)

    async def counted(self, total: int) -> None:
        answer = self.answers.next()
        await self.dealer.send(b"%d" % total)
        count = int(await answer)
        if count != total:
            raise RuntimeError(f"{total - count} of {total} messages were lost")


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    requests, one_way = url.split()
    with _context() as context, context.socket(zmq.DEALER) as dealer, context.socket(zmq.PUSH) as push:
        dealer.connect(requests)
        push.connect(one_way)
        client = ZmqClient(dealer, push, size, as_json=options["body"] == "json")
        reading = asyncio.create_task(client.read())
        try:
            yield client
        finally:
            reading.cancel()
            await asyncio.wait([reading])
