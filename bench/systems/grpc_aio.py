"""grpc.aio with generic handlers, without protobuf: opaque bytes, or JSON as its serializer at both ends.

One-way is a client stream in which the server counts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import msgspec

from .base import Client, json_text

__all__ = ["connect", "serve"]

_SERVICE = "bench.Bench"


def _coding(options: dict[str, Any]) -> tuple[Callable[[Any], bytes] | None, Callable[[bytes], Any] | None]:
    return (msgspec.json.encode, msgspec.json.decode) if options["body"] == "json" else (None, None)


async def _echo(request: object, context: object) -> object:
    return request


async def _count(requests: AsyncIterator[Any], context: object) -> AsyncIterator[Any]:
    count = 0
    async for request in requests:
        if len(request) == 1:  # a question: bodies have two keys, or many bytes
            yield b"%d" % count if isinstance(request, bytes) else count
        else:
            count += 1


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    encode, decode = _coding(options)
    coding = {"request_deserializer": decode, "response_serializer": encode}
    server = grpc.aio.server()
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo, **coding),
        "Count": grpc.stream_stream_rpc_method_handler(_count, **coding),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready(f"127.0.0.1:{port}")
    await server.wait_for_termination()


class GrpcClient(Client):
    def __init__(self, channel: Any, options: dict[str, Any], size: int) -> None:
        super().__init__(size)
        encode, decode = _coding(options)
        coding = {"request_serializer": encode, "response_deserializer": decode}
        text = json_text(size)
        self.body = decode(text) if decode else text
        # Not text: grpc encodes it before the serializer.
        self.question: Any = ["?"] if decode else b"?"
        self.echo = channel.unary_unary(f"/{_SERVICE}/Echo", **coding)
        self.count = channel.stream_stream(f"/{_SERVICE}/Count", **coding)
        self.counting: Any = None

    async def request(self) -> object:
        return await self.echo(self.body)

    async def publish(self) -> None:
        if self.counting is None:
            self.counting = self.count()
        await self.counting.write(self.body)

    async def counted(self, total: int) -> int:
        await self.counting.write(self.question)
        return int(await self.counting.read())


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(url) as channel:
        yield GrpcClient(channel, options, size)
