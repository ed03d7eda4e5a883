"""Bad inputs on the wire, against real listeners: what happens, and that nobody else notices."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import websockets.exceptions

from polybus.limits import Limits
from tests.loops import both_backends  # noqa: F401
from tests.support import BOUND
from tests.vectors.bad_inputs import HANDSHAKES, LENGTHS, WEBSOCKET

from .support import Host, Receiver, Server, dial, opened, raw_peer, running, serving


@asynccontextmanager
async def undisturbed(host: Host, url: str) -> AsyncIterator[Server]:
    """A server whose good client is answered before and after."""
    async with serving(host, url, echo=True, reads=frozenset({"text", "binary"})) as server:
        good = await dial(host, server.url)
        good.transport.send(b"before")
        await good.received(1)
        yield server
        good.transport.send(b"after")
        assert await good.received(2) == [b"before", b"after"]


@pytest.mark.parametrize("name", LENGTHS)
async def test_bad_lengths(anyio_backend: Any, name: str) -> None:
    bad = LENGTHS[name]
    async with running(anyio_backend) as host, undisturbed(host, "tcp://127.0.0.1:0") as server:
        async with opened(server) as (raw, there):
            if bad.code is None:
                await raw.send(bad.sent + b"\0\0\0\1!")
                assert await there.received(1) == [b"!"]
                return
            await raw.send(bad.sent)
            if bad.then == "end":
                await raw.stream.send_eof()
            elif bad.then == "silence":
                await time_passes(host, there)
            assert (await raw.rest())[:4] in (b"", b"\xff\x43\x4c\x4f")
            await raw.stream.aclose()
            why = await there.end()
            assert (why.code, there.frames) == (bad.code, [])
            assert bad.says in why.reason


async def time_passes(host: Host, there: Receiver) -> None:
    """The time for a whole frame, after the part of one that has come."""
    await until_partial(there)
    now = host.time()
    there.transport.tick(now)
    there.transport.tick(now + 9.9)
    assert there.why is None
    there.transport.tick(now + 10)


async def until_partial(there: Receiver) -> None:
    with anyio.fail_after(BOUND):
        while not there.transport._framer.partial:  # type: ignore[attr-defined]
            await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize(("url", "empty"), [("tcp://127.0.0.1:0", "00000000"), ("ws://127.0.0.1:0/bus", "898000000000")])
async def test_a_flood_of_empty_frames_or_pings_ends_the_connection(anyio_backend: Any, url: str, empty: str) -> None:
    async with running(anyio_backend) as host, undisturbed(host, url) as server:
        host.hold()
        async with opened(server) as (raw, there):
            await raw.send(bytes.fromhex(empty) * 1001)
            assert b"more than 1000 empty frames" in await raw.rest()
            await raw.stream.aclose()
            assert (await there.end()).code == 1008


async def test_as_many_empty_frames_in_more_time_are_none(anyio_backend: Any) -> None:
    async with running(anyio_backend, Limits(empty_frames=10)) as host, undisturbed(host, "tcp://127.0.0.1:0") as server:
        async with opened(server) as (raw, there):
            for second in range(1, 4):
                await raw.send(b"\0\0\0\0" * 8 + b"\0\0\0\1x")
                await there.received(second)
                there.transport.tick(host.time() + second)
            there.transport.close()


@pytest.mark.parametrize("name", WEBSOCKET)
async def test_bad_websocket_frames(anyio_backend: Any, name: str) -> None:
    bad = WEBSOCKET[name]
    async with running(anyio_backend) as host, undisturbed(host, "ws://127.0.0.1:0/bus") as server:
        async with opened(server) as (raw, there):
            await raw.send(bad.sent)
            if bad.then == "silence":
                await until_partial(there)
                now = host.time()
                there.transport.tick(now)
                there.transport.tick(now + 10)
            answer = await raw.rest()
            await raw.stream.aclose()
            assert answer[:2] == b"\x88\0" if bad.code == 1000 else int.from_bytes(answer[2:4]) == bad.code
            assert (await there.end()).code == bad.code
            assert there.frames == []


@pytest.mark.parametrize("name", HANDSHAKES)
async def test_bad_handshakes(anyio_backend: Any, name: str) -> None:
    bad = HANDSHAKES[name]
    code = bad.code
    if code == 431 and not hasattr(websockets.exceptions, "TooManyHeaders"):
        code = 400  # websockets 15
    limits = Limits(handshake_timeout=0.1) if bad.then == "silence" else Limits()
    async with running(anyio_backend) as good, running(anyio_backend, limits) as host:
        async with undisturbed(good, "ws://127.0.0.1:0/bus"), serving(host, "ws://127.0.0.1:0/") as server:
            async with raw_peer(server) as raw:
                await raw.send(bad.sent)
                assert (await raw.rest()).split(b" ")[1:2] == ([] if code is None else [b"%d" % code])
            await server.gate.until(lambda: server.gate.gone == 1)
            assert server.gate.handshakes == []
