"""Connections that `authenticate` is still deciding about when the bus drains, closes or stops to listen."""

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trustme
from anyio.streams.tls import TLSStream
from websockets.frames import Frame, Opcode

from polybus import Bus, ConnectFailed, Handshake, Limits, Listener, connect
from polybus._core.bus import dialer
from polybus.events import LinkUp
from polybus.transports.postmessage import MessageChannel, PortTransport
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.raw import CLOSING
from tests.support import BOUND, eventually, port_of

PATIENT = Limits(handshake_timeout=3600)

ENDS: dict[str, Callable[[Bus], Any] | None] = {"aclose": Bus.aclose, "drain": Bus.drain, "leave": None}


@pytest.mark.native
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("transport", ["tcp", "unix", "ws", "http", "memory"])
async def test_a_client_is_refused_at_once_when_the_bus_ends_before_it_is_authenticated(
    transport: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "_GRACE", 4.0)  # however slow this machine is; the refusal ends it
    monkeypatch.setattr(dialer, "_LONGEST_GRACE", 4.0)
    asked, cancelled = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Handshake) -> bool:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return True

    patient = Limits(handshake_timeout=3600)
    bus, failures = Bus(authenticate=authenticate, limits=patient), list[str]()
    urls = {"tcp": "ubre+tcp://127.0.0.1:0", "unix": f"ubre+unix://{tmp_path}/s", "ws": "ubre+ws://127.0.0.1:0/"}
    urls |= {"http": "jrep+http://127.0.0.1:0/", "memory": "ubre+memory://pending"}

    async def client(url: str) -> None:
        with pytest.raises(ConnectFailed) as caught:
            async with connect(url, limits=patient):
                pass
        failures.append(str(caught.value))

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as clients:
            async with AsyncExitStack() as stack:
                listener = await stack.enter_async_context(bus.serve(urls[transport]))
                clients.start_soon(client, listener.url)
                await asked.wait()
                if (leave := ENDS[end]) is not None:
                    await leave(bus)
            await cancelled.wait()
    (told,) = failures
    assert "this server accepts no clients" in told


@pytest.mark.native
async def test_a_server_for_http_ends_with_its_bus_although_a_websocket_was_open() -> None:
    """hypercorn's task for pings outlives its WebSocket."""
    bus = Bus(limits=Limits(close_timeout=3600, ping_interval=3600))
    bus.handle("who")(lambda: "server")
    with anyio.fail_after(BOUND):
        async with bus.serve("jrep+http://127.0.0.1:0/") as listener, connect(listener.url) as client:
            assert await client.request("who") == "server"


async def test_a_connection_is_refused_while_the_address_is_released_and_the_bus_goes_on() -> None:
    asked = anyio.Event()

    async def authenticate(handshake: Handshake) -> bool:
        if handshake.query:
            return True
        asked.set()
        await anyio.sleep_forever()
        return True

    bus = Bus(authenticate=authenticate, limits=Limits(handshake_timeout=3600))

    async def client(url: str) -> None:
        with pytest.raises(ConnectFailed, match="this server accepts no clients"):
            async with connect(url):
                pass

    with anyio.fail_after(BOUND):
        async with bus.serve("ubre+memory://stays") as stays, anyio.create_task_group() as clients:
            async with bus.serve("ubre+ws://127.0.0.1:0/") as listener:
                clients.start_soon(client, listener.url)
                await asked.wait()
            async with connect(f"{stays.url}?in=1"):
                assert bus.ready


@pytest.mark.native
@pytest.mark.parametrize("end", ["drain", "leave"])
async def test_a_client_in_its_tls_handshake_is_refused_once_the_listener_has_ended(end: str) -> None:
    authority, limits = trustme.CA(), Limits(handshake_timeout=3600)
    here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(here)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(there)
    bus = Bus(limits=limits)
    with anyio.fail_after(BOUND):
        async with bus.serve("ubre+memory://goes-on"), AsyncExitStack() as stack, anyio.create_task_group() as group:
            async with bus.serve("ubre+tls://127.0.0.1:0", tls=here) as listener:
                stream = await anyio.connect_tcp("127.0.0.1", int(listener.url.rpartition(":")[2]))
                await stack.enter_async_context(stream)
                while not listener._gate._admissions.handshakes:  # until it is accepted
                    await anyio.lowlevel.checkpoint()
                if end == "drain":
                    group.start_soon(bus.drain)
                    while bus.ready:
                        await anyio.lowlevel.checkpoint()
            tls = await TLSStream.wrap(stream, hostname="127.0.0.1", ssl_context=there, standard_compatible=False)
            await tls.send(b'\0\0\0\x18{"request":"x","id":"1"}')
            assert b"this server accepts no clients" in await tls.receive()
            assert not listener.peers


class Door:
    """An `authenticate` that lets everyone in once it is open, and counts."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.open = anyio.Event()

    async def __call__(self, handshake: Handshake) -> bool:
        self.begun += 1
        try:
            await self.open.wait()
        finally:
            self.ended += 1
        return True


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for a server and for its clients."""
    authority = trustme.CA()
    here, there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(here)
    authority.configure_trust(there)
    return here, there


def is_free(listener: Listener) -> bool:
    admissions = listener._gate._admissions
    return not (admissions.handshakes or admissions.networks)


def nothing_told(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.levelno >= logging.INFO]


@pytest.mark.native
@pytest.mark.parametrize("transport", ["tcp", "unix", "tls", "ws", "wss", "memory", "port"])
async def test_authenticate_ends_when_its_client_has_left_and_the_place_is_free(
    transport: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = contexts() if transport in ("tls", "wss") else (None, None)
    ports, places = MessageChannel(), {"unix": f"{tmp_path}/s", "memory": "left"}
    place = places.get(transport, "127.0.0.1:0")
    served: Any = PortTransport(ports.port1) if transport == "port" else f"ubre+{transport}://{place}"

    async def client(url: str) -> None:
        if transport == "port":  # `connect` says goodbye only to an end that has greeted it
            ports.port2.on_message(lambda data: None)
            ports.port2.post('\0hi {"v":1,"protocol":"ubre"}')
            try:
                await anyio.sleep_forever()
            finally:
                ports.port2.post("\0bye 1001 gone")
        async with connect(url, limits=PATIENT, tls=there):
            await anyio.sleep_forever()

    door = Door()
    bus = Bus(authenticate=door, limits=PATIENT)
    async with bus.serve(served, tls=here, protocol="ubre" if transport == "port" else None) as listener:
        async with anyio.create_task_group() as clients:
            clients.start_soon(client, listener.url)
            await eventually(lambda: door.begun == 1)
            clients.cancel_scope.cancel()
        await eventually(lambda: door.ended == 1 and is_free(listener))
        assert not bus.peers
    assert nothing_told(caplog)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WAYS: dict[str, Callable[[socket.socket], None]] = {
    "close": socket.socket.close,
    "reset": reset,
    "half-close": lambda sock: sock.shutdown(socket.SHUT_WR),
}


@pytest.mark.native
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transport", ["tcp", "ws"])
async def test_a_crowd_that_leaves_at_once_makes_room_and_is_never_a_peer(
    transport: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    door, crowd = Door(), 200
    bus = Bus(authenticate=door, limits=Limits(handshake_timeout=3600, peers=crowd, peers_per_address=crowd, handshakes=crowd))
    async with bus.serve(f"ubre+{transport}://127.0.0.1:0") as listener:
        there = ("127.0.0.1", port_of(listener.url))
        socks = [await anyio.to_thread.run_sync(socket.create_connection, there) for _ in range(crowd)]
        for sock in socks:
            sock.sendall(UPGRADE if transport == "ws" else b"")
        await eventually(lambda: door.begun == crowd)
        events = bus.events()
        for sock in socks:
            WAYS[way](sock)
        await eventually(lambda: door.ended == crowd and is_free(listener))
        door.open.set()
        async with connect(listener.url):
            await eventually(lambda: len(bus.peers) == 1)
        for sock in socks:
            sock.close()
    assert [type(event) async for event in events].count(LinkUp) == 1
    assert nothing_told(caplog)


async def test_a_client_that_only_says_goodbye_and_stays_is_cut_after_the_close_timeout() -> None:
    bus = Bus(authenticate=Door(), limits=Limits(handshake_timeout=3600, close_timeout=0.05))
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener:
        async with await anyio.connect_tcp("127.0.0.1", port_of(listener.url)) as stream:
            await stream.send(struct.pack("!IHH", CLOSING, 1000, 0))
            await eventually(lambda: is_free(listener))


def leave(sock: socket.socket) -> None:
    if isinstance(sock, ssl.SSLSocket):
        sock.setblocking(False)
        with suppress(ssl.SSLWantReadError):  # after its own goodbye, it waits for the server's
            sock.unwrap()
    sock.shutdown(socket.SHUT_WR)  # to close it with something unread, such as a session ticket, would reset the connection


@pytest.mark.native
@pytest.mark.parametrize("outcome", ["heard", "refused", "stopped"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "later"])
@pytest.mark.parametrize("transport", ["tcp", "tls"])
async def test_a_client_that_publishes_and_leaves_while_it_is_authenticated_loses_nothing_and_leaves_nothing(
    transport: str, at_once: bool, outcome: str, anyio_backend: tuple[str, dict[str, Any]]
) -> None:
    """uvloop drops what it has decrypted, or still has to, for a paused reader if the connection ends meanwhile."""
    drops = anyio_backend == ("asyncio", {"use_uvloop": True}) and transport == "tls" and not at_once
    least = 0 if outcome != "heard" else 50 if drops else 100
    here, there = contexts()
    door, heard = Door(), list[int]()

    async def authenticate(handshake: Handshake) -> bool:
        return await door(handshake) and outcome == "heard"

    bus = Bus(authenticate=authenticate, limits=PATIENT)
    bus.on("news", inline=True)(lambda body: heard.append(body))
    frames = [b'{"publish":"news","body":%d}' % number for number in range(100)]
    data = [len(frame).to_bytes(4) + frame for frame in frames]

    def arrive(port: int) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", port))
        sock = there.wrap_socket(sock, server_hostname="127.0.0.1") if transport == "tls" else sock
        sock.sendall(b"".join(data if at_once else data[:50]))
        if at_once:
            leave(sock)
        return sock

    async with bus.serve(f"ubre+{transport}://127.0.0.1:0", tls=here if transport == "tls" else None) as listener:
        sock = await anyio.to_thread.run_sync(arrive, port_of(listener.url))
        await eventually(lambda: door.begun == 1)
        if not at_once:
            sock.sendall(b"".join(data[50:]))
            leave(sock)
        if outcome != "stopped":
            door.open.set()
            await eventually(lambda: is_free(listener))
        await eventually(lambda: len(heard) >= least)
    sock.close()
    assert is_free(listener)
    assert heard == list(range(len(heard) if least else 0))


@pytest.mark.native
@pytest.mark.parametrize("transport", ["tcp", "ws"])
async def test_what_a_client_sends_while_it_is_authenticated_is_handled_in_order_and_does_not_pile_up(transport: str) -> None:
    door, heard = Door(), list[int]()
    bus = Bus(authenticate=door, limits=PATIENT)
    bus.on("news", inline=True)(lambda body: heard.append(body["n"]))
    frames = [b'{"publish":"news","body":{"n":%d,"text":"%s"}}' % (number, b"x" * 8000) for number in range(4000)]
    if transport == "ws":
        data = [UPGRADE, *(Frame(Opcode.TEXT, frame).serialize(mask=True) for frame in frames)]
    else:
        data = [len(frame).to_bytes(4) + frame for frame in frames]
    async with bus.serve(f"ubre+{transport}://127.0.0.1:0") as listener, anyio.create_task_group() as group:
        async with await anyio.connect_tcp("127.0.0.1", port_of(listener.url)) as stream:
            await stream.send(b"".join(data[:2]))
            await eventually(lambda: door.begun == 1)
            group.start_soon(stream.send, b"".join(data[2:]))
            (pending,) = bus._parts.links.gates[listener._gate]._arrivals  # type: ignore[attr-defined]  # of a stream wire
            await eventually(lambda: pending.unread)
            for _ in range(1000):  # turns in which it could read on
                await anyio.lowlevel.checkpoint()
            assert len(pending.unread) <= 128 * 1024
            door.open.set()
            await eventually(lambda: len(heard) == len(frames))
    assert heard == list(range(len(frames)))


@pytest.mark.native
async def test_authenticate_that_cannot_be_cancelled_lets_nobody_in_who_has_left() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), anyio.Event()

    def look_up() -> bool:
        begun.set()
        return may_end.wait(BOUND)

    async def authenticate(handshake: Handshake) -> bool:
        try:
            return await anyio.to_thread.run_sync(look_up)
        finally:
            ended.set()

    bus = Bus(authenticate=authenticate, limits=PATIENT)
    with anyio.fail_after(BOUND):
        async with bus.serve("ubre+tcp://127.0.0.1:0") as listener:
            sock = socket.create_connection(("127.0.0.1", port_of(listener.url)))
            await eventually(begun.is_set)
            events = bus.events()
            sock.close()
            await eventually(lambda: is_free(listener))
            may_end.set()
            await ended.wait()
        assert not [event async for event in events if isinstance(event, LinkUp)]


@pytest.mark.native
async def test_a_client_that_leaves_when_authenticate_has_answered_is_a_peer_that_left_or_never_was() -> None:
    """Whatever comes first in that turn of the event loop."""
    socks: dict[int, socket.socket] = {}

    async def authenticate(handshake: Handshake) -> bool:
        port = int(handshake.address.rpartition(":")[2])
        while port not in socks:
            await anyio.lowlevel.checkpoint()
        if port % 2:
            socks[port].close()
            return True
        reset(socks[port])
        await anyio.lowlevel.checkpoint()
        return True

    bus = Bus(authenticate=authenticate, limits=PATIENT)
    with anyio.fail_after(BOUND):
        async with bus.serve("ubre+tcp://127.0.0.1:0") as listener:
            for _ in range(20):
                sock = socket.create_connection(("127.0.0.1", port_of(listener.url)))
                socks[sock.getsockname()[1]] = sock
            await eventually(lambda: all(sock.fileno() < 0 for sock in socks.values()))
            await eventually(lambda: is_free(listener) and not bus.peers)
