"""`authenticate` ends when its client has left, and the handshake's place is free: over HTTP, and in an application."""

import json
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import product
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from websockets.frames import Frame, Opcode

from polybus import Bus, Handshake, Limits, connect
from polybus.fastapi import attach
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.support import eventually, port_of
from tests.unit.bus.test_pending_connections import WAYS, Door

from .support import OverAsgi, echoing
from .support import running as under_uvicorn
from .test_events import event
from .test_hypercorn import running as under_hypercorn

CROWD = 50
PATIENT = Limits(handshake_timeout=3600, peers=CROWD, peers_per_address=CROWD, handshakes=CROWD)


def posted(path: str, content: bytes, media: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


EVENT = b'{"specversion":"1.0","id":"0192d2f8-5b6d-7000-8000-00805f9b34fb","source":"//h/client/1/news#Data","type":"pub.v1"}'
UPGRADE = (
    b"GET /bus HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
REQUESTS = {
    "jrep": posted("/bus/out.7.erraiBus?clientId=7", b'[{"ToSubject":"ServerBus","CommandType":"ConnectToQueue"}]'),
    "uprotocol": posted("/bus", EVENT, "application/cloudevents+json"),
    "uprotocol, options": b"OPTIONS /bus HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "ubre": UPGRADE,
}


@asynccontextmanager
async def served(bus: Bus, server: str, protocol: str, backend: str, *middleware: Any) -> AsyncIterator[int]:
    if server == "own":
        async with bus.serve(f"{protocol}+http://127.0.0.1:0/bus") as listener:
            yield port_of(listener.url)
        return
    app = FastAPI(middleware=middleware)
    attach(app, bus, protocol=protocol)
    if server == "hypercorn":
        async with under_hypercorn(app, backend) as port:
            yield port
    else:
        if backend != "asyncio":
            pytest.skip("uvicorn runs on asyncio")
        async with under_uvicorn(app, ws=OverAsgi if server == "uvicorn, asgi" else "auto") as running:
            yield running.port


def gate_of(bus: Bus) -> Any:
    (gate,) = bus._parts.links.gates
    return gate


def is_free(bus: Bus) -> bool:
    admissions = gate_of(bus)._admissions
    return not (admissions.handshakes or admissions.networks or gate_of(bus)._waiting)


SERVED = [
    *((server, asked) for server in ("own", "uvicorn", "hypercorn") for asked in ("jrep", "uprotocol", "uprotocol, options")),
    *((server, "ubre") for server in ("uvicorn", "uvicorn, asgi", "hypercorn")),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("server", "asked"), SERVED)
async def test_a_crowd_that_leaves_at_once_makes_room_and_is_never_a_peer(
    server: str, asked: str, way: str, anyio_backend: tuple[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    door = Door()
    bus = Bus(authenticate=door, limits=PATIENT)
    async with served(bus, server, asked.partition(",")[0], anyio_backend[0]) as port:
        socks = [await anyio.to_thread.run_sync(socket.create_connection, ("127.0.0.1", port)) for _ in range(CROWD)]
        for sock in socks:
            sock.sendall(REQUESTS[asked])
        await eventually(lambda: door.begun == CROWD)
        for sock in socks:
            WAYS[way](sock)
        await eventually(lambda: door.ended == CROWD and is_free(bus))
        door.open.set()
        wire = "ws" if asked == "ubre" else "http"
        async with connect(f"{asked.partition(',')[0]}+{wire}://127.0.0.1:{port}/bus") as client:
            await client.notify("hello", 1)
            await eventually(lambda: len(bus.peers) == 1)
        for sock in socks:
            sock.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("size", [0, 10_000, 100_000])
@pytest.mark.parametrize("server", ["own", "hypercorn"])
async def test_a_body_that_arrives_while_its_client_is_authenticated_is_read_whole(
    server: str, size: int, anyio_backend: tuple[str, Any]
) -> None:
    door = Door()
    bus = echoing(authenticate=door, limits=PATIENT)
    sent = posted("/bus", json.dumps(event(filler="x" * size)).encode(), "application/cloudevents+json")
    async with served(bus, server, "uprotocol", anyio_backend[0]) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(sent[:300])
            await eventually(lambda: door.begun == 1)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.send, sent[300:])
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
                door.open.set()
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")


class Generated:
    """A middleware whose `receive` has ended once it is cancelled."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def received() -> AsyncGenerator[Any]:
            while True:
                yield await receive()

        async with aclosing(received()) as messages:
            await self.app(scope, messages.__anext__, send)


@pytest.mark.parametrize("protocol", ["jrep", "uprotocol", "ubre"])
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
async def test_a_middleware_whose_receive_ends_when_it_is_cancelled_serves_clients(
    server: str, protocol: str, anyio_backend: tuple[str, Any]
) -> None:
    async def turns(body: bytes) -> bytes:
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        return body

    bus = Bus(authenticate=lambda handshake: turns(b"yes"))
    bus.handle("turns")(turns)
    async with served(bus, server, protocol, anyio_backend[0], Middleware(Generated)) as port:
        async with connect(f"{protocol}+{'ws' if protocol == 'ubre' else 'http'}://127.0.0.1:{port}/bus") as client:
            assert await client.request("turns", b"hi", returns=bytes) == b"hi"


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
async def test_a_middleware_that_awaits_after_receiving_loses_nothing_of_a_body(
    server: str, anyio_backend: tuple[str, Any]
) -> None:
    async def let_in(handshake: Handshake) -> bool:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        return True

    async def through(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    bus, turns = echoing(authenticate=let_in), 0
    sent = posted("/bus", json.dumps(event(filler="x" * 1000)).encode(), "application/cloudevents+json")
    async with served(bus, server, "uprotocol", anyio_backend[0], Middleware(BaseHTTPMiddleware, through)) as port:
        for turns, end in product(range(8), (300, len(sent))):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                for part in (sent[:end], sent[end:]):
                    await stream.send(part)
                    await anyio.lowlevel.checkpoint()
                with anyio.fail_after(5):
                    assert (await stream.receive()).startswith(b"HTTP/1.1 200"), (turns, end)


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("way", ["auto", OverAsgi])
async def test_what_a_client_sends_before_its_upgrade_is_accepted_is_handled_in_order(
    way: Any, stays: bool, anyio_backend: tuple[str, Any]
) -> None:
    if anyio_backend[0] != "asyncio":
        pytest.skip("uvicorn runs on asyncio")
    door, heard = Door(), list[int]()
    bus = Bus(authenticate=door, limits=PATIENT)
    bus.on("news", inline=True)(lambda body: heard.append(body))
    app = FastAPI()
    attach(app, bus)
    async with under_uvicorn(app, ws=way) as running:
        async with await anyio.connect_tcp("127.0.0.1", running.port) as stream:
            frames = [Frame(Opcode.TEXT, b'{"publish":"news","body":%d}' % number).serialize(mask=True) for number in range(5)]
            await stream.send(UPGRADE)  # uvicorn drops what arrives together with it
            await eventually(lambda: door.begun == 1)
            await stream.send(b"".join(frames))
            if stays:
                door.open.set()
                await eventually(lambda: heard == list(range(5)))
            else:
                await stream.aclose()
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert stays or not door.ended  # it is still decided about
        door.open.set()
        await eventually(lambda: door.ended == 1 and is_free(bus))
