"""Answers that leave only in the exchange of their question."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from polybus import Bus, RequestCancelled, Unsupported, connect
from tests.support import BOUND

from .exchange import Exchange
from .wires import Exchanges

pytestmark = pytest.mark.anyio


async def test_a_server_that_only_answers_begins_nothing() -> None:
    server, place = Bus(), Exchanges(polls=False)
    with anyio.fail_after(BOUND):
        async with server.serve(place, protocol=Exchange()), connect(place, protocol=Exchange()) as bus:
            with pytest.raises(Unsupported):
                await bus.subscribe("news").__aenter__()
            (peer,) = server.peers
            with pytest.raises(Unsupported):
                _ = peer.request("a")
            with pytest.raises(Unsupported):
                await peer.publish("a")
            with pytest.raises(Unsupported):
                await peer.notify("a")
            with pytest.raises(Unsupported):
                await peer.stream("a").__aenter__()
            await server.publish("news", 1)  # reaches nobody
    assert place.stray == []


async def test_every_exchange_is_answered_even_when_the_request_was_cancelled() -> None:
    server, place = Bus(), Exchanges(polls=False)
    started, stopped = anyio.Event(), anyio.Event()

    @server.handle("slow")
    async def slow() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    with anyio.fail_after(BOUND):
        async with server.serve(place, protocol=Exchange()), connect(place, protocol=Exchange()) as bus:
            reply = bus.request("slow", timeout=1000)
            await started.wait()
            reply.cancel()
            with pytest.raises(RequestCancelled):
                await reply
            await stopped.wait()
            await bus.publish("news", 1)
            while place.open or place.exchanges < 4:  # the request, the hello, the cancel, the publication
                await anyio.lowlevel.checkpoint()
    assert place.stray == []


async def test_answers_find_their_exchange_in_any_order() -> None:
    server, place = Bus(), Exchanges(polls=False)
    gates = [anyio.Event() for _ in range(5)]

    @server.handle("in_turn")
    async def in_turn(body: int) -> int:
        await gates[body].wait()
        return body

    with anyio.fail_after(BOUND):
        async with server.serve(place, protocol=Exchange()), connect(place, protocol=Exchange()) as bus:
            replies: list[Any] = [bus.request("in_turn", number) for number in range(5)]
            for number in reversed(range(5)):
                gates[number].set()
                assert await replies[number] == number
