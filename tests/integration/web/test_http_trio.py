"""HTTP on trio: our client, and a bus alone, which hypercorn serves there."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest
import trustme

from polybus import Bus, Limits, Unsupported, connect
from polybus.bindings.http.hypercorn import HypercornServer
from polybus.bindings.http.listener import Application
from polybus.bindings.http.server import turn_away
from polybus.plugins import WebRoute
from polybus.transports._ws.asgi import Receive, Scope, Send
from polybus.transports._ws.policy import HandshakeRejected
from tests.support import BOUND

from .test_errai import make_bus

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """All others of this folder are on asyncio."""
    return "trio", {}


@pytest.mark.parametrize("channel", ["poll", "events", "websocket"])
async def test_requests_and_publications_go_both_ways(channel: str) -> None:
    bus = make_bus()
    with anyio.fail_after(BOUND):
        async with bus.serve("jrep+http://127.0.0.1:0") as listener:
            async with connect(f"{listener.url}?channel={channel}") as client, client.subscribe("news", queue=200) as news:
                assert await client.request("echo", [1, {"a": None}]) == [1, {"a": None}]
                for number in range(100):
                    await bus.publish("news", number)
                assert [(await anext(news)).body for _ in range(100)] == list(range(100))
                assert await client.request("com.acme.Calculator:RPC.add:java.lang.Integer:java.lang.Integer:", [2, 3]) == 5


@pytest.mark.parametrize("path", ["", "/", "/bus"])
@pytest.mark.parametrize("protocol", ["jrep", "uprotocol"])
async def test_the_url_of_a_listener_can_be_dialled_whatever_its_path(protocol: str, path: str) -> None:
    with anyio.fail_after(BOUND):
        async with make_bus().serve(f"{protocol}+http://127.0.0.1:0{path}") as listener, connect(listener.url) as client:
            assert await client.request("echo", 1) == 1


async def test_what_is_not_served_is_said_so_and_tls_is_there() -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    with anyio.fail_after(BOUND):
        async with make_bus().serve("jrep+https://127.0.0.1:0", tls=server) as listener:
            async with httpx.AsyncClient(base_url=listener.url.removeprefix("jrep+"), verify=client) as http:
                answer = await http.get("/elsewhere")
                assert (answer.status_code, "nothing is served" in answer.text) == (404, True)
            async with connect(listener.url, tls=client) as bus:
                assert await bus.request("echo", "secret") == "secret"


@asynccontextmanager
async def answering(app: Any) -> AsyncIterator[anyio.abc.SocketStream]:
    """A connection to an application that takes what is posted."""
    with anyio.fail_after(BOUND), socket.create_server(("127.0.0.1", 0)) as listening:
        async with anyio.create_task_group() as group:
            options: Any = SimpleNamespace(host=SimpleNamespace(limits=Limits(), spawn=group.start_soon), tls=None)
            server = HypercornServer(Application("/", [WebRoute("", app, ("POST",))]), options)
            await server.start([listening.dup()])
            async with await anyio.connect_tcp("127.0.0.1", listening.getsockname()[1]) as stream:
                yield stream
            server.close()


async def test_a_connection_ends_with_an_answer_that_left_its_body_unread() -> None:
    sent, answer = anyio.Event(), b""

    async def too_large(scope: Scope, receive: Receive, send: Send) -> None:
        await sent.wait()
        await anyio.wait_all_tasks_blocked()  # hypercorn has read as much as it ever will
        await turn_away(send, HandshakeRejected(413, "too large"))

    async with answering(too_large) as stream:
        await stream.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" + b" " * 800_000)
        sent.set()
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            while True:
                answer += await stream.receive()
    assert answer.startswith(b"HTTP/1.1 413 ")


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


async def test_an_address_is_released_with_its_bus() -> None:
    url = "jrep+http://127.0.0.1:0"
    with anyio.fail_after(BOUND):
        for _ in range(2):
            async with make_bus().serve(url) as listener, connect(listener.url) as client:
                url = listener.url
                assert await client.request("echo", 1) == 1


async def test_without_hypercorn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypercorn.config", None)
    monkeypatch.delitem(sys.modules, "polybus.bindings.http.hypercorn", raising=False)
    with pytest.raises(Unsupported, match="pip install hypercorn"):
        async with Bus().serve("jrep+http://127.0.0.1:0"):
            pass
