"""Groups and the publications of their own members, at the engine in memory: as at a real server, see `interop`."""

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from polybus import Backoff, Bus, NoHandler, connect
from polybus.testing import cluster, pair
from polybus.testing.nats_engine import NatsEngine
from tests.contract.nats_groups import GROUPS, Member, each_is_for_one_member_of_a_group
from tests.support import eventually

BACKOFF = Backoff(initial=0.001, maximum=0.02)
TWENTY = Counter(map(str, range(20)))


async def joined(stack: AsyncExitStack, engine: NatsEngine, wire: str, count: int) -> list[Member]:
    """Members that are connected over the engine, or two of them with each other."""
    members = [Member(Bus(cluster=engine.url) if wire == "cluster" else Bus(), name) for name in "abc"[:count]]
    if wire == "cluster":
        await stack.enter_async_context(cluster(*(member.bus for member in members), url=engine.url))
    elif wire == "native":
        for member in members:
            await stack.enter_async_context(connect(engine.url, bus=member.bus))
    else:
        client = members[1].bus if count > 1 else None
        await stack.enter_async_context(pair(members[0].bus, protocol="nats", client=client))
        members = members[:2]
    return members


async def publish(bus: Bus, count: int = 20) -> None:
    for n in range(count):
        await bus.publish("orders.placed", str(n))
    await bus.publish("fence", "")


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("wire", ["native", "cluster", "pair"])
async def test_one_member_of_a_group_gets_each_publication_the_publisher_s_own_among_them(wire: str, count: int) -> None:
    async with NatsEngine() as engine, AsyncExitStack() as stack:
        members = await joined(stack, engine, wire, count)
        chosen = await each_is_for_one_member_of_a_group(members)
        assert all(chosen[group][member.name] for group in GROUPS for member in members)


@pytest.mark.parametrize("servers", [1, 2])
async def test_a_member_with_two_links_hears_its_own_publications_once(servers: int) -> None:
    member = Member(Bus(), "a")
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(NatsEngine()) for _ in range(servers)]
        for n in range(2):
            await stack.enter_async_context(connect(engines[n % servers].url, bus=member.bus))
        await publish(member.bus)
        await eventually(lambda: all(heard == TWENTY for heard in member.heard.values()) and member.fences.total() == 1)


@pytest.mark.parametrize("wire", ["native", "cluster"])
async def test_what_a_client_publishes_and_a_relay_passes_on_is_for_one_member_of_a_group(wire: str) -> None:
    address = f"ubre+memory://groups-relay-{wire}"
    async with NatsEngine() as engine, AsyncExitStack() as stack:
        members = await joined(stack, engine, wire, 2)
        members[0].bus.relay("orders.>")
        members[0].bus.relay("fence")
        await stack.enter_async_context(members[0].bus.serve(address))
        client = await stack.enter_async_context(connect(address))
        await publish(client, 40)
        await eventually(lambda: all(member.fences.total() == 1 for member in members))
        for group in GROUPS:
            shares = [member.heard[group] for member in members]
            assert sum(shares, Counter()) == Counter(map(str, range(40)))
            assert all(shares)
        assert all(member.heard["alone"] == Counter(map(str, range(40))) for member in members)


async def test_a_group_hears_what_its_own_bus_publishes_while_the_link_is_down() -> None:
    member = Member(Bus(), "a")
    async with NatsEngine() as engine, connect(engine.url, bus=member.bus, backoff=BACKOFF):
        await engine.cut()
        await publish(member.bus)
        await eventually(lambda: member.fences.total() == 1)
        assert all(heard == TWENTY for heard in member.heard.values())


async def test_a_program_that_copies_the_headers_of_what_it_hears_is_heard_itself() -> None:
    bus, heard = Bus(), list[str]()

    @bus.on(">", group="all")
    async def grouped(body: Any) -> None: ...

    @bus.on("*")
    async def hear(body: str) -> None:
        heard.append(body)

    async with NatsEngine() as engine, connect(engine.url, bus=bus):
        copied = list[bytes]()
        route = engine.route

        def copy(sender: Any, operation: Any, block: bytes) -> None:
            route(sender, operation, block)
            if operation.subject == "placed":
                copied.append(block)
                route(sender, type(operation)("PUB", "copied", payload=b'"copied"'), block)

        engine.route = copy  # type: ignore[method-assign]
        await bus.publish("placed", "own")
        await eventually(lambda: heard == ["own", "copied"])
        assert copied[0].startswith(b"NATS/1.0\r\nPolybus-Echo: ")


async def test_a_bus_asks_the_others_by_name_and_hears_nothing_of_its_own_questions() -> None:
    bus, heard, told = Bus(), list[str](), list[str]()

    @bus.handle("name")
    async def own() -> str:
        return "own"

    @bus.handle("tell")
    async def tell(body: str) -> None:
        told.append(body)

    other = Bus()

    @other.handle("name")
    async def theirs(question: str | None = None) -> str:
        return "other"

    async with NatsEngine() as engine, connect(engine.url, bus=bus):
        (network,) = bus.peers
        with pytest.raises(NoHandler):
            await network.request("name")
        async with bus.subscribe(">") as all_of_it:
            await network.notify("tell", "x")
            await bus.publish("tell", "x")
            async with connect(engine.url, bus=other):
                assert {await network.request("name") for _ in range(20)} == {"other"}
            async with connect(engine.url) as asker:
                assert await asker.request("name") == "own"
                await asker.publish("end", "end")
            async for message in all_of_it:
                heard.append(str(message.subject))
                if message.subject == "end":
                    break
        assert told == []
        # The answers of the other, and what the asker has said.
        assert [subject for subject in heard if not subject.startswith("_INBOX.")] == ["tell", "name", "end"]
        assert len(heard) == 23


async def test_a_server_without_headers_gives_a_group_what_others_publish() -> None:
    class Old(NatsEngine):
        @property
        def info(self) -> dict[str, Any]:
            return {**super().info, "headers": False}

    one, two = Member(Bus(), "a"), Member(Bus(), "b")
    async with Old() as engine, connect(engine.url, bus=one.bus), connect(engine.url, bus=two.bus):
        await publish(one.bus)
        await eventually(lambda: two.heard["workers"].total() == 20 and one.heard["alone"].total() == 20)
        assert one.heard["workers"].total() == 0
