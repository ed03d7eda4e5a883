"""Connections of uvicorn that are taken over after their upgrade: when, what is left of uvicorn, and what is not."""

import asyncio
import contextvars
import gc
from collections.abc import Callable, Generator, MutableMapping
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import httpx
import pytest
import websockets
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.streams import StreamReader

from polybus import Limits, connect
from polybus.bindings.http.uvicorn import PatientWebSockets
from polybus.events import LinkDown
from polybus.fastapi import attach
from polybus.plugins import Handshake
from polybus.transports._ws.transport import WebSocketTransport
from polybus.transports.asgi import _adoption
from polybus.transports.asgi._adoption import AdoptedConnection
from tests.integration.web.support import OverAsgi, both_loops, both_ways, echoing, running, served  # noqa: F401  # pytest finds the fixtures by their names here
from tests.support import eventually, next_event
from tests.unit.transports.support import UPGRADE, Raw

pytestmark = pytest.mark.native


QUESTION: Final = b'{"request": "echo", "id": 7, "body": 1}'
FRAME: Final = bytes((0x81, 0x80 | len(QUESTION))) + b"\0\0\0\0" + QUESTION  # masked with zeros
ANSWER: Final = b'\x81\x16{"success":7,"body":1}'


def attached(app: Any) -> Any:
    """The application, whose bus echoes."""
    attach(app, echoing())
    return app


def client(server: Any, **options: Any) -> Any:
    """A WebSocket without a bus."""
    return websockets.connect(f"ws://127.0.0.1:{server.port}/bus", **{"proxy": None, **options})


async def is_answered(socket: Any) -> bool:
    await socket.send(QUESTION.decode())
    return bool(await socket.recv() == '{"success":7,"body":1}')


def at(server: Any) -> str:
    return f"ubre+ws://127.0.0.1:{server.port}/bus"


def kinds(server: Any) -> set[type]:
    """Classes of the connections that uvicorn counts; those of a request last as long as the client keeps them."""
    return {type(connection) for connection in server.server_state.connections}


# -- what is left of uvicorn


@pytest.mark.parametrize("implementation", ["auto", "websockets-sansio", PatientWebSockets])
@pytest.mark.parametrize("parser", ["h11", "auto"])
async def test_a_connection_of_this_uvicorn_is_adopted_and_nothing_of_uvicorn_is_left(implementation: Any, parser: Any) -> None:
    app, bus = served()
    async with running(app, ws=implementation, http=parser) as server, connect(at(server)) as client:
        assert await client.request("echo", {"a": 1}) == {"a": 1}
        assert kinds(server) == {AdoptedConnection}
        await eventually(lambda: not server.server_state.tasks)

        def nothing_of_uvicorn_is_left() -> bool:
            gc.collect()
            return not any(issubclass(type(thing), WebSocketsSansIOProtocol) for thing in gc.get_objects())

        await eventually(nothing_of_uvicorn_is_left)
    assert server.server_state.connections == set()


async def test_compression_is_declined_where_a_connection_is_adopted_and_left_where_it_is_not(way: Any) -> None:
    app, _ = served()
    async with running(app, ws=way) as server:
        async with client(server, compression="deflate") as socket:
            names = [extension.name for extension in socket.protocol.extensions]
            assert names == ([] if way == "auto" else ["permessage-deflate"])
            assert await is_answered(socket)


@pytest.mark.parametrize(("ours", "theirs"), [(100_000, 5_000), (5_000, 100_000)])
async def test_the_smaller_limit_of_a_message_counts_that_of_the_bus_or_that_of_uvicorn(
    way: Any, ours: int, theirs: int
) -> None:
    app, _ = served(limits=Limits(message=ours))
    async with running(app, ws=way, ws_max_size=theirs) as server, client(server) as socket:
        await socket.send('"' + "x" * 4_998 + '"')
        assert await is_answered(socket)
        await socket.send("x" * 5_001)
        with pytest.raises(websockets.ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        if way != "auto" and ours < theirs:
            assert caught.value.rcvd.reason == "a frame of 5001 bytes, the limit is 5000 (Limits.message)"


async def test_what_uvicorn_counts_it_goes_on_counting(way: Any) -> None:
    app, bus = served()
    async with running(app, ws=way, limit_concurrency=3) as server, connect(at(server)), connect(at(server)):
        await eventually(lambda: len(bus.peers) == 2)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            assert (await http.get("/openapi.json")).status_code == 503


async def test_at_a_unix_socket_it_is_adopted_too(tmp_path: Path) -> None:
    app, _ = served()
    async with running(app) as server:
        protocol: Any = server.config.http_protocol_class
        listening = await asyncio.get_running_loop().create_unix_server(
            lambda: protocol(config=server.config, server_state=server.server_state, app_state=server.lifespan.state),
            str(tmp_path / "here"),
        )
        async with websockets.unix_connect(str(tmp_path / "here"), "ws://localhost/bus") as socket:
            assert await is_answered(socket)
            assert kinds(server) == {AdoptedConnection}
        listening.close()


# -- who sees frames, and who waits for the end


class Watcher:
    """A middleware that does something at the end of a connection."""

    def __init__(self, app: ASGIApp, told: list[str]) -> None:
        self._app = app
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        self._told.append("in")
        try:
            await self._app(scope, receive, send)
        finally:
            self._told.append("out")


class Reader(Watcher):
    """A middleware that looks at frames."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def looked_at() -> MutableMapping[str, Any]:
            message = await receive()
            self._told.append(message["type"])
            return message

        await self._app(scope, looked_at if scope["type"] == "websocket" else receive, send)


async def test_a_middleware_that_wraps_receive_sees_every_frame() -> None:
    app, _ = served()
    told: list[str] = []
    app.add_middleware(Reader, told=told)
    async with running(app) as server:
        async with client(server) as socket:
            assert await is_answered(socket)
            assert kinds(server) == {WebSocketsSansIOProtocol}
        await eventually(lambda: told == ["websocket.connect", "websocket.receive", "websocket.disconnect"])


def in_an_application() -> Any:
    app = attached(FastAPI())
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    app.add_middleware(GZipMiddleware)

    async def timed(request: Any, call: Any) -> Any:
        return await call(request)

    app.middleware("http")(timed)
    return app


def in_starlette() -> Any:
    return attached(Starlette())


def in_a_subclass() -> Any:
    class Deriving(BaseHTTPMiddleware):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)

    app = attached(Starlette())
    app.add_middleware(Deriving)
    return app


def mounted() -> Any:
    app = FastAPI()
    app.mount("/", attached(FastAPI()))
    return app


def wrapped_whole() -> Any:
    return Watcher(attached(FastAPI()), [])


@pytest.mark.parametrize(
    ("make", "returns"),
    [
        *((make, True) for make in (in_an_application, in_starlette)),
        *((make, False) for make in (in_a_subclass, mounted, wrapped_whole)),
    ],
)
async def test_the_call_returns_where_only_known_things_are_around_it(make: Callable[[], Any], returns: bool) -> None:
    async with running(make()) as server:
        async with connect(at(server)) as client:
            assert await client.request("echo", 1) == 1
            assert kinds(server) == {AdoptedConnection}
            # Its first answer is sent from the turn after the one in which the call would have returned.
            assert await client.request("echo", 2) == 2
            assert returns is (not server.server_state.tasks)
        await eventually(lambda: not server.server_state.tasks)
        await eventually(lambda: not server.server_state.connections)


async def test_what_arrived_while_reading_was_paused_is_handled_in_the_context_of_the_bus_whoever_resumes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, _ = served()
    visitor, heard = contextvars.ContextVar("visitor", default="nobody"), list[str]()
    usual = WebSocketTransport.data_received

    def data_received(self: WebSocketTransport, data: bytes) -> None:
        heard.append(visitor.get())
        usual(self, data)

    async with running(app) as server, client(server) as socket:
        assert await is_answered(socket)
        connections: set[Any] = server.server_state.connections
        [connection] = connections
        monkeypatch.setattr(WebSocketTransport, "data_received", data_received)
        connection._wire.pause_reading()
        connection.get_buffer(-1)[: len(FRAME)] = FRAME
        connection.buffer_updated(len(FRAME))
        visitor.set("somebody")
        connection._wire.resume_reading()
        assert (await socket.recv()).encode() == ANSWER[2:]
    assert heard[0] == "nobody"


async def test_a_call_that_the_server_cancels_cuts_the_connection() -> None:
    app, bus = served()
    told: list[str] = []
    app.add_middleware(Watcher, told=told)
    async with running(app) as server:
        async with client(server) as socket:
            await eventually(lambda: bus.peers)
            for task in server.server_state.tasks:
                task.cancel()
            with pytest.raises(websockets.ConnectionClosed) as caught:
                await socket.recv()
            assert caught.value.rcvd is None
        assert told == ["in", "out"]
        await eventually(lambda: not bus.peers)


# -- who is not adopted


@pytest.mark.filterwarnings("ignore:The `websockets` implementation", "ignore:websockets.", "ignore:remove second")
@pytest.mark.parametrize("implementation", ["wsproto", "websockets", OverAsgi])
async def test_with_another_implementation_of_uvicorn_the_connection_stays_with_it(implementation: Any) -> None:
    app, _ = served()
    async with running(app, ws=implementation) as server, connect(at(server)) as client:
        assert await client.request("echo", 1) == 1
        assert AdoptedConnection not in kinds(server)
        assert server.server_state.tasks


def _at_eof(reader: StreamReader) -> Generator[None, None, bool]:
    return (yield from _USUAL(reader))


_USUAL = StreamReader.at_eof


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (_adoption, "_USED", ("of_another_version",)),
        (_adoption, "_STREAM", ("of_another_version",)),
        (StreamReader, "at_eof", _at_eof),
    ],
    ids=["uvicorn", "the loop", "the parser of websockets"],
)
async def test_with_another_version_of_what_is_used_of_it_the_connection_stays_with_uvicorn(
    where: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, value)
    app, _ = served()
    async with running(app) as server, connect(at(server)) as client:
        assert await client.request("echo", 1) == 1
        assert kinds(server) == {WebSocketsSansIOProtocol}


@pytest.mark.parametrize("early", [len(FRAME), 2, 6, 1, 20], ids=["whole", "length", "header", "byte", "part"])
async def test_a_client_that_speaks_before_it_has_the_answer_is_served_and_stays_with_uvicorn(early: int) -> None:
    asked, decide = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Handshake) -> str:
        asked.set()
        await decide.wait()
        return "ann"

    app, _ = served(authenticate=authenticate)
    async with running(app) as server, await anyio.connect_tcp("127.0.0.1", server.port) as stream:
        raw = Raw(stream)
        await raw.send(UPGRADE)
        await asked.wait()
        connections: set[Any] = set(server.server_state.connections)
        heard = connections.pop().conn.reader
        fed = heard.feed_data
        arrived = anyio.Event()

        def feed(data: bytes) -> None:
            fed(data)
            arrived.set()

        heard.feed_data = feed
        await stream.send(FRAME[:early])
        await arrived.wait()
        decide.set()
        assert b" 101 " in await raw.until(b"\r\n\r\n")
        await raw.send(FRAME[early:] or FRAME)
        assert await raw.until(ANSWER)
        assert kinds(server) == {WebSocketsSansIOProtocol}


# -- how it ends


async def test_at_its_end_uvicorn_waits_for_the_answer_to_the_goodbye(way: Any) -> None:
    app, bus = served(limits=Limits(close_timeout=60))
    async with running(app, ws=way, lifespan="off") as server:
        events = bus.events()
        async with client(server) as socket:
            await eventually(lambda: bus.peers)
            for connection in list(server.server_state.connections):
                connection.shutdown()
            with pytest.raises(websockets.ConnectionClosed) as caught:
                await socket.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1012
        event = await next_event(events, LinkDown)
        assert event.code == 1012
        await eventually(lambda: not server.server_state.connections)


async def test_pings_are_those_of_the_limits_and_uvicorn_sends_none_any_more() -> None:
    app, bus = served(limits=Limits(ping_interval=3600, ping_timeout=3600))
    async with running(app, ws_ping_interval=0.01, ws_ping_timeout=0.01) as server:
        async with await anyio.connect_tcp("127.0.0.1", server.port) as stream, connect(at(server)) as other:
            await stream.send(UPGRADE)
            assert b" 101 " in await Raw(stream).until(b"\r\n\r\n")
            await eventually(lambda: len(bus.peers) == 2)
            for number in range(200):
                assert await other.request("echo", number) == number
            await stream.send(FRAME)
            assert await stream.receive() == ANSWER  # and no ping before it
