"""Strangers who connect and say nothing do not keep others out."""

import ssl
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx
import pytest
import trustme

from polybus import Bus, ConnectFailed, Limits, connect
from polybus.protocols.uprotocol import IdFactory
from polybus.transports._stream.listen import AdmissionSlot, StreamListener
from tests.loops import both_backends  # noqa: F401
from tests.refusal import refused
from tests.support import eventually

from .support import UPGRADE, client_tls

LIMITS = Limits(handshakes=5, handshake_timeout=60.0, close_timeout=0.1)


@pytest.mark.parametrize("scheme", ["ws", "wss", "tls"])
async def test_silent_strangers_make_room_for_who_speaks_the_oldest_first(
    scheme: str, authority: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    bus = Bus(limits=LIMITS)
    ours, theirs = (None, None) if scheme == "ws" else (server_tls, client_tls(authority))
    async with AsyncExitStack() as stack, bus.serve(f"ubre+{scheme}://127.0.0.1:0", tls=ours) as listener:
        crowd, admissions = [], listener._gate._admissions
        for count in range(1, 6):
            crowd.append(
                await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", urlsplit(listener.url).port or 0))
            )
            await eventually(lambda count=count: admissions.handshakes == count)  # type: ignore[misc]
        for _ in range(3):
            async with connect(listener.url, tls=theirs):
                await eventually(lambda: len(listener.peers) == 1)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await crowd[0].receive()
        await eventually(lambda: admissions.handshakes == 4)  # who was let in has left a place
        assert admissions.networks == {"127.0.0.1": 4}
        for stream in crowd[1:]:
            with anyio.move_on_after(0) as scope:
                await stream.receive()
            assert scope.cancelled_caught
        for stream in crowd:
            await stream.aclose()
        await eventually(lambda: admissions.handshakes == 0)
        assert admissions.networks == {}


def test_of_the_silent_ones_those_of_a_host_with_many_ipv6_addresses_make_room() -> None:
    given_up: list[str] = []
    listener: Any = SimpleNamespace(silent={}, options=SimpleNamespace(gate=SimpleNamespace(left=lambda address: None)))
    for address in ("10.0.0.1:1", "[2001:db8::1]:1", "[2001:db8::2]:1"):
        AdmissionSlot(listener, address, partial(given_up.append, address))
    assert StreamListener._make_room(listener)
    assert given_up == ["[2001:db8::1]:1"]


async def test_who_waits_for_authenticate_is_not_sent_away_for_others() -> None:
    go, asked = anyio.Event(), 0

    async def authenticate(handshake: Any) -> str:
        nonlocal asked
        asked += 1
        await go.wait()
        return "ann"

    bus = Bus(limits=LIMITS, authenticate=authenticate)
    entered = 0

    async def enter(url: str) -> None:
        nonlocal entered
        async with connect(url):
            entered += 1
            await eventually(lambda: entered == 5)

    async with bus.serve("ubre+ws://127.0.0.1:0") as listener, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(enter, listener.url)
        await eventually(lambda: asked == 5)
        await refused(connect(listener.url), ConnectFailed, match="handshakes are under way")
        go.set()
    assert entered == 5


@pytest.mark.parametrize("limits", [Limits(peers=8), Limits(peers_per_address=8)], ids=["in all", "of one address"])
@pytest.mark.parametrize("wire", ["uprotocol", "jrep"])
async def test_a_peer_over_http_that_asks_for_nothing_gives_way_where_there_are_too_many(
    wire: str, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polybus._core.bus.acceptor._IDLE", 0.0)
    bus = Bus(limits=limits)

    @bus.handle("echo")
    async def echo(body: int) -> int:
        return body

    event = {"ce-specversion": "1.0", "ce-type": "pub.v1", "ce-dataschema": "/x", "content-type": "application/json"}
    associate = b'[{"ToSubject":"ServerBus","CommandType":"Associate","RemoteServices":"ClientBus"}]'
    ids = IdFactory()
    async with bus.serve(f"{wire}+http://127.0.0.1:0/bus") as server, bus.serve("ubre+ws://127.0.0.1:0/bus") as page:
        url = server.url.partition("+")[2].partition("?")[0]
        async with httpx.AsyncClient(verify=False) as http:
            for number in range(20):
                if wire == "jrep":
                    path = f"/out.c{number}.erraiBus?z=1&clientId=c{number}&phase=connection"
                    posted = await http.post(url + path, content=associate, headers={"content-type": "application/json"})
                    http.cookies.clear()
                else:
                    source = f"//e{number}.x/app/1/t.a#M"
                    posted = await http.post(url, content=b"1", headers=event | {"ce-id": ids.next(), "ce-source": source})
                assert posted.is_success, posted.text
        await eventually(lambda: len(bus.peers) <= 8)
        async with connect(page.url) as client:
            assert await client.request("echo", 1) == 1
        async with connect(server.url) as client:
            assert await client.request("echo", 2) == 2


async def test_a_client_that_leaves_tls_after_a_bad_frame_keeps_no_place(
    authority: trustme.CA, server_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    async with bus.serve("ubre+wss://127.0.0.1:0/bus", tls=server_tls) as listener:
        host, _, port = listener.url.partition("://")[2].partition("/")[0].partition(":")
        read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_tls(authority).wrap_bio(read, written, server_hostname=host)
        async with await anyio.connect_tcp(host, int(port)) as stream:
            while True:
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    break
                await stream.send(written.read())
                read.write(await stream.receive())
            client.write(UPGRADE + b"\xf1\x80\0\0\0\0")
            with suppress(ssl.SSLWantReadError):
                client.unwrap()
            await stream.send(written.read())  # at once
            await eventually(lambda: "reserved bits" in caplog.text and not bus.stats().links)
    assert "asyncio" not in {record.name for record in caplog.records}
