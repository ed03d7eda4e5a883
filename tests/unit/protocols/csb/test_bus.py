"""Ids of the wire under a whole bus."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from polybus import Bus, Context, DeadlineExceeded, Limits
from polybus.plugins.extensions import core_of
from polybus.protocols import Csb
from polybus.testing import pair
from polybus.testing.virtual_time import VirtualLoop
from tests.support import BOUND, eventually, let_expire
from tests.unit.broker.raw import raw_peer


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=["virtual time"], scope="module")
async def test_the_ids_of_cancelled_requests_are_free_after_a_round_trip() -> None:
    bus = Bus(limits=Limits(running=1000, total_running=1000))

    @bus.handle(7)
    async def wait(body: bytes) -> bytes:
        if body == b"wait":
            await anyio.sleep_forever()
        return body

    async with pair(bus, protocol=Csb()) as client:
        session: Any = core_of(client.peers[0]).link.session
        for turn in range(3):
            replies = [client.request(7, b"wait") for _ in range(999)]
            assert await client.request(7, b"%d" % turn) == b"%d" % turn
            for reply in replies:
                reply.cancel()
            with anyio.fail_after(BOUND):
                await eventually(lambda: not session._one.resting)
            assert len(session._one.pending) <= 1  # the question who is there, maybe
        assert client.stats().late == client.stats().malformed == 0
        await eventually(lambda: bus.stats().running == 0)


async def test_a_first_request_to_a_number_stops_there_when_its_time_is_over() -> None:
    bus = Bus()
    started, stopped = anyio.Event(), anyio.Event()

    @bus.handle(7)
    async def wait(ctx: Context) -> None:
        started.set()
        assert ctx.message.ttl is None  # the document has no place for it, and nobody knows yet who is there
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async with pair(bus, protocol=Csb()) as client:
        expired = await let_expire(lambda seconds: client.request(7, timeout=seconds), started.is_set)
        assert isinstance(expired, DeadlineExceeded)
        with anyio.fail_after(BOUND):
            await stopped.wait()


@pytest.mark.parametrize("bad", ["12000007 00000007 7b", "10010007 00000007"])
async def test_what_is_malformed_is_not_answered_under_an_id_that_is_in_flight(bad: str) -> None:
    bus, go = Bus(), anyio.Event()

    @bus.handle(7)
    async def slow() -> str:
        await go.wait()
        return "done"

    async with bus.serve("csb+tcp://127.0.0.1:0") as listener, raw_peer(listener.url) as peer:
        await peer.send("10000007 00000007", bad, bad.replace("0007", "0008", 1))
        assert (await peer.receive())[4:8] == "0008"
        go.set()
        assert await peer.receive() == "2100000700000007" + b"done".hex()
        await peer.send(bad)
        assert (await peer.receive())[4:8] == "0007"
        assert bus.stats().malformed == 3


async def test_what_is_malformed_in_a_channel_that_is_open_does_not_end_it() -> None:
    bus = Bus()

    @bus.handle("count")
    async def count() -> AsyncIterator[int]:
        yield 1
        yield 2

    extras = b'{"mode":"stream","n":1}'
    async with bus.serve("csb+tcp://127.0.0.1:0") as listener, raw_peer(listener.url) as peer:
        await peer.send(f"10000005 ffff0007 0005 {len(extras):04x} ffffffff" + (b"count" + extras).hex())
        assert (await peer.receive())[8:16] == "ffff0009"
        await peer.send("10000005 ffff0007 0005 0002 ffffffff" + b"count{]".hex(), "10000005 ffff000a 00000009")
        assert (await peer.receive())[8:] == "ffff0009" + b"2".hex()
        assert bus.stats().malformed == 1
