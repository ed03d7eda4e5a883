"""WebSockets of uvicorn: a peer that floods them leaves others their turns, and makes the server keep little; one on a slow
line is not taken for a dead one, and a dead one is.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import anyio
import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from polybus import Bus
from polybus.bindings.http import uvicorn as bus_server
from polybus.bindings.http.uvicorn import PatientWebSockets
from polybus.transports.sockets import Signs
from tests.unit.transports.support import UPGRADE


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    assert len(data) < 126
    return bytes([(0x80 if fin else 0) | opcode, 0x80 | len(data)]) + bytes(4) + data


class Connection:
    """An asyncio transport on which nothing is read: above 1 kB it asks for a pause. And what the kernel says of its socket."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.written = bytearray()
        self.acknowledged = 0
        self.reading = True
        self.closed = False

    def signs(self, sock: Any) -> Signs:
        return Signs(0.0, 0, self.acknowledged, 1000)

    def write(self, data: bytes) -> None:
        self.written += data
        if len(self.written) > 1000:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 9000

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


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop: callbacks and timers, run when they are told, and a clock a second on whenever somebody looks at it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.timers: list[Timer] = []
        self.now = 0.0

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(call))
        return self.timers[-1]

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> Any:
        coroutine.close()
        return Mock()

    def run(self) -> int:
        """Run callbacks as long as there are some, and count them."""
        count = 0
        while self.calls:
            self.calls.pop(0)()
            count += 1
        return count

    def fire(self) -> None:
        """The one timer that runs."""
        (timer,) = [timer for timer in self.timers if not timer.cancelled]
        self.timers.clear()
        timer.call()


class Open:
    """A WebSocket under uvicorn that is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **pings: Any) -> None:
        self.loop, self.connection = Loop(), Connection()
        monkeypatch.setattr(bus_server, "sources", SimpleNamespace(get=lambda: self.loop))
        monkeypatch.setattr(bus_server, "signs_of", self.connection.signs)
        config = Config(_application, **({"ws_ping_interval": None} | pings), lifespan="off", log_config=None)
        config.load()
        self.protocol = self.connection.protocol = PatientWebSockets(config, ServerState(), {}, cast("Any", self.loop))
        self.protocol.connection_made(cast("Any", self.connection))
        self.protocol.data_received(UPGRADE)
        self.protocol.conn.send_response(self.protocol.response)
        self.protocol.conn.data_to_send()  # it has left
        self.protocol.handshake_complete = True
        assert self.messages() == [{"type": "websocket.connect"}]

    def messages(self) -> list[Any]:
        """Take what waits for the application."""

        async def take() -> list[Any]:
            return [await self.protocol.receive() for _ in range(self.protocol.queue.qsize())]

        return asyncio.run(take())


async def _application(scope: Any, receive: Any, send: Any) -> None:
    pass


@pytest.fixture
def flooded(monkeypatch: pytest.MonkeyPatch) -> Open:
    return Open(monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Open:
    """A ping waits behind 10,000 bytes."""
    it = Open(monkeypatch, ws_ping_interval=10, ws_ping_timeout=20)
    it.protocol.start_keepalive()
    it.loop.fire()
    assert it.connection.written[:1] == b"\x89", "a ping"
    return it


def test_others_have_their_turns_between_the_frames_of_one_read(flooded: Open) -> None:
    flooded.protocol.data_received(frame(2, b"x", fin=False) + 3000 * frame(0, b"x", fin=False))
    assert len(flooded.protocol.frames) < 400
    assert not flooded.connection.reading
    assert flooded.loop.run() >= 8
    assert len(flooded.protocol.frames) == 3001
    assert flooded.connection.reading


def test_what_has_been_read_waits_until_the_application_has_taken_what_came_before(flooded: Open) -> None:
    sent = [str(number).encode() for number in range(3000)]
    flooded.protocol.data_received(b"".join(frame(2, each) for each in sent[:2000]))
    flooded.protocol.data_received(b"".join(frame(2, each) for each in sent[2000:]))  # read before it paused
    got = list[bytes]()
    while some := flooded.messages():
        assert len(some) < 400
        got += [event["bytes"] for event in some]
        assert flooded.connection.reading == (len(got) == len(sent))
        flooded.loop.run()
    assert got == sent


def test_a_message_in_too_many_parts_ends_the_connection(flooded: Open) -> None:
    flooded.protocol.data_received(frame(2, fin=False) + 10_000 * frame(0, fin=False))
    flooded.loop.run()
    assert flooded.connection.closed
    assert b"too many fragments" in flooded.connection.written
    assert len(flooded.protocol.frames) < 4096
    (event,) = flooded.messages()
    assert (event["type"], event["code"]) == ("websocket.disconnect", 1009)


def test_pings_of_a_peer_that_does_not_read_are_not_answered(flooded: Open) -> None:
    flooded.protocol.data_received(1000 * frame(9, b"x" * 100))
    flooded.loop.run()
    assert 1000 < len(flooded.connection.written) < 4000
    flooded.protocol.resume_writing()
    flooded.connection.written.clear()
    flooded.protocol.data_received(frame(9, b"again"))
    assert bytes(flooded.connection.written) == b"\x8a\x05again"


def test_a_peer_is_not_cut_while_what_was_written_before_the_ping_arrives(asked: Open) -> None:
    for arrived in (3000, 6000, 9999):
        asked.connection.acknowledged = arrived
        asked.loop.fire()
        assert not asked.connection.closed
    asked.loop.fire()
    assert asked.connection.closed, "nothing more has arrived"


@pytest.mark.parametrize("pongs", [0, 3])  # without a question, as clients of ours send while they wait for the rest of a frame
def test_a_peer_is_there_while_it_says_anything_after_a_ping_has_arrived_and_is_cut_else(asked: Open, pongs: int) -> None:
    asked.connection.acknowledged = 10_000
    for _ in range(pongs):
        asked.protocol.data_received(b"\x8a\x80\x00\x00\x00\x00")
        asked.loop.fire()
        assert not asked.connection.closed
    asked.loop.fire()
    assert asked.connection.closed


def test_a_peer_of_which_the_system_tells_nothing_has_one_ping_timeout(asked: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_server, "signs_of", lambda sock: None)
    asked.protocol.send_keepalive_ping()
    asked.loop.timers[:-1] = []
    asked.loop.fire()
    assert asked.connection.closed


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_bus_alone_behind_http_waits_so(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = anyio.Event()
    monkeypatch.setattr(PatientWebSockets, "start_keepalive", lambda self: begun.set())
    server = Bus()
    with anyio.fail_after(60):
        async with server.serve("jrep+http://127.0.0.1:0") as listener, Bus().connect(listener.url):
            await begun.wait()
