"""Bridges in a row, and how a bridge ends: what is under way comes to its end, and nothing crosses any more."""

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Limits, Peer, Route, bridge, connect
from polybus.bridges import Bridge
from polybus.errors import ConnectFailed, Disconnected, LocalProtocolError, NoHandler, RequestError, Unavailable
from polybus.events import DeadLettered, LinkDown
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.answering import noting, publish_each

MODULE = sys.modules[Bridge.__module__]  # the function `bridge` has the name of its module
LASTING = {"stream", "channel"}
EVERYTHING = [Route("{name}", "{name}", {"request", "publish", *LASTING}), Route("site.{id}", "site.{id}", {"tunnel"})]


class Far:
    def __init__(self) -> None:
        self.bus = Bus()
        self.inner = Bus()
        self.go = anyio.Event()
        self.bus.handle_tunnels("site.{id}", self.inner, protocol="jrep")

        @self.bus.handle("slow")
        async def slow(body: int) -> int:
            await self.go.wait()
            return body + 1

        @self.bus.handle("count")
        async def count(body: int) -> AsyncIterator[int]:
            for number in range(body):
                yield number
            await self.go.wait()

        @self.inner.handle("echo")
        async def echo(body: Any) -> Any:
            return body


@asynccontextmanager
async def joined(far: Far, *, bridges: int = 1, routes: list[Route] = EVERYTHING) -> AsyncIterator[tuple[Bus, AsyncExitStack]]:
    """A client in front of so many bridges in a row, with a server behind; and what leaves the bridges."""
    buses = [Bus() for _ in range(bridges + 1)]
    if not bridges:
        async with pair(far.bus, protocol="uprotocol") as asker, AsyncExitStack() as stack:
            yield asker, stack
        return
    async with pair(far.bus, protocol="uprotocol", client=buses[-1]), buses[0], AsyncExitStack() as stack:
        for near, next_one in zip(buses, buses[1:], strict=False):
            await stack.enter_async_context(bridge(near, next_one, routes=routes))
        async with pair(buses[0]) as asker:
            yield asker, stack


def busy(*peers: Peer) -> bool:
    return any(core_of(peer).channels or core_of(peer).calls for peer in peers)


# -- in a row ------------------------------------------------------------------------------------------------------------


async def test_bodies_of_streams_are_converted_by_each_bridge_that_they_cross() -> None:
    def more(body: int, _: Any) -> int:
        return body + 1

    far = Far()
    far.go.set()
    async with joined(far, bridges=2, routes=[Route("count", "count", {"stream"}, request=more, reply=more)]) as (asker, _):
        async with asker.stream("count", 1) as numbers:
            assert [number async for number in numbers] == [2, 3, 4]


async def test_what_lasts_ends_at_the_hops_also_in_a_ring_of_one_process() -> None:
    buses = [Bus(), Bus(), Bus()]
    async with AsyncExitStack() as stack:
        for one, two in zip(buses, buses[1:] + buses[:1], strict=True):
            routes = [Route("x", "x", LASTING | {"tunnel", "request"})]
            await stack.enter_async_context(bridge(one, two, routes=routes))
        asker = await stack.enter_async_context(pair(buses[0]))
        with pytest.raises(NoHandler, match="the bridges lead back"):
            await asker.request("x")
        with pytest.raises(RequestError, match=r"has come through 8 bridges and tunnels: the limit is 8 \(Limits\.hops\)"):
            async with asker.stream("x") as items:
                await anext(items)
        await refused(connect(asker.tunnel("x"), protocol="csb"), ConnectFailed, match=r"the limit is 8 \(Limits\.hops\)")
        await eventually(lambda: not any(busy(*bus.peers) for bus in (asker, *buses)))


# -- ends ----------------------------------------------------------------------------------------------------------------


async def test_leaving_a_bridge_waits_for_what_was_asked_and_published_and_takes_nothing_new() -> None:
    far = Far()
    heard = noting(far.bus, "news")

    async def held(body: Any, _: Any) -> Any:
        await far.go.wait()
        return body

    routes = [Route("slow", "slow"), Route("news", "news", {"publish"}, request=held)]
    async with joined(far, routes=routes) as (asker, stack):
        reply = asker.request("slow", 1)
        await publish_each(asker, "news", range(20))
        await eventually(lambda: far.bus.stats().running == 1)
        async with anyio.create_task_group() as group:
            group.start_soon(stack.aclose)
            with pytest.raises(NoHandler):
                while True:  # until the bridge is being left
                    with suppress(TimeoutError):
                        await asker.request("slow", 1, timeout=0.05)
            assert not reply.done()
            far.go.set()
            assert await reply == 2
        await eventually(lambda: heard == list(range(20)))


async def test_endless_streams_and_tunnels_are_ended_when_their_bridge_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "DRAIN", 0.1)
    far = Far()
    async with joined(far, bridges=2) as (asker, stack):
        async with asker.stream("count", 1) as numbers:
            assert await anext(numbers) == 0
            async with connect(asker.tunnel("site.7"), protocol="jrep", backoff=Backoff(attempts=1)) as within:
                assert await within.request("echo", 1) == 1
                events = within.events()
                await stack.aclose()
                with pytest.raises(Unavailable, match="the bridge is leaving"):
                    await anext(numbers)
                down = await next_event(events, LinkDown)
                assert (down.code, down.reason) == (1001, "the bridge is leaving: try again later")
        await eventually(lambda: not far.inner.peers and far.bus.stats().running == 0)
        assert not any(core_of(peer).channels for peer in (*asker.peers, *far.bus.peers))


@pytest.mark.parametrize("bridges", [0, 2])
async def test_whoever_opens_a_tunnel_and_is_cancelled_at_any_step_leaves_nothing(bridges: int) -> None:
    far = Far()
    async with joined(far, bridges=bridges) as (asker, _):

        async def visit() -> None:
            async with connect(asker.tunnel("site.7"), protocol="jrep") as within:
                for number in range(3):
                    assert await within.request("echo", number) == number

        for steps in range(0, 40, 2):
            async with anyio.create_task_group() as group:
                group.start_soon(visit)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
        await visit()
        everybody = [*asker.peers, *far.bus.peers, *far.inner.peers]
        await eventually(lambda: not far.inner.peers and not busy(*everybody))
        assert asker.stats().links == far.bus.stats().links == 1


@pytest.mark.parametrize("by_an_error", [False, True])
async def test_a_request_that_outlasts_leaving_is_unavailable(by_an_error: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "DRAIN", 3600.0 if by_an_error else 0.05)
    far = Far()
    async with joined(far) as (asker, stack):
        reply = asker.request("slow", 1)
        await eventually(lambda: far.bus.stats().running == 1)
        await stack.__aexit__(*((LookupError, LookupError("of the program"), None) if by_an_error else (None, None, None)))
        with pytest.raises(Unavailable, match="the bridge is leaving"):
            await reply
        await eventually(lambda: far.bus.stats().running == 0)


async def test_whoever_goes_while_requests_and_streams_wait_for_their_turn_leaves_nothing_to_wait_for() -> None:
    far, left, right = Far(), Bus(limits=Limits(running=2)), Bus()
    both = bridge(left, right, routes=EVERYTHING)
    async with pair(far.bus, client=right), left, AsyncExitStack() as stack:
        await stack.enter_async_context(both)
        async with pair(left) as asker, AsyncExitStack() as streams:
            replies = [asker.request("slow", number) for number in range(5)]
            for _ in range(5):
                await streams.enter_async_context(asker.stream("count", 1))
            await eventually(lambda: left.stats().waiting == 8)
            await asker.aclose()
            for reply in replies:
                with pytest.raises(Disconnected):
                    await reply
        await eventually(lambda: far.bus.stats().running == 0)
        await eventually(lambda: not any(side.calls for side in both._crossings))


async def test_leaving_can_be_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "DRAIN", 3600.0)
    far, left, right = Far(), Bus(), Bus()
    both = bridge(left, right, routes=EVERYTHING)
    async with pair(far.bus, client=right), left, AsyncExitStack() as stack:
        await stack.enter_async_context(both)
        async with pair(left) as asker, anyio.create_task_group() as group:
            reply = asker.request("slow", 1)
            await eventually(lambda: far.bus.stats().running == 1)
            group.start_soon(stack.aclose)
            await anyio.wait_all_tasks_blocked()
            assert not reply.done()
            both.hurry()
            with pytest.raises(Unavailable, match="the bridge is leaving"):
                await reply


async def test_a_bridge_may_be_entered_again_but_not_twice_at_a_time() -> None:
    left, right = Bus(), Bus()
    right.handle("there")(lambda: "yes")
    both = bridge(left, right, routes=[Route("here", "there")])
    async with left, pair(left) as asker:
        for _ in range(2):
            async with both:
                assert await asker.request("here") == "yes"
                with pytest.raises(LocalProtocolError, match="is already entered"):
                    await both.__aenter__()
                assert await asker.request("here") == "yes"
        with pytest.raises(NoHandler):
            await asker.request("here")


async def test_publications_for_a_far_side_that_is_gone_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    left, right, far = Bus(), Bus(), Bus()
    routes = [Route("news.*", "news.{1}")]
    async with right, left, bridge(left, right, routes=routes), pair(left) as asker, pair(far, client=right, reconnect=False):
        await far.peers[0].aclose("gone for good")
        await eventually(lambda: not right.peers)
        with pytest.raises(Disconnected):
            right.publish_nowait("news.x", 1)
        caplog.clear()
        events = left.events()
        with caplog.at_level(logging.WARNING):
            await publish_each(asker, "news.x", range(10))
            seen = [await anext(events) for _ in range(10)]
        assert all(isinstance(event, DeadLettered) and "gone for good" in event.reason for event in seen)
        assert [record.exc_info for record in caplog.records] == [None]
        assert (left.stats().failed, left.stats().dropped) == (0, 10)
