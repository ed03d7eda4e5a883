"""A polybus and a CSB peer that knows nothing but the document."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Bus, Unsupported, connect
from tests.refusal import refused
from tests.unit.broker.raw import Closed, RawPeer, raw_peer

Answer = Callable[[RawPeer, str], Awaitable[None]]


async def not_found(peer: RawPeer, frame: str) -> None:
    """What the document says to an action that is not there."""
    if frame[0] == "1":
        await peer.send("20c9" + frame[4:16])


@asynccontextmanager
async def bare_server(answer: Answer) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that hands each frame to a function, and keeps it."""
    frames: list[str] = []

    async def serve(stream: Any) -> None:
        async with stream:
            peer = RawPeer(stream)
            try:
                while True:
                    frames.append(await peer.receive())
                    await answer(peer, frames[-1])
            except (Closed, anyio.BrokenResourceError):
                return

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"csb+tcp://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}", frames
        group.cancel_scope.cancel()


async def test_what_a_bare_peer_cannot_carry_is_unsupported() -> None:
    async with bare_server(not_found) as (url, frames), connect(url) as bus:
        with pytest.raises(Unsupported, match="no publications"):
            await bus.publish("news", 1)
        with pytest.raises(Unsupported, match="no publications"):
            await bus.publish("news", 1, headers={"x": "y"})
        with pytest.raises(Unsupported, match="no publications"):
            bus.publish_nowait("news", 1)
        for pattern in ("news", "news.*"):
            await refused(bus.subscribe(pattern), Unsupported, match="no subscriptions")
        await refused(bus.stream("log"), Unsupported)
        await refused(bus.channel("log"), Unsupported)
        assert {frame[:4] + frame[8:16] for frame in frames} == {"1200ffff0000"}  # the hello, and nothing else


async def test_what_is_relayed_to_a_bare_client_has_a_form_that_it_reads() -> None:
    bus = Bus()
    bus.relay("chat.>")
    async with (
        bus.serve("csb+tcp://127.0.0.1:0") as listener,
        raw_peer(listener.url) as one,
        raw_peer(listener.url) as other,
        connect(listener.url) as ours,
        ours.subscribe("chat.*") as chat,
    ):
        await other.send("10 00 0001 ffff0001 0006" + b"chat.>".hex())
        assert await other.receive() == "20000001ffff0001"
        await one.send("12 00 0002 ffff0003 0006" + b"chat.a[1]".hex())
        assert await one.receive() == "20000002ffff0003"
        assert await other.receive() == "12000000ffff0003" + "0006" + b"chat.a[1]".hex()
        assert (await anext(chat)).body == [1]
        await ours.publish("chat.b", [2], headers={"seat": "7"})
        assert await other.receive() == "12000000ffff0003" + "0006" + b"chat.b[2]".hex()
        async with connect(listener.url) as third, third.subscribe("chat.*") as too:
            await ours.publish("chat.c", [3], headers={"seat": "8"})
            heard = await anext(too)
            assert (heard.body, heard.headers) == ([3], {"seat": "8"})
        assert bus.stats().malformed == 0
