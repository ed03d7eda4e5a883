"""The broker with our own buses on both sides."""

import contextlib
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
import trustme

from polybus import Backoff, Broker, Bus, Context, Handshake, Identity, Limits, connect
from polybus.broker import ClientJoined, ClientLeft, ServerJoined, ServerLeft
from polybus.errors import ConnectFailed, Disconnected, Forbidden, LocalProtocolError, Unauthorized, Unavailable
from tests.refusal import refused
from tests.support import BOUND, eventually
from tests.unit.answering import Gated

from .raw import raw_peer

TCP, WS = "csb+tcp://127.0.0.1:0", "csb+ws://127.0.0.1:0/game"
BACKOFF = Backoff(initial=0.001, maximum=0.02)


def server_bus(name: str) -> Bus:
    bus = Bus()
    bus.handle("who")(lambda: name)
    return bus


@asynccontextmanager
async def running(*servers: str, **options: Any) -> AsyncIterator[tuple[Broker, list[Bus]]]:
    """A broker with servers, by the query of their URL."""
    async with Broker(WS, TCP, **options) as broker, AsyncExitStack() as stack:
        buses = [server_bus(query) for query in servers]
        for bus, query in zip(buses, servers, strict=True):
            await stack.enter_async_context(connect(broker.server_urls[0] + query, bus=bus, backoff=BACKOFF))
        # A connection stands for us before the broker has taken it.
        await eventually(lambda: broker.stats().sockets == sum(bus.stats().links for bus in buses))
        yield broker, buses


def client_of(broker: Broker, **options: Any) -> Any:
    return connect(broker.client_urls[0], backoff=BACKOFF, **options)


@asynccontextmanager
async def _client_when(broker: Broker, *, sockets: int, **options: Any) -> AsyncIterator[Bus]:
    """A client that comes when the broker has so many connections of servers."""
    await eventually(lambda: broker.stats().sockets == sockets)
    async with client_of(broker, **options) as client:
        yield client


async def test_a_client_chooses_its_server_by_a_header_or_a_member_of_the_query() -> None:
    async with running("&server=A", "&server=B") as (broker, _):
        for _ in range(3):
            async with client_of(broker, headers={"x-csb-server": "B"}) as client:
                assert await client.request("who") == "&server=B"
            async with connect(broker.client_urls[0] + "?x-csb-server=A") as client:
                assert await client.request("who") == "&server=A"


async def test_a_server_with_an_id_knows_who_its_clients_are() -> None:
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> str | None:
        seen.append(handshake)
        return "ann" if handshake.params.get("authorization") == "Bearer good" else None

    async with Broker(WS, TCP) as broker:
        bus = Bus(authenticate=authenticate)

        @bus.handle("me")
        async def me(ctx: Context) -> Any:
            return ctx.identity

        async with connect(broker.server_urls[0] + "&server=A", bus=bus):
            url = broker.client_urls[0] + "?table=7"
            async with connect(url, headers={"authorization": "Bearer good"}) as client:
                assert await client.request("me") == "ann"
            async with connect(url, headers={"authorization": "Bearer bad"}) as client:
                with pytest.raises(Unauthorized):
                    await client.request("me")
        assert seen[0].params == {"table": "7", "path": "/game", "authorization": "Bearer good"}
        assert seen[0].address.startswith("127.0.0.1:")


async def test_the_end_of_one_socket_of_a_pool_closes_only_the_clients_on_it() -> None:
    async with running("&pool=3") as (broker, (bus,)), AsyncExitStack() as stack:
        assert broker.stats().sockets == 3
        clients = [await stack.enter_async_context(client_of(broker)) for _ in range(6)]
        await eventually(lambda: len(bus.peers) == 6)
        link = next(iter(bus._services.running.links))
        assert link.transport is not None
        assert len(link.peers) == 2
        link.transport.close(1000, "one of three")
        await eventually(lambda: sum(client.stats().reconnects for client in clients) == 2)
        assert [await client.request("who") for client in clients] == ["&pool=3"] * 6  # to the same server
        assert sum(client.stats().reconnects for client in clients) == 2


async def test_a_pool_that_does_not_come_about_leaves_nothing_behind() -> None:
    async with Broker(WS, TCP, limits=Limits(peers=2)) as broker:
        bus = server_bus("A")
        url = broker.server_urls[0] + "&server=A&pool="
        await refused(connect(f"{url}3", bus=bus), ConnectFailed, match="2 connections are open")
        await eventually(lambda: broker.stats().sockets == 0)
        with pytest.raises(LocalProtocolError):
            await bus.wait_closed()
        async with connect(f"{url}2", bus=bus):
            assert bus.stats().links == broker.stats().sockets == 2


async def test_a_server_that_leaves_drains_and_its_clients_go_to_another() -> None:
    async with running("&server=B") as (broker, _):
        leaving = server_bus("A")
        slow = Gated(leaving, "slow")
        async with anyio.create_task_group() as group, AsyncExitStack() as stack:
            server = connect(broker.server_urls[0] + "&server=A", bus=leaving)
            await server.__aenter__()
            client = await stack.enter_async_context(client_of(broker))
            while await client.request("who") != "A":
                client = await stack.enter_async_context(client_of(broker))
            reply = client.request("slow", "done")
            await eventually(lambda: slow.inside)
            group.start_soon(server.__aexit__, None, None, None)
            await eventually(lambda: not leaving.ready)
            slow.go.set()
            assert await reply == "done"
            await eventually(lambda: "A" not in broker.stats().server_clients)
            answers: list[str] = []
            while not answers:
                with contextlib.suppress(Disconnected):
                    answers.append(await client.request("who"))
            assert answers == ["&server=B"]


async def test_a_broker_that_drains_lets_running_requests_finish_and_takes_no_new_ones() -> None:
    async with running("&server=A") as (broker, (bus,)):
        slow = Gated(bus, "slow")
        async with client_of(broker) as client, anyio.create_task_group() as group:
            reply = client.request("slow", "done")
            await eventually(lambda: slow.inside)
            group.start_soon(broker.drain, 4.0)
            with pytest.raises(Unavailable, match="the broker is shutting down"):
                while True:
                    assert await client.request("who") == "&server=A"
            assert not reply.done()
            slow.go.set()
            assert await reply == "done"
            await eventually(lambda: not broker.stats().clients)


async def test_a_broker_that_drains_waits_no_longer_than_it_is_told_for_an_answer_that_does_not_come() -> None:
    async with running("&server=A") as (broker, (bus,)):
        bus.handle("never")(anyio.sleep_forever)
        async with client_of(broker) as client:
            reply = client.request("never")
            await eventually(lambda: bus.stats().running == 1)
            await broker.drain(0.1)
            with pytest.raises(Disconnected, match="the broker is shutting down"):
                await reply


async def test_a_server_that_does_not_read_holds_back_its_own_clients_only() -> None:
    async with Broker(WS, TCP) as broker:
        port = int(broker.server_urls[0].split(":")[2].split("?")[0])
        stuck = socket.create_connection(("127.0.0.1", port))
        await eventually(lambda: broker.stats().sockets == 1)
        async with client_of(broker) as of_stuck:
            await eventually(lambda: broker.stats().clients == 1)
            async with connect(broker.server_urls[0], bus=server_bus("good")), _client_when(broker, sockets=2) as client:
                assert await client.request("who") == "good"
                while not broker.stats().clients_paused:
                    with anyio.move_on_after(0.01):
                        await of_stuck.notify(7, b"x" * 60_000)
                    assert await client.request("who") == "good"
                before = broker.stats().frames_to_servers_total
                assert await client.request("who") == "good"
                assert broker.stats().frames_to_servers_total - before < 10
            stuck.close()


async def test_what_happens_is_told_and_counted() -> None:
    async with Broker(WS, TCP, metrics="http://127.0.0.1:0") as broker:
        events = broker.events()
        async with connect(broker.server_urls[0] + "&server=A", bus=server_bus("A")):
            async with client_of(broker) as client:
                await client.request("who")
                assert broker.metrics_url is not None
                async with httpx.AsyncClient(timeout=BOUND) as browser:
                    page = await browser.get(broker.metrics_url)
                assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
                assert 'clients{server="A"} 1.0' in page.text
            await eventually(lambda: broker.stats().clients == 0)
        await eventually(lambda: broker.stats().sockets == 0)
        told = [await anext(events) for _ in range(4)]
        assert [type(event) for event in told] == [ServerJoined, ClientJoined, ClientLeft, ServerLeft]
    assert [event async for event in events] == []


async def test_leaving_the_broker_ends_everything_and_it_may_be_entered_again() -> None:
    broker = Broker(TCP, TCP, metrics="http://127.0.0.1:0")
    for _ in range(2):
        async with broker, connect(broker.server_urls[0], bus=server_bus("A"), backoff=Backoff(attempts=1)):
            async with _client_when(broker, sockets=1) as client:
                assert await client.request("who") == "A"
        assert broker.client_urls == broker.server_urls == ()
    await broker.aclose()


async def test_waiting_for_the_end() -> None:
    broker = Broker(TCP, TCP)
    with pytest.raises(LocalProtocolError, match="not running"):
        await broker.wait_closed()
    async with broker, anyio.create_task_group() as group:
        group.start_soon(broker.wait_closed)
        with pytest.raises(LocalProtocolError, match="has already been entered"):
            await broker.__aenter__()
        await anyio.wait_all_tasks_blocked()
        await broker.aclose()


async def test_over_tls_on_one_side() -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    here, there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    certificate.configure_cert(here)
    authority.configure_trust(there)
    async with Broker("csb+wss://127.0.0.1:0/game", TCP, tls=here) as broker:
        async with connect(broker.server_urls[0], bus=server_bus("A")), _client_when(broker, sockets=1, tls=there) as client:
            assert await client.request("who") == "A"


async def test_strangers_are_asked_who_they_are() -> None:
    def nobody(handshake: Handshake) -> None:
        raise Forbidden("not here")

    async with Broker(WS, WS, authenticate=lambda handshake: "ann", authenticate_servers=nobody) as broker:
        await refused(connect(broker.server_urls[0]), Forbidden)


async def test_who_has_expired_is_closed_on_both_sides() -> None:
    options: dict[str, Any] = {"limits": Limits(ping_interval=0.05)}

    def here(handshake: Handshake) -> Identity:
        return Identity("me", expires_at=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.1))

    async with Broker(TCP, TCP, authenticate=here, **options) as broker, raw_peer(broker.server_urls[0]) as server:
        await eventually(lambda: broker.stats().sockets)
        async with raw_peer(broker.client_urls[0]) as client:
            assert (await client.ended()).code == 4401
            assert (await server.receive())[8:10] == "d0"
            assert (await server.receive())[8:10] == "e0"
    async with Broker(TCP, TCP, authenticate_servers=here, **options) as broker, raw_peer(broker.server_urls[0]) as server:
        assert (await server.ended()).code == 4401
        await eventually(lambda: broker.stats().sockets == 0)


async def test_what_a_client_says_of_itself_need_not_be_unicode() -> None:
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> str:
        seen.append(handshake)
        return "ann"

    async with Broker(WS, TCP) as broker, connect(broker.server_urls[0] + "&server=A", bus=Bus(authenticate=authenticate)):
        port = int(broker.client_urls[0].split(":")[2].split("/")[0])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(
                b"GET /game?name=%FF HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Authorization: Bearer \xff\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                b"Sec-WebSocket-Version: 13\r\n\r\n".replace(b"%d", b"%d" % port)
            )
            assert (await stream.receive()).startswith(b"HTTP/1.1 101")
            await eventually(lambda: seen)
        assert seen[0].params["path"] == "/game"


def test_a_server_behind_a_broker_does_not_listen() -> None:
    with pytest.raises(LocalProtocolError, match="the bus is a client of this protocol"):
        Bus().serve("csb+tcp://127.0.0.1:0?side=broker-server")


@pytest.mark.parametrize("insecure", [False, True])
async def test_a_broker_without_authenticate_refuses_who_comes_through_a_proxy(insecure: bool) -> None:
    async with Broker("csb+ws://127.0.0.1:0", TCP, insecure=insecure) as broker:
        with contextlib.nullcontext() if insecure else pytest.raises(Forbidden):
            async with connect(broker.client_urls[0], headers={"x-forwarded-for": "203.0.113.7"}):
                pass


PUBLIC = "csb+tcp://0.0.0.0:0"


@pytest.mark.parametrize(
    ("clients", "servers", "options", "error", "said"),
    [
        ("ubre+tcp://127.0.0.1:0", TCP, {}, ValueError, "a broker requires csb"),
        (TCP, "csb+tcp://127.0.0.1:0?side=broker-server", {}, ValueError, "with which a server connects"),
        ((), TCP, {}, ValueError, "requires an address"),
        ("127.0.0.1", TCP, {}, ValueError, "is not a bus URL"),
        (PUBLIC, TCP, {}, LocalProtocolError, "can be reached from other machines"),
        (TCP, PUBLIC, {}, LocalProtocolError, "can be reached from other machines"),
        (TCP, WS, {"tls": ssl.create_default_context()}, LocalProtocolError, "no address is tls://"),
        (TCP, TCP, {"metrics": "http://0.0.0.0:9100"}, LocalProtocolError, r"127\.0\.0\.1"),
        (TCP, TCP, {"metrics": "9100"}, ValueError, "http://127"),
    ],
)
def test_what_a_broker_cannot_be_is_told_at_once(
    clients: Any, servers: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Broker(clients, servers, **options)
    if PUBLIC in (clients, servers):
        Broker(clients, servers, insecure=True)


async def test_authenticate_of_a_broker_ends_when_its_client_has_left() -> None:
    begun, cancelled = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Handshake) -> bool:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return True

    async with Broker(TCP, TCP, authenticate=authenticate) as broker:
        async with raw_peer(broker.client_urls[0]):
            await begun.wait()
        with anyio.fail_after(5):  # before `Limits.handshake_timeout`
            await cancelled.wait()
        admissions = broker._gates[0]._admissions
        await eventually(lambda: not (admissions.handshakes or admissions.networks))
