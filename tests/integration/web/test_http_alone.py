"""A bus that serves HTTP by itself: who is let in, what is answered elsewhere, TLS, and the end."""

from __future__ import annotations

import ssl
import sys
from contextlib import suppress
from typing import Any

import anyio
import httpx
import pytest
import trustme

from polybus import Bus, Limits, LocalProtocolError, Unsupported, connect
from tests.support import BOUND

from .test_errai import Client, make_bus

pytestmark = pytest.mark.anyio


def base(listener: Any) -> str:
    return str(listener.url).removeprefix("jrep+")


async def test_an_errai_client_and_buses_of_ours_use_one_port() -> None:
    bus = make_bus()
    with anyio.fail_after(BOUND):
        async with bus.serve("jrep+http://127.0.0.1:0/app") as listener:
            assert listener.url.startswith("jrep+http://127.0.0.1:")
            websocket = listener.url.replace("+http", "+ws")
            async with (
                connect(listener.url) as ours,
                connect(websocket) as bare,
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
    async with make_bus().serve("jrep+http://127.0.0.1:0/app") as listener:
        async with httpx.AsyncClient(base_url=base(listener).removesuffix("/app")) as http:
            answer = await http.request(method, path, params={"clientId": "1"})
            assert (answer.status_code, text in answer.text) == (status, True)
            assert "uvicorn" not in answer.headers.get("server", "")


async def test_https_needs_a_certificate_and_serves_with_it() -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    with pytest.raises(LocalProtocolError, match="https:// needs tls="):
        async with Bus().serve("jrep+https://127.0.0.1:0"):
            pass
    with pytest.raises(LocalProtocolError, match="use https"):
        async with Bus().serve("jrep+http://127.0.0.1:0", tls=server):
            pass
    with anyio.fail_after(BOUND):
        async with make_bus().serve("jrep+https://127.0.0.1:0", tls=server) as listener:
            for channel in ("poll", "events", "websocket"):
                async with connect(f"{listener.url}?channel={channel}", tls=client) as bus:
                    assert await bus.request("echo", channel) == channel


async def test_an_address_is_released_and_can_be_taken_again() -> None:
    url = "jrep+http://127.0.0.1:0"
    for _ in range(2):
        bus = make_bus()
        async with bus.serve(url) as listener, connect(listener.url) as client:
            url = listener.url
            assert await client.request("echo", 1) == 1
            with pytest.raises(OSError, match="already in use"):
                async with make_bus().serve(url):
                    pass


async def test_who_says_nothing_is_cut_off() -> None:
    bus = make_bus(limits=Limits(handshake_timeout=0.1, close_timeout=0.05))
    with anyio.fail_after(BOUND):
        async with bus.serve("jrep+http://127.0.0.1:0") as listener:
            async with await anyio.connect_tcp("127.0.0.1", int(listener.url.rpartition(":")[2])) as stream:
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()


async def test_without_uvicorn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "polybus.bindings.http.uvicorn", raising=False)
    with pytest.raises(Unsupported, match="pip install"):
        async with Bus().serve("jrep+http://127.0.0.1:0"):
            pass


async def test_an_open_address_needs_authenticate() -> None:
    with pytest.raises(LocalProtocolError, match="lets everybody in"):
        Bus().serve("jrep+http://0.0.0.0:0")


async def test_who_sends_what_is_no_http_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with make_bus().serve("jrep+http://127.0.0.1:0/app") as listener:
        port = httpx.URL(base(listener)).port
        assert port is not None
        with anyio.fail_after(BOUND):
            for _ in range(30):
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    await stream.send(b"\x00\xff garbage\r\n\r\n")
                    with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                        while True:
                            await stream.receive()
    assert len(caplog.records) <= 10
