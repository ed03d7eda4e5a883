"""Requests over HTTP as the client makes them, against a server of bytes."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.bindings.http.client import HttpClient
from polybus.limits import Limits
from polybus.plugins import DialOptions
from tests.unit.link.test_slow_lines import slow_line

from .support import BOTH, Raw, raw_server, running

pytestmark = pytest.mark.anyio


async def test_a_large_body_passes_a_slow_line(anyio_backend: Any) -> None:
    """It takes twice as long as `write_timeout`, most of that in the buffers of the system and of the line."""
    heads: list[bytes] = []
    body = bytes(320_000)

    async def answer(raw: Raw) -> None:
        heads.append(await raw.until(b"\r\n\r\n"))
        assert await raw.exactly(len(body)) == body
        await raw.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with (
        running(anyio_backend, Limits(write_timeout=2.0)) as host,
        raw_server(answer) as port,
        slow_line(port) as line,
    ):
        options = DialOptions(host=host, reads=BOTH, writes="text", subprotocol="")
        client = HttpClient(f"http://127.0.0.1:{line}", None, options, {}, [])
        status, _, text = await client.ask("POST", f"http://127.0.0.1:{line}/", content=body, headers={"x-mine": "1"})
        assert (status, text) == (200, b"ok")
        await client._http.aclose()
    assert b"content-length: 320000\r\n" in heads[0].lower()
    assert b"x-mine: 1\r\n" in heads[0]
    assert b"transfer-encoding" not in heads[0].lower()
