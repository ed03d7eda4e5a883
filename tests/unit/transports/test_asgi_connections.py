"""The transport under an ASGI server: slow peers, broken rules, ends of every kind."""

import logging
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trustme
import websockets
from starlette.testclient import TestClient

from polybus import Bus, Limits, connect
from polybus.events import LinkDown
from polybus.plugins import Handshake
from polybus.transports.asgi._adoption import AdoptedConnection
from polybus.transports.asgi._transport import AsgiTransport
from tests.integration.web.support import both_loops, both_ways, running, served  # noqa: F401  # pytest finds the fixtures by their names here
from tests.support import eventually, next_event
from tests.unit.transports.support import UPGRADE, Receiver
from tests.unit.transports.support import running as transport_host

pytestmark = pytest.mark.native


def plain(port: int, **options: Any) -> Any:
    return websockets.connect(f"ws://127.0.0.1:{port}/bus", **{"proxy": None, "compression": None, **options})


async def test_a_binary_frame_where_text_is_spoken_ends_the_connection_with_1003(way: Any) -> None:
    app, _ = served()
    async with running(app, ws=way) as server, plain(server.port) as socket:
        await socket.send(b"{}")
        with pytest.raises(websockets.ConnectionClosed, match="1003 .* a binary frame, but only text frames are accepted here"):
            await socket.recv()


def test_text_that_no_websocket_carries_is_malformed_like_any_other() -> None:
    app, _ = served()
    with TestClient(app) as client, client.websocket_connect("/bus") as socket:
        socket.send({"type": "websocket.receive", "text": '{"request": "\ud800", "id": 1}'})
        socket.send_json({"request": "echo", "id": 2, "body": "next"})
        assert socket.receive_json() == {"success": 2, "body": "next"}


@asynccontextmanager
async def stalling(server: Any, bus: Bus, asks: str = '{"subscribe": "news"}', peers: int = 1) -> AsyncIterator[Any]:
    """A WebSocket that has asked for something and reads no more."""
    async with plain(server.port) as socket:
        if asks:
            await socket.send(asks)
        await eventually(lambda: len(bus.peers) == peers)
        socket.transport.pause_reading()
        yield socket
        socket.transport.abort()


@pytest.mark.parametrize("how", ["close", "reset", "end"])
async def test_a_peer_that_leaves_is_gone_however_it_goes(way: Any, how: str) -> None:
    app, bus = served()
    async with running(app, ws=way) as server:
        events = bus.events()
        async with plain(server.port) as socket:
            await eventually(lambda: bus.peers)
            if how == "close":
                await socket.close(4000, "enough")
            elif how == "reset":
                raw = socket.transport.get_extra_info("socket")
                raw.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER
                socket.transport.abort()
            else:
                socket.transport.write_eof()
            event = await next_event(events, LinkDown)
        silence = "the peer closed the connection without a reason"
        expected = {
            "close": [(4000, "enough")],
            "reset": [(1006, silence), (1006, "connection reset by the peer")],  # asyncio hides it where it reads the end first
            "end": [(1006, silence)],
        }
        assert (event.code, event.reason) in expected[how]
        assert bus.peers == []


async def test_a_peer_that_reads_nothing_is_cut_after_the_write_timeout_and_the_others_are_served(way: Any) -> None:
    app, bus = served(limits=Limits(write_timeout=0.2, outbox_bytes=500_000))
    async with running(app, ws=way) as server:
        url = f"ubre+ws://127.0.0.1:{server.port}/bus"
        async with connect(url) as other, other.subscribe("news") as news, stalling(server, bus, peers=2):
            events = bus.events()
            body = os.urandom(50_000).hex()
            while len(bus.peers) == 2:
                await bus.publish("news", body)
                assert (await anext(news)).body == body
            event = await next_event(events, LinkDown)
            assert event.reason.startswith("write stalled: the peer accepted no data for 0.2 s")
            await eventually(lambda: len(server.server_state.connections) == 1)


async def test_a_peer_that_pings_and_reads_no_answer_is_cut_before_they_pile_up(way: Any) -> None:
    app, bus = served(limits=Limits(message=1000, outbox_bytes=10_000, frame_timeout=0.2))
    async with running(app, ws=way) as server, stalling(server, bus, "") as flooding:
        events = bus.events()
        ping = b"\x89\xfd\0\0\0\0" + b"x" * 125  # masked with zeros
        for _ in range(1000):
            if flooding.transport.is_closing():  # cut already
                break
            flooding.transport.write(ping * 100)
            await anyio.lowlevel.checkpoint()
        event = await next_event(events, LinkDown)
        reason = "more than 1000 empty frames in a second" if way == "auto" else "answers to pings"
        assert (event.code, reason in event.reason) == (1008, True)


@pytest.mark.parametrize("size", [1_000, 500_000])
async def test_where_the_socket_is_hidden_a_frame_has_the_time_that_its_size_takes_on_a_slow_line(size: int) -> None:
    taken = anyio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        taken.set()
        await anyio.sleep_forever()

    async with transport_host("asyncio", Limits(write_timeout=10.0)) as host, anyio.create_task_group() as group:
        names: Any = {"reads": frozenset({"text"}), "writes": "text"}
        transport = AsgiTransport("ws", "127.0.0.1:1", host, send, None, **names)
        receiver = Receiver(transport)
        transport.start(receiver)
        group.start_soon(transport.run, receive)
        transport.send(b"x" * size)
        await taken.wait()
        patience = 10.0 + size / 8192
        for now, goes_on in ((0.0, True), (patience - 0.1, True), (patience, False)):
            transport.tick(now)
            await anyio.wait_all_tasks_blocked()
            assert (receiver.why is None) is goes_on
        assert f"accepted no data for {patience:g} s" in str(receiver.why)


async def test_a_close_that_the_peer_does_not_read_is_cut_after_the_close_timeout(way: Any) -> None:
    app, bus = served(limits=Limits(close_timeout=0.1, outbox_bytes=300_000))
    async with running(app, ws=way) as server, stalling(server, bus):
        for _ in range(100):
            bus.publish_nowait("news", "x" * 100_000)
            await anyio.lowlevel.checkpoint()
        await bus.peers[0].aclose("enough")
        await eventually(lambda: not bus.stats().links)
        await eventually(lambda: not server.server_state.connections)


async def test_a_client_that_goes_while_it_is_being_authenticated_leaves_nothing(
    way: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked, decide = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Any) -> str:
        asked.set()
        await decide.wait()
        return "ann"

    app, bus = served(authenticate=authenticate, limits=Limits(handshakes=1))
    async with running(app, ws=way) as server:
        stream = await anyio.connect_tcp("127.0.0.1", server.port)
        await stream.send(UPGRADE)
        await asked.wait()
        await stream.aclose()
        await eventually(lambda: not server.server_state.connections)
        decide.set()
        await eventually(lambda: not server.server_state.tasks)
        assert bus.stats().links == 0
        async with connect(f"ubre+ws://127.0.0.1:{server.port}/bus") as client:
            assert await client.request("echo", 1) == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_with_a_certificate_of_the_server_it_is_wss(way: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    pem = tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    tls = ssl.create_default_context()
    authority.configure_trust(tls)
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> str:
        seen.append(handshake)
        return "somebody"

    app, bus = served(authenticate=authenticate)
    async with running(app, ws=way, ssl_certfile=pem, ssl_keyfile=pem) as server:
        url = f"ubre+wss://localhost:{server.port}/bus"
        async with connect(url, tls=tls, headers={"Origin": f"https://localhost:{server.port}"}) as client:
            assert await client.request("echo", "x" * 100_000) == "x" * 100_000
            assert bus.peers[0].transport == "wss"
            kinds: set[type] = {type(connection) for connection in server.server_state.connections}
            assert (AdoptedConnection in kinds) is (way == "auto")
    assert (seen[0].transport, seen[0].url) == ("wss", f"wss://127.0.0.1:{server.port}/bus")


async def test_small_messages_are_not_held_back_by_the_system(way: Any) -> None:
    app, bus = served()
    async with running(app, ws=way) as server, plain(server.port):
        await eventually(lambda: bus.peers)
        [connection] = server.server_state.connections
        raw = connection.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
