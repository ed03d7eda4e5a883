"""Buses of one cluster in one process, over the engine of tests: all hear what one says, and answer what one asks."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from polybus import Bus, CallNext, Channel, Context, Identity, Limits, Message, connect
from polybus.errors import ConnectFailed, Disconnected, Forbidden, NoHandler
from polybus.testing import NatsEngine, cluster
from tests.support import BOUND, eventually
from tests.unit.answering import noting
from tests.unit.cluster.handlers import Endless

pytestmark = pytest.mark.native


async def test_a_client_has_subscribed_when_the_engine_knows_it(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, held = Bus(cluster=engine.url), Bus(cluster=engine.url), list[bytes]()
    monkeypatch.setattr("polybus._core.peer.negotiation.HELLO_TIMEOUT", BOUND)
    one.handle("ping")(lambda: None)
    async with one, one.serve("ubre+memory://one-bus-c"), connect("ubre+memory://one-bus-c") as client:
        (at_engine,) = engine.clients
        receive = at_engine.frames_received
        monkeypatch.setattr(at_engine, "frames_received", held.extend)
        async with two, AsyncExitStack() as stack, anyio.create_task_group() as group:
            entered = anyio.Event()

            async def subscribe() -> None:
                news = await stack.enter_async_context(client.subscribe("news.*"))
                entered.set()
                assert (await news.receive(BOUND)).body == 1

            group.start_soon(subscribe)
            await eventually(lambda: any(frame.startswith(b"SUB") for frame in held))
            await client.request("ping")  # the bus answers everything else
            assert not entered.is_set()
            monkeypatch.setattr(at_engine, "frames_received", receive)
            receive(held)
            await entered.wait()
            await two.publish("news.today", 1)


async def test_a_node_subscribes_at_the_engine_while_any_of_its_clients_does(engine: NatsEngine) -> None:
    node = Bus(cluster=engine.url)
    node.handle("ping")(lambda: None)
    url = "ubre+memory://one-bus-d"

    def at_engine() -> list[str]:
        return [
            found.subject for client in engine.clients for found in client.subscriptions.values() if "news" in found.subject
        ]

    async with node, node.serve(url), connect(url) as first, connect(url) as second:
        async with first.subscribe("news.*"):
            async with second.subscribe("news.*"):
                assert len(at_engine()) == 1
            await second.request("ping")  # behind its unsubscription
            assert len(at_engine()) == 1
        await first.request("ping")
        await eventually(lambda: not at_engine())


async def test_tunnels_lead_from_a_node_and_from_its_clients_to_another_node(engine: NatsEngine) -> None:
    one, two, plant = Bus(cluster=engine.url), Bus(cluster=engine.url), Bus()
    plant.handle("tank.get")(lambda number: 10 * number)
    one.forward("*.*")
    two.handle_tunnels("plant.{id}", plant, protocol="csb")
    async with cluster(one, two, url=engine.url), one.serve("ubre+memory://one-bus-t") as listener:
        two.handle_tunnels("mill.{id}", plant, protocol="csb")
        async with connect(listener.url) as client:
            for outer in (client, one):
                for name in ("plant.7", "mill.7"):
                    async with connect(outer.tunnel(name), protocol="csb") as inner:
                        assert await inner.request("tank.get", 4) == 40
            with pytest.raises(ConnectFailed, match="no node of the cluster handles this"):
                async with connect(client.tunnel("plan.7"), protocol="csb"):
                    pass


async def test_streams_and_channels_lead_from_node_to_node(engine: NatsEngine) -> None:
    one, two = Bus(cluster=engine.url), Bus(cluster=engine.url)

    @two.handle("count")
    async def count(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    @two.handle("echo")
    async def echo(channel: Channel[int, int]) -> None:
        async for item in channel:
            await channel.send(item + 1)

    async with cluster(one, two, url=engine.url):
        async with one.stream("count", 500) as items:
            assert [item async for item in items] == list(range(500))
        async with one.channel("echo") as channel:
            for i in range(100):
                await channel.send(i)
                assert await anext(aiter(channel)) == i + 1
        with pytest.raises(NoHandler):
            async with one.stream("nobody.does") as items:
                async for _ in items:
                    pass
        await eventually(lambda: two.stats().running == 0)


async def test_a_cancelled_request_stops_the_handler_at_the_other_node(engine: NatsEngine) -> None:
    one, two, endless = Bus(cluster=engine.url), Bus(cluster=engine.url), Endless()
    two.handle("wait")(endless.run)
    async with cluster(one, two, url=engine.url):
        reply = one.request("wait")
        with anyio.fail_after(BOUND):
            await endless.entered.wait()
        reply.cancel()  # before the other node has said that it has the request
        await eventually(lambda: endless.stopped)


async def test_a_publication_that_does_not_fit_the_wire_of_one_client_reaches_the_others(engine: NatsEngine) -> None:
    gateway, other = Bus(cluster=engine.url, limits=Limits(message=4000)), Bus(cluster=engine.url)
    async with (
        cluster(gateway, other, url=engine.url),
        gateway.serve("ubre+memory://one-bus-text"),
        gateway.serve("csb+memory://one-bus-bytes"),
        connect("ubre+memory://one-bus-text") as narrow,
        connect("csb+memory://one-bus-bytes") as wide,
        narrow.subscribe("news"),
        wide.subscribe("news") as heard,
    ):
        for body in (b"x" * 3500, b"y"):  # in JSON bytes are a third larger
            await other.publish("news", body)
        assert [(await heard.receive(BOUND)).raw for _ in range(2)] == [b"x" * 3500, b"y"]
        assert gateway.stats().dropped == 1


async def test_a_user_is_asked_told_and_found_at_any_node(engine: NatsEngine) -> None:
    one = Bus(cluster=engine.url)
    two, page = Bus(cluster=engine.url, authenticate=lambda handshake: Identity("Ann", key="ann")), Bus()

    @page.handle("payment.confirm")
    async def confirm(query: dict[str, int]) -> bool:
        return query["sum"] < 100

    @page.handle("numbers")
    async def numbers(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    told = noting(page, "build.done")
    async with cluster(one, two, url=engine.url), two.serve("ubre+memory://one-bus-users"):
        ann = one.user("ann")
        assert not await ann.online()
        with pytest.raises(Disconnected) as caught:
            await ann.request("payment.confirm", {"sum": 12})
        assert not caught.value.sent
        assert str(caught.value).startswith("the user 'ann' is connected to no node of the cluster; the request was never sent")
        async with connect("ubre+memory://one-bus-users", bus=page):
            await eventually(ann.online)
            assert await ann.request("payment.confirm", {"sum": 12}, returns=bool) is True
            assert await two.user("ann").request("payment.confirm", {"sum": 120}, returns=bool) is False
            async with ann.stream("numbers", 10) as items:
                assert [item async for item in items] == list(range(10))
            await ann.publish("build.done", 1)
            await two.user("ann").publish("build.done", 2)
            await eventually(lambda: sorted(told) == [1, 2])
            (there,) = await ann.peers()
            assert there.identity_key == "ann"
            assert await one.request("payment.confirm", {"sum": 1}, to=there) is True
            (listed,) = await one.present("build.done")
            assert listed.id == there.id
            await one.publish("build.done", 3, to=listed)
            await one.publish("build.done", 4, to=await one.present("build.done"))
            await eventually(lambda: sorted(told) == [1, 2, 3, 4])
            await one.notify("payment.confirm", {"sum": 1}, to=there)
            async with one.stream("numbers", 3, to=there) as items:
                assert [item async for item in items] == [0, 1, 2]
            with pytest.raises(TypeError, match="await bus.publish"):
                one.publish_nowait("build.done", 5, to=there)
            found = await one.nodes()
            assert found.complete and all(node.id and node.name for node in found)
            assert sorted(node.clients for node in found) == [0, 1]

        async def gone() -> bool:
            return not await ann.online()

        await eventually(gone)
        assert len(await one.present("build.done")) == 0


async def test_a_user_who_is_online_here_can_be_asked_at_all_nodes(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, page = Bus(cluster=engine.url), Bus(cluster=engine.url, authenticate=lambda handshake: "ann"), Bus()
    held, online = list[bytes](), list[bool]()
    page.handle("title")(lambda: "a page")

    async def ask() -> None:
        online.append(await two.user("ann").online())

    async with cluster(two, url=engine.url), two.serve("ubre+memory://one-bus-at-once"):
        (at_engine,) = engine.clients
        receive = at_engine.frames_received
        monkeypatch.setattr(at_engine, "frames_received", held.extend)
        async with connect("ubre+memory://one-bus-at-once", bus=page), anyio.create_task_group() as group:
            await eventually(lambda: any(frame.startswith(b"SUB") for frame in held))
            group.start_soon(ask)
            await eventually(lambda: any(frame.startswith(b"PING") for frame in held))
            assert not online
            monkeypatch.setattr(at_engine, "frames_received", receive)
            receive(held)
            await eventually(lambda: online == [True])
            async with cluster(one, url=engine.url):
                assert await one.user("ann").request("title") == "a page"


async def test_what_a_node_passes_on_to_its_clients_is_one_pattern_for_middleware(engine: NatsEngine) -> None:
    one, two = Bus(cluster=engine.url), Bus(cluster=engine.url, authenticate=lambda handshake: "ann")
    page, seen = Bus(), set[str | int]()

    @page.handle("numbers")
    async def numbers(n: int) -> AsyncIterator[int]:
        yield n

    @two.use
    async def note(message: Message, ctx: Context, call_next: CallNext) -> Any:
        seen.add(ctx.pattern)
        return await call_next(message)

    async with cluster(one, two, url=engine.url), two.serve("ubre+memory://one-bus-patterns"):
        async with connect("ubre+memory://one-bus-patterns", bus=page):
            ann = one.user("ann")
            await eventually(ann.online)
            for subject in ("page.0", "page.1", "page.2", "//1/2/3"):
                with pytest.raises(NoHandler):
                    await ann.request(subject)
            async with ann.stream("numbers", 7) as items:
                assert [item async for item in items] == [7]
    assert seen == {">"}


async def test_what_a_client_asks_goes_on_to_the_cluster_where_the_bus_forwards_it(engine: NatsEngine) -> None:
    gateway = Bus(
        cluster=engine.url,
        authenticate=lambda handshake: Identity("Ann", key="ann"),
        authorize=lambda peer, verb, subject: subject != "jobs.secret",
    )
    worker = Bus(cluster=engine.url)

    @worker.handle("jobs.who")
    async def who(context: Context) -> str:
        return str(context.identity.key)

    worker.handle("jobs.secret")(who)
    worker.handle("other")(who)
    gateway.forward("jobs.>")
    async with cluster(gateway, worker, url=engine.url), gateway.serve("ubre+memory://one-bus-gate"):
        async with connect("ubre+memory://one-bus-gate") as client:
            assert await client.request("jobs.who") == "ann"
            with pytest.raises(Forbidden):
                await client.request("jobs.secret")
            with pytest.raises(NoHandler):
                await client.request("other")


async def test_a_bus_whose_cluster_is_not_named_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYBUS_CLUSTER", raising=False)
    async with Bus(cluster="auto") as bus:
        assert [node.here for node in await bus.nodes()] == [True]
        assert not await bus.user("ann").online()
        async with bus.subscribe("a") as subscription:
            await bus.publish("a", 1)
            assert (await subscription.receive(BOUND)).body == 1
