"""WebSockets of uvicorn: a peer on a slow line is not taken for a dead one, and a dead one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.protocol import State

from polybus import Bus
from polybus.bindings.http import uvicorn as bus_server
from polybus.bindings.http.uvicorn import PatientWebSockets
from polybus.transports._stream.sockets import Signs


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Timers fire when they are told."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(call))
        return self.timers[-1]

    def fire(self) -> None:
        """The one timer that runs."""
        (timer,) = [timer for timer in self.timers if not timer.cancelled]
        self.timers.clear()
        timer.call()


class Connection:
    """What stands in for an asyncio transport, and for what the kernel says of its socket."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.acknowledged = 0
        self.closed = False

    def signs(self, sock: Any) -> Signs:
        return Signs(0.0, 0, self.acknowledged, 1000)

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 9000

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Asked:
    """A connection on which a ping waits behind 10,000 bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.connection = Loop(), Connection()
        monkeypatch.setattr(bus_server, "signs_of", self.connection.signs)
        config = Config(_application, ws_ping_interval=10, ws_ping_timeout=20, lifespan="off", log_config=None)
        config.load()
        self.protocol = PatientWebSockets(config, ServerState(), {}, cast("Any", self.loop))
        self.protocol.connection_made(cast("Any", self.connection))
        self.protocol.conn.state = State.OPEN
        self.protocol.start_keepalive()
        self.loop.fire()
        assert self.connection.written[:1] == b"\x89", "a ping"


async def _application(scope: Any, receive: Any, send: Any) -> None:
    pass


def test_a_peer_is_not_cut_while_what_was_written_before_the_ping_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Asked(monkeypatch)
    for arrived in (3000, 6000, 9999):
        it.connection.acknowledged = arrived
        it.loop.fire()
        assert not it.connection.closed
    it.loop.fire()
    assert it.connection.closed, "nothing more has arrived"


def test_a_peer_that_does_not_answer_a_ping_that_has_arrived_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Asked(monkeypatch)
    it.connection.acknowledged = 10_000
    it.loop.fire()
    assert it.connection.closed


def test_a_peer_that_says_anything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Asked(monkeypatch)
    it.connection.acknowledged = 10_000
    for _ in range(3):  # a pong without a question, as clients of ours send while they wait for the rest of a frame
        it.protocol.data_received(b"\x8a\x80\x00\x00\x00\x00")
        it.loop.fire()
        assert not it.connection.closed
    it.loop.fire()
    assert it.connection.closed


def test_a_peer_of_which_the_system_tells_nothing_has_one_ping_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Asked(monkeypatch)
    monkeypatch.setattr(bus_server, "signs_of", lambda sock: None)
    it.protocol.send_keepalive_ping()
    it.loop.timers[:-1] = []
    it.loop.fire()
    assert it.connection.closed


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_bus_alone_behind_http_waits_so(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = anyio.Event()
    monkeypatch.setattr(PatientWebSockets, "start_keepalive", lambda self: begun.set())
    server = Bus()
    with anyio.fail_after(60):
        async with server.serve("jrep+http://127.0.0.1:0") as listener, Bus().connect(listener.url):
            await begun.wait()
