"""Connections that `authenticate` is still deciding about when the bus drains, closes or stops to listen."""

import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trustme
from anyio.streams.tls import TLSStream

from polybus import Bus, ConnectFailed, Handshake, Limits, connect
from polybus._core.bus import dialer
from tests.loops import every_loop  # noqa: F401
from tests.support import BOUND

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
