"""WebSockets of uvicorn: a peer that floods them leaves others their turns, and makes the server keep little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from polybus.bindings.http import uvicorn as bus_server
from polybus.bindings.http.uvicorn import PatientWebSockets

UPGRADE = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
UPGRADE += b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    assert len(data) < 126
    return bytes([(0x80 if fin else 0) | opcode, 0x80 | len(data)]) + bytes(4) + data


class Connection:
    """An asyncio transport on which nothing is read: above 1 kB it asks for a pause."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.written = bytearray()
        self.reading = True
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data
        if len(self.written) > 1000:
            self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Turns:
    """An event loop: its callbacks, and a clock that goes on by a second each time somebody looks at it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.now = 0.0

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> Any:
        coroutine.close()
        return Mock()

    def monotonic(self) -> float:
        self.now += 1
        return self.now

    def run(self) -> int:
        """Run callbacks as long as there are some, and count them."""
        count = 0
        while self.calls:
            self.calls.pop(0)()
            count += 1
        return count


class Flooded:
    """A WebSocket under uvicorn that is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.connection = Turns(), Connection()
        monkeypatch.setattr(bus_server, "sources", SimpleNamespace(get=lambda: self.loop))
        config = Config(_application, ws_ping_interval=None, lifespan="off", log_config=None)
        config.load()
        self.protocol = self.connection.protocol = PatientWebSockets(config, ServerState(), {}, cast("Any", self.loop))
        self.protocol.connection_made(cast("Any", self.connection))
        self.protocol.data_received(UPGRADE)
        self.protocol.conn.send_response(self.protocol.response)
        self.protocol.handshake_complete = True
        self.connection.written.clear()
        assert self.messages() == [{"type": "websocket.connect"}]

    def messages(self) -> list[Any]:
        """Take what waits for the application."""

        async def take() -> list[Any]:
            return [await self.protocol.receive() for _ in range(self.protocol.queue.qsize())]

        return asyncio.run(take())


async def _application(scope: Any, receive: Any, send: Any) -> None:
    pass


def test_others_have_their_turns_between_the_frames_of_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Flooded(monkeypatch)
    it.protocol.data_received(frame(2, b"x", fin=False) + 3000 * frame(0, b"x", fin=False))
    assert len(it.protocol.frames) < 400
    assert not it.connection.reading
    assert it.loop.run() >= 8
    assert len(it.protocol.frames) == 3001
    assert it.connection.reading


def test_what_has_been_read_waits_until_the_application_has_taken_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    it, sent = Flooded(monkeypatch), [str(number).encode() for number in range(3000)]
    it.protocol.data_received(b"".join(frame(2, each) for each in sent))
    got = list[bytes]()
    while some := it.messages():
        assert len(some) < 400
        got += [event["bytes"] for event in some]
        assert it.connection.reading == (len(got) == len(sent))
        it.loop.run()
    assert got == sent


def test_a_message_in_too_many_parts_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Flooded(monkeypatch)
    it.protocol.data_received(frame(2, fin=False) + 10_000 * frame(0, fin=False))
    it.loop.run()
    assert it.connection.closed
    assert b"too many fragments" in it.connection.written
    assert len(it.protocol.frames) < 4096
    (event,) = it.messages()
    assert (event["type"], event["code"]) == ("websocket.disconnect", 1009)


def test_pings_of_a_peer_that_does_not_read_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Flooded(monkeypatch)
    it.protocol.data_received(1000 * frame(9, b"x" * 100))
    it.loop.run()
    assert 1000 < len(it.connection.written) < 4000
    it.protocol.resume_writing()
    it.connection.written.clear()
    it.protocol.data_received(frame(9, b"again"))
    assert bytes(it.connection.written) == b"\x8a\x05again"
