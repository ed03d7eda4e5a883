"""Frames that only drip have a bound together. What a drip does to one connection is in `transports/test_liveness.py`."""

import struct
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import anyio.abc

from polybus import Bus, Limits
from polybus._core.link.state import State
from polybus.plugins import Closed
from tests.loops import both_backends  # noqa: F401
from tests.support import eventually


async def dripping(stack: AsyncExitStack, port: int, size: int) -> anyio.abc.SocketStream:
    """A connection with that much of a frame of 1 MB."""
    stream = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
    await stream.send(struct.pack("!I", 1_000_000) + bytes(size))
    return stream


async def test_frames_that_come_slowly_count_in_total_bytes_and_find_a_bound_there() -> None:
    bus = Bus(limits=Limits(total_bytes=2_400_000))
    async with bus.serve("ubre+tcp://127.0.0.1:0") as server, AsyncExitStack() as stack:
        port = int(server.url.rpartition(":")[2])
        streams = [await dripping(stack, port, 300_000) for _ in range(5)]
        running: Any = bus._services.running
        now = running.time()
        await eventually(lambda: sum(link.transport._framer.arrived for link in running.links) == 5 * 300_004)
        links = list(running.links)

        def has_come(before: dict[Any, int]) -> bool:
            return all(link.state is State.CLOSED or link.transport._framer.arrived > was for link, was in before.items())

        async def drip(seconds: range) -> None:
            """Twice as much as the floor is, to all that are there."""
            for second in seconds:
                before = {link: link.transport._framer.arrived for link in running.links}
                for stream, link in zip(streams, links, strict=True):
                    if link in before:
                        await stream.send(bytes(1024))
                await eventually(partial(has_come, before))
                running.time = lambda second=second: now + second
                for link in list(running.links):
                    link.tick(now + second)

        await drip(range(1))
        assert running.buffered == 0, "the usual frame, which has arrived by the next look, costs no bookkeeping"
        await drip(range(1, 4))
        # Three of them have room: they are of one address.
        await eventually(lambda: len(running.links) == 3)
        assert 3 * 300_000 < running.buffered < 4 * 300_000
        stream, link = next(both for both in zip(streams, links, strict=True) if both[1] in running.links)
        await stream.send(bytes(1_000_000 - 300_000 - 4 * 1024))
        await eventually(lambda: link.transport._framer.arrived == 0)
        link.tick(now + 4)
        assert 2 * 300_000 < running.buffered < 3 * 300_000, "a frame that has arrived costs nothing any more"
        for link in list(running.links):
            link.abort(Closed(1006, "the test is over"))
        await eventually(lambda: running.buffered == 0)
