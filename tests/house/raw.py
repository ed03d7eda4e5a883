"""A server in a few lines, nothing of it polybus, for counting what one side does alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["raw_server"]


@asynccontextmanager
async def raw_server() -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A server that reads and says nothing by itself: its URL, and who has connected."""
    writers: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        yield f"ubre+tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", writers
