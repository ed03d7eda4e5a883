"""How far messages go over bridges, tunnels and relays, and that each bus gets each publication once and in order."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Bus, ConnectFailed, Limits, NoHandler, RequestError, Route, bridge, connect
from polybus.events import DeadLettered
from polybus.testing import pair

from .support import bounded, eventually

pytestmark = pytest.mark.anyio
PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")
ALL = {"request", "publish", "stream", "channel"}
CROSSING = [Route("x.>", "x.{rest}", ALL), Route("site.{id}", "site.{id}", {"tunnel"})]


def answering(bus: Bus, inner: Bus | None = None) -> Bus:
    """A bus that answers in every way."""

    @bus.handle("x.echo")
    async def echo(body: Any) -> Any:
        return body

    @bus.handle("x.count")
    async def count(body: int) -> AsyncIterator[int]:
        for number in range(body):
            yield number

    if inner is not None:
        bus.handle_tunnels("site.{id}", inner, protocol="ubre")
    return bus


def hearing(bus: Bus) -> list[Any]:
    """What a bus hears of the publications that cross."""
    heard: list[Any] = []

    @bus.on("x.>", inline=True, queue=10_000)
    def hear(body: Any) -> None:
        heard.append(body)

    return heard


@asynccontextmanager
async def row(
    servers: list[Bus], *, protocol: str = "ubre", ring: bool = False, between: int = 0, links: int = 1
) -> AsyncIterator[None]:
    """Servers, each with a bridge to the next one: its other bus has dialled that, in so many links, or is relayed to it."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        for server, following in zip(servers, servers[1:] + servers[:1] if ring else servers[1:], strict=False):
            for _ in range(links):
                gate, end = Bus(limits=server.limits), following
                for _ in range(between):
                    relay = Bus()
                    relay.relay("x.>")
                    await enter(pair(relay, protocol=protocol, client=end))
                    end = relay
                await enter(pair(end, protocol=protocol, client=gate))
                await enter(bridge(server, gate, routes=CROSSING))
        yield


# -- how far -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@bounded
async def test_all_that_is_asked_and_told_reaches_the_end_of_a_chain_of_servers(count: int, protocol: str) -> None:
    servers = [Bus() for _ in range(count)]
    inner = answering(Bus())
    answering(servers[-1], inner)
    heard = [hearing(server) for server in servers]
    async with row(servers, protocol=protocol), pair(servers[0], protocol=protocol) as asker:
        assert [await asker.request("x.echo", number) for number in range(5)] == list(range(5))
        async with asker.stream("x.count", 5) as numbers:
            assert [number async for number in numbers] == list(range(5))
        async with connect(asker.tunnel("site.7"), protocol="ubre") as inside:
            assert await inside.request("x.echo", "deep") == "deep"
        for number in range(20):
            await asker.publish("x.news", number)
            await servers[0].publish("x.news", 100 + number)
        await eventually(lambda: all(len(got) >= 40 for got in heard))
        for got in heard:
            assert [one for one in got if one < 100] == list(range(20))
            assert [one for one in got if one >= 100] == list(range(100, 120))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@bounded
async def test_relays_between_bridges_are_no_hops(protocol: str) -> None:
    servers = [Bus(limits=Limits(hops=2)) for _ in range(3)]
    heard = [hearing(server) for server in servers]
    async with row(servers, protocol=protocol, between=3), pair(servers[0], protocol=protocol) as asker:
        for number in range(10):
            await asker.publish("x.news", number)
        await eventually(lambda: all(len(got) >= 10 for got in heard))
        assert heard == [list(range(10))] * 3


@bounded
async def test_a_chain_of_relays_has_no_limit_at_all() -> None:
    buses = [Bus(limits=Limits(hops=0)) for _ in range(50)]
    heard = hearing(buses[-1])
    async with AsyncExitStack() as stack:
        for bus, following in zip(buses, buses[1:], strict=False):
            bus.relay("x.>")
            await stack.enter_async_context(pair(bus, client=following))
        asker = await stack.enter_async_context(pair(buses[0]))
        for number in range(5):
            await asker.publish("x.news", number)
        await eventually(lambda: len(heard) == 5)
        assert heard == list(range(5))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@bounded
async def test_what_a_chain_is_too_long_for_is_refused_or_counted_told_and_logged_once(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "polybus")
    servers = [Bus() for _ in range(10)]  # nine bridges
    answering(servers[-1], Bus())
    heard = [hearing(server) for server in servers]
    limit = r"has come through 8 bridges and tunnels: the limit is 8 \(Limits\.hops\)"
    async with row(servers, protocol=protocol), pair(servers[0], protocol=protocol) as asker:
        for before in servers[:9]:
            assert before.stats().dropped == 0
        events = servers[8].events()
        with pytest.raises(RequestError, match=limit):
            await asker.request("x.echo", 1)
        with pytest.raises(RequestError, match=limit):
            async with asker.stream("x.count", 5) as numbers:
                await anext(numbers)
        with pytest.raises(ConnectFailed, match=r"the limit is 8 \(Limits\.hops\)"):
            async with connect(asker.tunnel("site.7"), protocol="ubre"):
                pass
        for number in range(3):
            await asker.publish("x.news", number)
        await asker.publish("x.other", 3)
        told = [event async for event in first_of(events, DeadLettered, 4)]
        assert [str(event.subject) for event in told] == ["x.news"] * 3 + ["x.other"]
        assert {event.code.name for event in told} == {"FAILED_PRECONDITION"}
        assert all("the limit is 8 (Limits.hops)" in event.reason for event in told)
        assert {event.message.headers for event in told} == {None}
        assert servers[8].stats().dropped == 4
        assert heard == [[0, 1, 2, 3]] * 9 + [[]]
    lines = [record.getMessage() for record in caplog.records if "Limits.hops" in record.getMessage()]
    assert [line.split("'")[1] for line in lines] == ["x.news", "x.other"]


async def first_of(events: AsyncIterator[Any], kind: type[Any], count: int) -> AsyncIterator[Any]:
    """So many events of a kind."""
    while count:
        event = await anext(events)
        if isinstance(event, kind):
            count -= 1
            yield event


@bounded
async def test_tunnels_on_the_way_are_hops_of_all_that_goes_through_them() -> None:
    """Client =tunnel=> one -bridge-> gate =tunnel=> two: three."""

    async def go(hops: int) -> tuple[Bus, Bus, list[Any]]:
        limits = Limits(hops=hops)
        outer, one, gate, two = Bus(), Bus(limits=limits), Bus(limits=limits), Bus(limits=limits)
        answering(two)
        heard = hearing(two)
        further = Bus()
        outer.handle_tunnels("one", one, protocol="ubre")
        outer.handle_tunnels("two", two, protocol="csb")
        beyond = answering(Bus())
        heard_beyond = hearing(beyond)
        await enter(pair(beyond, client=further))
        await enter(bridge(two, further, routes=[Route("x.far.>", "x.{rest}", ALL)]))
        out = await enter(pair(outer))
        await enter(connect(out.tunnel("two"), bus=gate, protocol="csb"))
        await enter(bridge(one, gate, routes=CROSSING))
        asker = await enter(connect(out.tunnel("one"), protocol="ubre"))
        assert await asker.request("x.echo", 1) == 1
        await asker.publish("x.news", "near")
        await eventually(lambda: heard == ["near"])
        return asker, two, heard_beyond

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        asker, _, heard = await go(4)  # the bridge behind `two` is the fourth
        assert await asker.request("x.far.echo", 1) == 1
        async with asker.stream("x.far.count", 2) as numbers:
            assert [number async for number in numbers] == [0, 1]
        await asker.publish("x.far.news", "far")
        await eventually(lambda: heard == ["far"])
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        asker, two, heard = await go(3)
        limit = r"'x\.far\.\w+' has come through 3 bridges and tunnels: the limit is 3 \(Limits\.hops\)"
        with pytest.raises(RequestError, match=limit):
            await asker.request("x.far.echo", 1)
        with pytest.raises(RequestError, match=limit):
            async with asker.stream("x.far.count", 2) as numbers:
                await anext(numbers)
        await asker.publish("x.far.news", "far")
        await eventually(lambda: two.stats().dropped == 1)
        assert heard == []


# -- rings and double links ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
@bounded
async def test_each_server_of_a_ring_gets_each_publication_once_and_in_order(count: int, links: int, protocol: str) -> None:
    servers = [Bus() for _ in range(count)]
    heard = [hearing(server) for server in servers]
    async with row(servers, protocol=protocol, ring=True, links=links), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(pair(server, protocol=protocol)) for server in servers]
        for number in range(20):
            for which, client in enumerate(clients):
                await client.publish("x.news", [f"client {which}", number])
                await servers[which].publish("x.news", [f"server {which}", number])
        await eventually(lambda: all(len(got) >= 40 * count for got in heard))
        await anyio.wait_all_tasks_blocked()
        for got in heard:
            for which in range(count):
                for kind in ("client", "server"):
                    assert [number for name, number in got if name == f"{kind} {which}"] == list(range(20))
            assert len(got) == 40 * count
        with pytest.raises(NoHandler, match="lead back"):
            await clients[0].request("x.nobody")
        assert [server.stats().dropped for server in servers] == [0] * count


@bounded
async def test_a_bus_that_relays_and_has_a_bridge_to_the_same_goal_is_heard_once_there() -> None:
    """One publication leaves in two ways, of which each goes through other hands: it has one id on both."""
    near, far = Bus(), Bus()
    near.relay("x.>")
    heard = hearing(far)
    gate = Bus()
    async with pair(near, client=far), pair(far, client=gate), bridge(near, gate, routes=CROSSING), pair(near) as asker:
        for number in range(20):
            await asker.publish("x.news", number)
            await near.publish("x.news", 100 + number)
            near.publish_nowait("x.news", 200 + number)
        await eventually(lambda: len(heard) >= 60)
        await anyio.wait_all_tasks_blocked()
        assert len(heard) == 60
        for first in (0, 100, 200):
            assert [one for one in heard if first <= one < first + 100] == list(range(first, first + 20))


@bounded
async def test_a_bus_with_a_link_and_a_bridge_to_the_same_goal_is_heard_once_there() -> None:
    near, gate, far = Bus(), Bus(), Bus()
    heard = hearing(far)
    async with pair(far, client=near), pair(far, client=gate), bridge(near, gate, routes=CROSSING):
        for number in range(20):
            await near.publish("x.news", number)
        await eventually(lambda: len(heard) >= 20)
        await anyio.wait_all_tasks_blocked()
        assert heard == list(range(20))
