"""A bus that serves HTTP by itself, by uvicorn on asyncio and hypercorn on trio: who is let in, what is answered, TLS."""

import errno
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest
import trio
import trustme
from trio import _highlevel_serve_listeners

from polybus import Bus, Limits, LocalProtocolError, Unsupported, connect
from polybus.bindings.http.hypercorn import HypercornServer
from polybus.bindings.http.server import Application, turn_away
from polybus.plugins import WebRoute
from polybus.transports import sockets
from polybus.transports.asgi._transport import Receive, Scope, Send
from polybus.transports.upgrades import HandshakeRejected
from tests.loops import ASYNCIO, PARAMS, TRIO
from tests.refusal import refused
from tests.support import free_port, port_of

from .support import both_servers, read_all  # noqa: F401  # pytest finds the fixture by its name here
from .test_errai import Client, make_bus

HERE = "jrep+http://127.0.0.1:0"


on_uvicorn = pytest.mark.parametrize("anyio_backend", [PARAMS[ASYNCIO]], scope="module")
on_hypercorn = pytest.mark.parametrize("anyio_backend", [PARAMS[TRIO]], scope="module")


def base(listener: Any) -> str:
    return str(listener.url).removeprefix("jrep+")


@pytest.mark.parametrize("path", ["", "/", "/bus"])
@pytest.mark.parametrize("protocol", ["jrep", "uprotocol"])
async def test_the_url_of_a_listener_can_be_dialled_whatever_its_path(protocol: str, path: str) -> None:
    async with make_bus().serve(f"{protocol}+http://127.0.0.1:0{path}") as listener, connect(listener.url) as client:
        assert await client.request("echo", 1) == 1


async def test_an_errai_client_and_buses_of_ours_use_one_port() -> None:
    async with make_bus().serve(f"{HERE}/app") as listener:
        async with (
            connect(listener.url) as ours,
            connect(listener.url.replace("+http", "+ws")) as bare,
            httpx.AsyncClient(base_url=base(listener)) as http,
        ):
            assert await ours.request("echo", [1]) == [1]
            assert await bare.request("echo", [2]) == [2]
            errai = Client(http)
            finish = await errai.associate()
            assert finish["WebSocketURL"].endswith("/app/websocket.bus")
            await errai.post({"ToSubject": "echo", "Value": "v", "ReplyTo": "r:1:RespondTo:RPC"})
            assert (await errai.next())["Value"] == "v"
            assert len(listener.peers) == 3


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/elsewhere", 404, "only below /app"),
        ("POST", "/app/x/in.1.erraiBus", 404, "nothing is served"),
        ("POST", "/app/.erraiBus", 404, "nothing is served"),
        ("PUT", "/app/in.1.erraiBus", 405, "GET, POST"),
        ("POST", "/app/in.1.erraiBus", 415, "application/json"),
        ("GET", "/app", 404, "nothing is served"),
    ],
)
async def test_what_is_not_served_is_said_so(method: str, path: str, status: int, text: str) -> None:
    async with make_bus().serve(f"{HERE}/app") as listener:
        async with httpx.AsyncClient(base_url=base(listener).removesuffix("/app")) as http:
            answer = await http.request(method, path, params={"clientId": "1"})
            assert (answer.status_code, text in answer.text) == (status, True)
            assert "uvicorn" not in answer.headers.get("server", "")


async def test_https_needs_a_certificate_and_serves_with_it() -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    await refused(Bus().serve("jrep+https://127.0.0.1:0"), LocalProtocolError, match="https:// needs tls=")
    await refused(Bus().serve(HERE, tls=server), LocalProtocolError, match="use https")
    serving = make_bus()
    async with serving.serve("jrep+https://127.0.0.1:0", tls=server) as listener:
        for channel in ("poll", "events", "websocket"):
            async with connect(f"{listener.url}?channel={channel}", tls=client) as bus, bus.subscribe("news") as news:
                assert await bus.request("echo", channel) == channel
                await serving.publish("news", channel)
                assert (await anext(news)).body == channel


async def test_an_address_is_released_with_its_bus_and_can_be_taken_again() -> None:
    url = f"jrep+http://127.0.0.1:{free_port()}"
    for _ in range(2):
        async with make_bus().serve(url), connect(url) as client:
            assert await client.request("echo", 1) == 1
            await refused(make_bus().serve(url), OSError, match="already in use")


async def test_without_the_server_s_package_it_says_what_to_install(
    anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, binding = ("uvicorn", "uvicorn") if anyio_backend_name == "asyncio" else ("hypercorn.config", "hypercorn")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"polybus.bindings.http.{binding}", raising=False)
    await refused(Bus().serve(HERE), Unsupported, match="pip install")


@on_uvicorn
async def test_who_says_nothing_is_cut_off() -> None:
    bus = make_bus(limits=Limits(handshake_timeout=0.1, close_timeout=0.05))
    async with bus.serve(HERE) as listener:
        async with await anyio.connect_tcp("127.0.0.1", port_of(listener.url)) as stream:
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()


@on_uvicorn
async def test_who_sends_what_is_no_http_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with make_bus().serve(HERE) as listener:
        for _ in range(30):
            async with await anyio.connect_tcp("127.0.0.1", port_of(listener.url)) as stream:
                await stream.send(b"\x00\xff garbage\r\n\r\n")
                await read_all(stream)
    assert len(caplog.records) <= 10


@asynccontextmanager
async def answering(app: Any) -> AsyncIterator[anyio.abc.SocketStream]:
    """A connection to an application that takes what is posted."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with anyio.create_task_group() as group:
            options: Any = SimpleNamespace(
                host=SimpleNamespace(limits=Limits(), spawn=group.start_soon, time=anyio.current_time), tls=None
            )
            server = HypercornServer(Application("/", [WebRoute("", app, ("POST",))]), options)
            await server.start([listening.dup()], "here")
            async with await anyio.connect_tcp("127.0.0.1", listening.getsockname()[1]) as stream:
                yield stream
            await server.aclose()


async def test_without_file_descriptors_accepting_pauses_in_a_few_lines_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [50]

    def failing(accept: Any) -> Any:
        def instead(listening: Any) -> Any:
            if failures[0]:
                failures[0] -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(listening)

        return instead

    monkeypatch.setattr(sockets, "_PAUSE", 0.001)
    monkeypatch.setattr(_highlevel_serve_listeners, "SLEEP_TIME", 0.001)
    async with make_bus().serve(HERE) as listener:
        for listening in (socket.socket, trio.SocketListener):
            monkeypatch.setattr(listening, "accept", failing(listening.accept))
        async with connect(f"{listener.url}?channel=poll") as client:
            assert await client.request("echo", 1) == 1
    assert failures == [0]
    written = [record for record in caplog.records if "accept" in record.getMessage()]
    assert 1 <= len(written) <= 3
    assert not any(record.exc_info for record in written)


@on_hypercorn
async def test_a_connection_ends_with_an_answer_that_left_its_body_unread() -> None:
    sent = anyio.Event()

    async def too_large(scope: Scope, receive: Receive, send: Send) -> None:
        await sent.wait()
        await anyio.wait_all_tasks_blocked()  # hypercorn has read as much as it ever will
        await turn_away(send, HandshakeRejected(413, "too large"))

    async with answering(too_large) as stream:
        await stream.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" + b" " * 800_000)
        sent.set()
        assert (await read_all(stream)).startswith(b"HTTP/1.1 413 ")


@on_hypercorn
async def test_no_more_than_eight_kibibytes_are_parsed_between_two_turns_of_the_others() -> None:
    parts: list[int] = []

    async def measure(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["more_body"]:
            parts.append(len(message["body"]))
        await turn_away(send, HandshakeRejected(400, "read"))

    async with answering(measure) as stream:
        await stream.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" + b" " * 900_000)
        assert (await stream.receive()).startswith(b"HTTP/1.1 400 ")
    assert sum(parts) == 900_000
    assert max(parts) <= 8 * 1024
