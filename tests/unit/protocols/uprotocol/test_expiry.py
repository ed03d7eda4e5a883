"""Requests and answers whose time is over: on a bus in virtual time, with clocks that stand where they are put."""

import re
from collections.abc import AsyncIterator

import anyio
import pytest

from polybus import Bus, Code, DeadlineExceeded, Limits, connect
from polybus.events import DeadLettered
from polybus.protocols import UProtocol
from polybus.testing import pair
from tests.loops import virtual_time  # noqa: F401
from tests.support import next_event


def at(seconds: int) -> UProtocol:
    """With a clock that is this many seconds ahead."""
    return UProtocol(clock=lambda: (1_700_000_000 + seconds) * 1_000_000_000)


async def test_a_request_that_ends_in_a_queue_never_reaches_its_handler_and_is_told() -> None:
    server, reached, go = Bus(limits=Limits(running=1)), list[str](), anyio.Event()

    @server.handle("work")
    async def work(body: str) -> str:
        reached.append(body)
        await go.wait()
        return body

    async with pair(server, protocol=at(0)) as client:
        first = client.request("work", "first")
        events = server.events()
        with pytest.raises(DeadlineExceeded):
            await client.request("work", "second", timeout=0.05)
        letter = await next_event(events, DeadLettered)
        go.set()
        assert await first == "first"
        assert reached == ["first"]
        assert (letter.code, letter.subject) == (Code.DEADLINE_EXCEEDED, "work")


async def test_a_request_whose_answer_has_expired_waits_on_to_its_own_end_and_the_answer_is_a_dead_letter() -> None:
    server = Bus()

    @server.handle("work")
    async def work() -> str:
        return "done"

    @server.handle("count")
    async def count() -> AsyncIterator[int]:
        yield 1

    async with server.serve("uprotocol+memory://behind", protocol=at(-20)):
        async with connect("uprotocol+memory://behind", protocol=at(0)) as client:
            events = client.events()
            with pytest.raises(DeadlineExceeded) as caught:
                await client.request("work", timeout=0.2)
            assert caught.value.where == "local"
            said = "no answer to 'work' after .*: an answer came and was not taken, expired: made 20.* s ago with a ttl of"
            assert re.fullmatch(f"{said} .*; where clocks differ.*", str(caught.value))
            letter = await next_event(events, DeadLettered)
            assert (letter.code, letter.subject, letter.reason.split(":")[0]) == (Code.DEADLINE_EXCEEDED, "work", "expired")
            assert (client.stats().dropped, client.stats().late) == (1, 0)
            assert await client.request("work", timeout=60) == "done"
            async with client.stream("count") as items:  # the other bus is known as ours, whatever its clock says
                assert [item async for item in items] == [1]
