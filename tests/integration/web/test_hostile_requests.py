"""Requests that no client would write, at the real servers of HTTP: each costs its own connection."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI

from polybus import connect
from polybus.fastapi import attach
from tests.loops import ASYNCIO, PARAMS, TRIO
from tests.support import BOUND

from .support import echoing, read_all, running

PATH = "/bus"


def _upgrade(*lines: str, method: str = "GET", version: str = "13", key: str = "dGhlIHNhbXBsZSBub25jZQ==") -> bytes:
    head = [f"{method} {PATH} HTTP/1.1", "Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket"]
    keys = [f"Sec-WebSocket-Key: {key}"] if key else []
    return "\r\n".join((*head, f"Sec-WebSocket-Version: {version}", *keys, *lines, "\r\n")).encode()


def _post(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join((f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1", *lines, "\r\n")).encode() + body


CHUNKED = "Transfer-Encoding: chunked"
REQUESTS = {
    "an upgrade with a body": _upgrade("Content-Length: 5") + b"hello",
    "an upgrade with a body in chunks": _upgrade(CHUNKED) + b"5\r\nhello\r\n0\r\n\r\n",
    "an upgrade and frames at once": _upgrade() + b"\x81\x82\0\0\0\0{}",
    "an upgrade and half a frame": _upgrade() + b"\x81\xff\x7f",
    "an upgrade of another version": _upgrade(version="8"),
    "an upgrade of two versions": _upgrade(version="13, 8"),
    "an upgrade without a key": _upgrade(key=""),
    "an upgrade with two keys": _upgrade("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    "an upgrade by POST": _upgrade(method="POST"),
    "an upgrade with two thousand extensions": _upgrade("Sec-WebSocket-Extensions: " + "permessage-deflate," * 2000),
    "an upgrade with sub-protocols that are commas": _upgrade("Sec-WebSocket-Protocol: ,,,"),
    "an upgrade to HTTP/2": _upgrade().replace(b"websocket", b"h2c"),
    "two lengths": _post("Content-Length: 5", "Content-Length: 6", body=b"hello"),
    "a length and chunks": _post("Content-Length: 5", CHUNKED, body=b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"),
    "a length below zero": _post("Content-Length: -5"),
    "a length with a sign": _post("Content-Length: +5", body=b"hello"),
    "a length with an underscore": _post("Content-Length: 1_0", body=b"hello"),
    "a length of thirty digits": _post("Content-Length: " + "9" * 30),
    "chunks twice": _post("Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "an encoding that looks like chunks": _post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "a chunk with a sign": _post(CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk with a prefix": _post(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk of 2^80 bytes": _post(CHUNKED, body=b"F" * 20 + b"\r\nhello"),
    "a chunk whose extension does not end": _post(CHUNKED, body=b"5;" + b"a" * 200_000),
    "a promise of a body": _post("Expect: 100-continue", "Content-Length: 5"),
    "a space before a colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a path of 70,000 letters": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header of 70,000 letters": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70_000 + b"\r\n\r\n",
    "ten thousand headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
    "a path with U+0000": b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 100,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    "HTTP/9.9": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": b"\xff" * 1000 + b"\r\n\r\n",
    "nothing": b"",
}


@asynccontextmanager
async def alone(protocol: str) -> AsyncIterator[tuple[int, str]]:
    """Port and URL of a bus alone, behind uvicorn or hypercorn."""
    async with echoing().serve(f"{protocol}+http://127.0.0.1:0{PATH}") as listener:
        yield httpx.URL(listener.url.partition("+")[2]).port or 80, listener.url


@asynccontextmanager
async def attached(protocol: str) -> AsyncIterator[tuple[int, str]]:
    """Port and URL of an application behind uvicorn."""
    app = FastAPI()
    attach(app, echoing(), path=PATH, protocol=protocol)
    async with running(app) as server:
        yield server.port, f"{protocol}+ws://127.0.0.1:{server.port}{PATH}"


_SERVERS = pytest.mark.parametrize(
    ("anyio_backend", "served", "protocol"),
    [
        pytest.param(PARAMS[ASYNCIO].values[0], alone, "jrep", id="uvicorn"),
        pytest.param(PARAMS[ASYNCIO].values[0], alone, "uprotocol", id="uvicorn, uprotocol"),
        pytest.param(PARAMS[ASYNCIO].values[0], attached, "ubre", id="an application behind uvicorn"),
        pytest.param(PARAMS[TRIO].values[0], alone, "jrep", id="hypercorn"),
        pytest.param(PARAMS[TRIO].values[0], alone, "uprotocol", id="hypercorn, uprotocol"),
    ],
)


@_SERVERS
async def test_a_hostile_request_costs_its_own_connection_and_no_other(
    anyio_backend: Any, served: Any, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(protocol) as (port, url), connect(url) as bus:
        for name, request in REQUESTS.items():
            with anyio.fail_after(BOUND):
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    await _ask(stream, request)
            assert await bus.request("echo", name) == name, name
    ours = [record for record in caplog.records if record.exc_info and record.name.startswith("polybus")]
    assert not ours, json.dumps([record.getMessage() for record in ours])


@_SERVERS
async def test_a_connection_whose_upgrade_was_refused_is_closed_though_its_client_stays(
    anyio_backend: Any, served: Any, protocol: str
) -> None:
    async with served(protocol) as (port, _):
        for request in (_upgrade(version="8"), _upgrade(key="")):
            with anyio.fail_after(BOUND):
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    await stream.send(request)
                    said = await read_all(stream)
            assert said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), said


async def _ask(stream: anyio.abc.SocketStream, request: bytes) -> None:
    """Say all of it and that there is no more, and read what comes first."""
    try:
        await stream.send(request)
        await stream.send_eof()
        await stream.receive()
    except (anyio.BrokenResourceError, anyio.EndOfStream):
        pass
