"""Bad inputs on the wire, from the shared vectors, against real listeners: what happens, and that nobody else notices."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus.limits import Limits
from polybus.plugins import Closed
from tests.support import BOUND

from .support import Host, Raw, Receiver, Server, dial, raw_peer, running, serving

pytestmark = pytest.mark.anyio

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((Path(__file__).parents[2] / "vectors" / "bad_inputs.json").read_text())["cases"]
}
LENGTHS = [name for name, case in CASES.items() if case["transport"] == "tcp-length-prefix"]
FRAMES = [name for name, case in CASES.items() if case["transport"] == "websocket-raw"]
HANDSHAKES = [name for name, case in CASES.items() if case["transport"] == "websocket-handshake"]

UPGRADE = (
    b"GET /bus HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
COMPRESSED = bytes.fromhex("c2850000000001020304 05".replace(" ", ""))
WORDS = {
    "tcp-008": b"\0\0\0\x40" + b"x" * 64,
    "ws-014": bytes.fromhex("02810000000061") + bytes.fromhex("008000000000") * 5000,
    "ws-015": COMPRESSED * 400,
}


def bytes_of(case: dict[str, Any]) -> bytes:
    """The input; a unit in words stands for what `WORDS` has."""
    given = case["input"]
    if case["id"] in WORDS:
        return WORDS[case["id"]]
    if given["kind"] == "hex":
        value: str = given["value"]
        return bytes.fromhex(value)
    if given["kind"] == "text":
        text: str = given["value"]
        return text.encode()
    repeated: str = given["prefix"] + given["unit"] * given["count"] + given["suffix"]
    return repeated.encode()


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


async def bad_peer(server: Server) -> Receiver:
    return await server.gate.peer(1)


def test_the_vectors_are_there() -> None:
    assert len(LENGTHS) >= 8
    assert len(FRAMES) >= 12
    assert len(HANDSHAKES) >= 3


@pytest.mark.parametrize("name", LENGTHS)
async def test_bad_lengths(anyio_backend: Any, name: str) -> None:
    case = CASES[name]
    effect = case["expected"]["effect"]
    async with running(anyio_backend) as host, undisturbed(host, "tcp://127.0.0.1:0") as server:
        async with raw_peer(server) as raw:
            there = await bad_peer(server)
            data = bytes_of(case)
            if name == "tcp-008":
                for i in range(len(data)):
                    await raw.send(data[i : i + 1])
                    await anyio.wait_all_tasks_blocked()
                    there.transport.tick(host.time() + i * 0.1)
                assert await there.received(1) == [b"x" * 64]
            elif effect == "accept":
                await raw.send(data + b"\0\0\0\1!")
                assert await there.received(1) == [b"!"]
            else:
                await raw.send(data)
                await ended(host, raw, there, case)
                assert there.frames == []


async def ended(host: Host, raw: Raw, there: Receiver, case: dict[str, Any]) -> None:
    if "FIN" in case.get("setup", ""):
        await raw.stream.send_eof()
    elif case["expected"]["effect"] == "close_after_timeout":
        await until_partial(there)
        now = host.time()
        there.transport.tick(now)
        there.transport.tick(now + 9.9)
        assert there.why is None
        there.transport.tick(now + 10)
    assert (await raw.rest())[:4] in (b"", b"\xff\x43\x4c\x4f")
    await raw.stream.aclose()
    why = await there.end()
    texts = {"too_large": "the limit is 1048576", "truncated": "truncated: 10 of 100 bytes", "frame_timeout": "within 10 s"}
    assert texts[case["expected"]["error"]] in why.reason
    if case["id"] == "tcp-006":
        assert "looks like HTTP" in why.reason


async def until_partial(there: Receiver) -> None:
    with anyio.fail_after(BOUND):
        while not there.transport._framer.partial:  # type: ignore[attr-defined]
            await anyio.wait_all_tasks_blocked()


async def test_a_frame_that_drips_is_cut(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, undisturbed(host, "tcp://127.0.0.1:0") as server:
        async with raw_peer(server) as raw:
            there = await bad_peer(server)
            now = host.time()
            for byte in b"\0\0\0\x40xx":
                await raw.send(bytes([byte]))
                await until_partial(there)
                there.transport.tick(now)
                now += 5
            assert (await raw.rest())[:4] == b"\xff\x43\x4c\x4f"
            await raw.stream.aclose()
            assert "less than 5120 bytes came within 10 s" in (await there.end()).reason


async def test_a_flood_of_empty_frames_ends_the_connection(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, undisturbed(host, "tcp://127.0.0.1:0") as server:
        host.hold()
        async with raw_peer(server) as raw:
            there = await bad_peer(server)
            await raw.send(b"\0\0\0\0" * 1001)
            assert b"more than 1000 empty frames" in await raw.rest()
            await raw.stream.aclose()
            assert (await there.end()).code == 1008


async def test_as_many_empty_frames_in_more_time_are_none(anyio_backend: Any) -> None:
    async with running(anyio_backend, Limits(empty_frames=10)) as host, undisturbed(host, "tcp://127.0.0.1:0") as server:
        async with raw_peer(server) as raw:
            there = await bad_peer(server)
            for second in range(1, 4):
                await raw.send(b"\0\0\0\0" * 8 + b"\0\0\0\1x")
                await there.received(second)
                there.transport.tick(host.time() + second)
            there.transport.close()


@pytest.mark.parametrize("name", FRAMES)
async def test_bad_websocket_frames(anyio_backend: Any, name: str) -> None:
    case = CASES[name]
    effect = case["expected"]["effect"]
    async with running(anyio_backend) as host, undisturbed(host, "ws://127.0.0.1:0/bus") as server:
        async with raw_peer(server) as raw:
            await raw.send(UPGRADE)
            await raw.until(b"\r\n\r\n")
            there = await bad_peer(server)
            await raw.send(bytes_of(case))
            if effect == "close_after_timeout":
                await until_partial(there)
                now = host.time()
                there.transport.tick(now)
                there.transport.tick(now + 10)
                code = 1002
            elif name == "ws-015":
                # Compression is off, so the first compressed frame is a reserved bit.
                code = 1002
            else:
                code = int(effect.removeprefix("close_"))
            answer = await raw.rest()
            await raw.stream.aclose()
            assert answer[:2] == b"\x88\0" if code == 1000 else answer[2:4] == code.to_bytes(2, "big")
            assert (await there.end()).code == code
            assert there.frames == []


async def test_a_flood_of_pings_ends_the_connection(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, undisturbed(host, "ws://127.0.0.1:0/bus") as server:
        host.hold()
        async with raw_peer(server) as raw:
            await raw.send(UPGRADE)
            await raw.until(b"\r\n\r\n")
            there = await bad_peer(server)
            await raw.send(bytes.fromhex("898000000000") * 1001)
            assert b"more than 1000 empty frames" in await raw.rest()
            await raw.stream.aclose()
            assert (await there.end()).code == 1008


@pytest.mark.parametrize("name", HANDSHAKES)
async def test_bad_handshakes(anyio_backend: Any, name: str) -> None:
    case = CASES[name]
    effect = case["expected"]["effect"]
    limits = Limits(handshake_timeout=0.1) if effect == "close_after_timeout" else Limits()
    async with running(anyio_backend) as good, running(anyio_backend, limits) as host:
        async with undisturbed(good, "ws://127.0.0.1:0/bus"), serving(host, "ws://127.0.0.1:0/") as server:
            async with raw_peer(server) as raw:
                await raw.send(bytes_of(case))
                answer = await raw.rest()
                if effect == "close_after_timeout":
                    assert answer == b""
                else:
                    assert answer.startswith(f"HTTP/1.1 {effect.removeprefix('http_')} ".encode())
            await server.gate.until(lambda: server.gate.gone == 1)
            assert server.gate.handshakes == []


async def test_a_peer_that_says_nothing_is_gone_like_any_other(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, undisturbed(host, "tcp://127.0.0.1:0") as server:
        async with raw_peer(server) as raw:
            there = await bad_peer(server)
            await raw.stream.aclose()
            assert await there.end() == Closed(1006, "the peer closed the connection without a reason")
