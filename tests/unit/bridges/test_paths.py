"""How far messages go over bridges, tunnels and relays, and that each bus gets each publication once and in order."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import anyio
import msgspec
import pytest

from polybus import Bus, Identity, Limits, Message, Peer, Route, bridge, connect
from polybus.broker import Broker
from polybus.errors import ConnectFailed, NoHandler, QueueFull, RequestError
from polybus.events import DeadLettered
from polybus.message import Kind
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.answering import publish_each

PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")
ALL = {"request", "publish", "stream", "channel"}
BOTH_WAYS = [Route("x.>", "x.{rest}"), Route("x.>", "x.{rest}", reverse=True)]
CROSSING = [Route("x.>", "x.{rest}", ALL), Route("site.{id}", "site.{id}", {"tunnel"})]


def answering(bus: Bus, inner: Bus | None = None) -> Bus:
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
    heard: list[Any] = []

    @bus.on("x.>", inline=True, queue=10_000)
    def hear(body: Any) -> None:
        heard.append(body)

    return heard


@asynccontextmanager
async def row(servers: list[Bus], protocol: str) -> AsyncIterator[None]:
    """Servers, each with a bridge to the next one, which its other bus has dialled."""
    async with AsyncExitStack() as stack:
        for server, following in zip(servers, servers[1:], strict=False):
            gate = Bus(limits=server.limits)
            await stack.enter_async_context(pair(following, protocol=protocol, client=gate))
            await stack.enter_async_context(bridge(server, gate, routes=CROSSING))
        yield


# -- how far -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [2, 6])
async def test_all_that_is_asked_and_told_reaches_the_end_of_a_chain_of_servers(count: int, protocol: str) -> None:
    servers = [Bus() for _ in range(count)]
    inner = answering(Bus())
    answering(servers[-1], inner)
    heard = [hearing(server) for server in servers]
    async with row(servers, protocol), pair(servers[0], protocol=protocol) as asker:
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


async def test_a_chain_of_relays_has_no_limit_at_all() -> None:
    buses = [Bus(limits=Limits(hops=0)) for _ in range(50)]
    heard = hearing(buses[-1])
    async with AsyncExitStack() as stack:
        for bus, following in zip(buses, buses[1:], strict=False):
            bus.relay("x.>")
            await stack.enter_async_context(pair(bus, client=following))
        asker = await stack.enter_async_context(pair(buses[0]))
        await publish_each(asker, "x.news", range(5))
        await eventually(lambda: len(heard) == 5)
        assert heard == list(range(5))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_goes_too_far_is_refused_or_counted_and_logged_once(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "polybus")
    servers = [Bus() for _ in range(10)]  # nine bridges
    answering(servers[-1], Bus())
    heard = [hearing(server) for server in servers]
    limit = r"has come through 8 bridges and tunnels: the limit is 8 \(Limits\.hops\)"
    async with row(servers, protocol), pair(servers[0], protocol=protocol) as asker:
        for before in servers[:9]:
            assert before.stats().dropped == 0
        events = servers[8].events()
        with pytest.raises(RequestError, match=limit):
            await asker.request("x.echo", 1)
        with pytest.raises(RequestError, match=limit):
            async with asker.stream("x.count", 5) as numbers:
                await anext(numbers)
        await refused(connect(asker.tunnel("site.7"), protocol="ubre"), ConnectFailed, match=r"the limit is 8 \(Limits\.hops\)")
        await publish_each(asker, "x.news", range(3))
        await asker.publish("x.other", 3)
        told = [await next_event(events, DeadLettered) for _ in range(4)]
        assert [str(event.subject) for event in told] == ["x.news"] * 3 + ["x.other"]
        assert {event.code.name for event in told} == {"FAILED_PRECONDITION"}
        assert all("the limit is 8 (Limits.hops)" in event.reason for event in told)
        assert all(event.message is not None and event.message.headers is None for event in told)
        assert servers[8].stats().dropped == 4
        assert heard == [[0, 1, 2, 3]] * 9 + [[]]
    lines = [record.getMessage() for record in caplog.records if "Limits.hops" in record.getMessage()]
    assert [line.split("'")[1] for line in lines] == ["x.news", "x.other"]


async def test_a_publication_at_the_end_of_its_way_is_not_told_as_lost_because_a_bridge_leads_back() -> None:
    buses = [Bus(limits=Limits(hops=2)) for _ in range(4)]
    heard = [hearing(bus) for bus in buses]
    async with AsyncExitStack() as stack:
        for bus in buses:
            await stack.enter_async_context(bus)
        for left, right in zip(buses, buses[1:], strict=False):
            await stack.enter_async_context(bridge(left, right, routes=BOTH_WAYS))
        await buses[1].publish("x.short", 1)  # two bridges to the last one: as far as it may
        await eventually(lambda: [len(got) for got in heard] == [1, 1, 1, 1])
        events = buses[2].events()
        await buses[0].publish("x.long", 2)
        assert (await next_event(events, DeadLettered)).subject == "x.long"
    assert [got[-1] for got in heard] == [2, 2, 2, 1]
    assert [bus.stats().dropped for bus in buses] == [0, 0, 1, 0]


@pytest.mark.parametrize("hops", [4, 3])
async def test_tunnels_on_the_way_are_hops_of_all_that_goes_through_them(hops: int) -> None:
    """Client =tunnel=> one -bridge-> gate =tunnel=> two -bridge-> beyond: four."""
    one, gate, two = (Bus(limits=Limits(hops=hops)) for _ in range(3))
    outer, further, beyond = Bus(), Bus(), answering(Bus())
    near, far = hearing(answering(two)), hearing(beyond)
    outer.handle_tunnels("one", one, protocol="ubre")
    outer.handle_tunnels("two", two, protocol="csb")
    limit = r"'x\.far\.\w+' has come through 3 bridges and tunnels: the limit is 3 \(Limits\.hops\)"
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(pair(beyond, client=further))
        await enter(bridge(two, further, routes=[Route("x.far.>", "x.{rest}", ALL)]))
        out = await enter(pair(outer))
        await enter(connect(out.tunnel("two"), bus=gate, protocol="csb"))
        await enter(bridge(one, gate, routes=CROSSING))
        asker = await enter(connect(out.tunnel("one"), protocol="ubre"))
        assert await asker.request("x.echo", 1) == 1
        with nullcontext() if hops == 4 else pytest.raises(RequestError, match=limit):
            assert await asker.request("x.far.echo", 1) == 1
        with nullcontext() if hops == 4 else pytest.raises(RequestError, match=limit):
            async with asker.stream("x.far.count", 2) as numbers:
                assert [number async for number in numbers] == [0, 1]
        await asker.publish("x.far.news", "far")
        await asker.publish("x.news", "near")
        await eventually(lambda: near[-1:] == ["near"] and (far == ["far"] if hops == 4 else two.stats().dropped == 1))
        assert len(far) == hops - 3


# -- rings and double links ----------------------------------------------------------------------------------------------


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


# -- who says where a publication has been -------------------------------------------------------------------------------


async def _is_marked(publisher: Bus, hearer: Bus, **to: Any) -> bool:
    """Whether what a bus publishes says where it has been, and so is known when it comes again."""
    async with hearer.subscribe("x.>", local=False) as news:
        await publisher.publish("x.news", 1, **to)
        return "polybus-via" in (await news.receive(5)).shared


@pytest.mark.parametrize("relay", [False, True], ids=["bridge", "relay"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_who_begins_to_pass_on_tells_those_who_are_connected(protocol: str, relay: bool) -> None:
    middle, client, server = Bus(), Bus(), Bus()
    hearing(client)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(pair(middle, protocol=protocol, client=client))
        await enter(pair(server, protocol=protocol, client=middle))
        assert not await _is_marked(client, middle)
        assert not await _is_marked(server, middle)
        if relay:
            middle.relay("x.>")
        else:
            await enter(bridge(middle, Bus(), routes=BOTH_WAYS))
        for neighbour in (client, server):
            await eventually(lambda peer=neighbour.peers[0]: core_of(peer).passes_on is True)  # type: ignore[misc]
            assert await _is_marked(neighbour, middle)
            assert await _is_marked(neighbour, middle, to=neighbour.peers[0])


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_when_the_only_gateway_has_left_what_follows_is_still_known_to_be_later(protocol: str) -> None:
    bus, gate = Bus(), Bus()
    async with pair(bus, protocol=protocol) as client:
        assert not await _is_marked(bus, client)
        async with bridge(gate, Bus(), routes=BOTH_WAYS), pair(bus, protocol=protocol, client=gate):
            assert await _is_marked(bus, client)
        await eventually(lambda: len(bus.peers) == 1)
        assert await _is_marked(bus, client)


# -- links that go down --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_that_comes_back_is_known_before_it_subscribes(protocol: str) -> None:
    """Else a server would send it the first publications as to a stranger: on CSB, without headers."""
    known: list[bool | None] = []

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        if verb == "subscribe":
            session = core_of(peer).link.session
            assert session is not None
            known.append(not session.capabilities.asks_before_publishing or core_of(peer).speaks_extensions)
        return True

    server, gate = Bus(authorize=authorize), Bus()
    hearing(gate)
    async with pair(server, protocol=protocol, client=gate, reconnect=True):
        for times in (1, 2, 3):
            await eventually(lambda: len(known) == times)  # noqa: B023
            (peer,) = gate.peers
            core_of(peer).link.abort(Closed(1006, "cut"), comes_back=True)
        await eventually(lambda: len(known) == 4)
    assert known == [True] * 4


async def test_nothing_overtakes_what_waits_for_room_on_one_of_two_ways() -> None:
    far, near = Bus(), Bus(limits=Limits(outbox=1))
    heard = hearing(far)
    async with pair(far, client=near), pair(far, client=near):
        slow, _ = (core_of(peer).link for peer in near.peers)
        slow.pause_writing()

        async def say(first: int) -> None:
            await publish_each(near, "x.news", range(first, first + 5))

        async with anyio.create_task_group() as group:
            for first in (0, 100, 200):
                group.start_soon(say, first)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(QueueFull):
                near.publish_nowait("x.news", 300)  # the others get it
            slow.resume_writing()
        await eventually(lambda: len(heard) >= 16)
        await anyio.wait_all_tasks_blocked()
        assert sorted(heard) == [*range(5), *range(100, 105), *range(200, 205), 300]
        for first in (0, 100, 200):
            assert [one for one in heard if first <= one < first + 100 and one != 300] == list(range(first, first + 5))
        assert far.stats().dropped == 0


async def test_who_waits_for_the_turn_of_a_publication_gives_up_at_its_deadline() -> None:
    far, near = Bus(), Bus(limits=Limits(outbox=1))
    heard = hearing(far)
    async with pair(far, client=near), pair(far, client=near):
        slow, _ = (core_of(peer).link for peer in near.peers)
        slow.pause_writing()
        await near.publish("x.news", 0)  # fills the outbox
        async with anyio.create_task_group() as group:
            group.start_soon(near.publish, "x.news", 1)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(QueueFull, match="an earlier publication is still waiting"):
                await near.publish("x.news", 2, timeout=0.01)
            group.start_soon(near.publish, "x.news", 3)
            await anyio.wait_all_tasks_blocked()
            slow.resume_writing()
        await eventually(lambda: len(heard) >= 3)
        assert heard == [0, 1, 3]


# -- order, and who may say something of it ------------------------------------------------------------------------------


async def test_a_copy_that_comes_after_a_later_publication_of_its_stream_is_dropped_and_counted() -> None:
    bus = Bus()
    heard = hearing(bus)
    async with pair(bus) as fast, pair(bus) as slow:
        for number in (1, 2, 4):
            say(fast, "x.news", f"id{number}.1.origin-1.{number},fast", number)
        await eventually(lambda: heard == [1, 2, 4])
        for number in (1, 2, 3, 4, 5):  # 3 was lost on the fast way
            say(slow, "x.news", f"id{number}.1.origin-1.{number},slow", number)
        say(slow, "x.other", "id6.1.origin-2.3,slow", 6)  # another stream
        await eventually(lambda: len(heard) >= 5)
        assert heard == [1, 2, 4, 5, 6]
        assert bus.stats().dropped == 1


async def test_who_has_another_identity_cannot_hold_back_what_others_pass_on() -> None:
    """A stranger who may publish to the very subject, and knows all of the header but what has not been said yet."""
    first, second = Bus(authenticate=lambda handshake: "asked"), Bus()
    first.relay("x.>")
    heard = [hearing(first), hearing(second)]
    async with (
        pair(first, client=second, identity="second"),
        pair(first, identity="gateway") as honest,
        pair(first, identity="gateway") as other_way,
        pair(first, identity=Identity("stranger", key="7")) as forger,
        second.subscribe("x.>") as beyond,
    ):
        await eventually(lambda: len(first.peers) == 4)
        say(honest, "x.news", "id1.1.origin-1.1,gate", 1)
        head = (await anext(beyond)).shared["polybus-via"].decode().partition(",")[0]
        name = head.rpartition(".")[0].rpartition(".")[2]
        for claimed in ("origin-1", name, f"{name}~", "origin-1~gateway"):
            say(forger, "x.news", f"forged{claimed}.1.{claimed}.999999,gate", f"forged {claimed}")
        await eventually(lambda: len(heard[1]) == 5)
        for number in (2, 3):
            say(honest, "x.news", f"id{number}.1.origin-1.{number},gate", number)
            say(other_way, "x.news", f"id{number}.1.origin-1.{number},other", number)
        await eventually(lambda: len(heard[1]) >= 7)
        for got in heard:
            assert [one for one in got if isinstance(one, int)] == [1, 2, 3]
        say(other_way, "x.news", "late.1.origin-1.2,other", 2)  # of the same identity: late is late
        await eventually(lambda: first.stats().dropped == 1)


async def test_behind_a_broker_late_is_late_too_where_clients_are_not_asked_who_they_are() -> None:
    bus = Bus()
    heard = hearing(bus)
    async with (
        Broker("csb+memory://late-clients", "csb+memory://late-servers"),
        bus.connect("csb+memory://late-servers?side=broker-server"),
        connect("csb+memory://late-clients") as one,
        connect("csb+memory://late-clients") as another,
        pair(bus) as direct,
    ):
        say(one, "x.news", "id3.1.origin-1.3,gate", 3)
        await eventually(lambda: heard == [3])
        say(another, "x.news", "id2.1.origin-1.2,gate", 2)
        await eventually(lambda: bus.stats().dropped == 1)
        say(direct, "x.news", "id1.1.origin-1.1,gate", 1)
        await eventually(lambda: bus.stats().dropped == 2)
        assert heard == [3]


def say(client: Bus, subject: str, via: str, body: Any) -> None:
    (peer,) = client.peers
    raw = msgspec.json.encode(body)
    core_of(peer).link.write(Message(Kind.PUBLISH, subject, None, raw, headers={"polybus-via": via}), core_of(peer))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_bridge_with_the_same_subjects_both_ways_leads_to_the_other_bus_and_not_back(protocol: str) -> None:
    """What its other side has no handler for goes on over the link of that bus."""
    both_ways = [*CROSSING, *(Route(route.source, route.target, route.kinds, reverse=True) for route in CROSSING)]
    left, right, inner = Bus(), Bus(), Bus()
    inner.handle("hello")(lambda: "from within")
    far, url = answering(Bus(), inner), f"{protocol}+memory://far-{protocol}"
    async with far.serve(url), connect(url, bus=right), bridge(left, right, routes=both_ways), pair(left) as client:
        assert await client.request("x.echo", "there and back") == "there and back"
        async with client.stream("x.count", 3) as numbers:
            assert [number async for number in numbers] == [0, 1, 2]
        async with connect(client.tunnel("site.1"), protocol="ubre") as within:
            assert await within.request("hello") == "from within"
        with pytest.raises(NoHandler):
            await client.request("x.nobody", timeout=2)
        with pytest.raises(NoHandler):
            async with client.stream("x.nobody") as numbers:
                await anext(numbers)
